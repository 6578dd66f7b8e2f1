"""How answers and errors are written: as JSON of OpenAI's API, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from specdemo.engine.handle import Waiting
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.serving.backend import Event
from specdemo.serving.door import error_body
from specdemo.serving.schema import ChatRequest, CompletionRequest
from specdemo.trace import BaselineToken, Trace, summarize, to_json

log = logging.getLogger(__name__)

PING = 0.25
"""Seconds without an event after which a stream of rounds gets a comment line. Its reader may want
to stop, and looks up only when something comes."""

EVENT_NAMES = {
    int: "prompt_tokens",
    Waiting: "waiting",
    Round: "round",
    BaselineToken: "baseline_token",
}

CODES = {429: "rate_limit_exceeded", 500: "answer_interrupted", 503: "model_not_ready"}
RETRY_SECONDS = {429: "1", 503: "5"}


class ApiError(Exception):
    """A response other than 200, in the API's form."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = error_body(status, message, param, code)


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; an unforeseen one is logged and only named."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadInput):
        return ApiError(400, str(error), error.param, error.code)
    if isinstance(error, Busy | RequestFailed):
        status = error.http_status
        headers = {"Retry-After": RETRY_SECONDS[status]} if status in RETRY_SECONDS else None
        return ApiError(status, str(error), code=CODES[status], headers=headers)
    log.error("A request failed.", exc_info=error)
    name = type(error).__name__
    return ApiError(500, f"The server had an error while processing your request ({name}).")


class Form:
    """How an answer is written as JSON: of a chat or of a completion, whole or as chunks."""

    def __init__(self, asked: ChatRequest | CompletionRequest, model: dict[str, Any]):
        self._chat = isinstance(asked, ChatRequest)
        self._usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._trace = asked.extension.trace
        self.rounds = asked.extension.rounds
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model["id"],
            "system_fingerprint": model["target_revision"] or None,
        }

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """What is sent for an event: some have text, all are sent if rounds were asked for."""
        what = event.what
        if isinstance(what, Trace):
            text = [self._chunk({"content": event.text})] if event.text else []
            last = self._chunk({}, figures(what, whole=self._trace), event.reason)
            if not self._usage:
                return [*text, last]
            brief = figures(what, whole=False)
            return [*text, last, {**self._chunk(None, brief), "usage": usage(what)}]
        told = None
        if self.rounds:
            plain = what if isinstance(what, int) else dataclasses.asdict(what)
            told = {EVENT_NAMES[type(what)]: plain}
        if isinstance(what, int) and self._chat:
            return [self._chunk({"role": "assistant", "content": ""}, told)]
        if isinstance(what, Round) and (event.text or told):
            return [self._chunk({"content": event.text}, told)]
        return [self._chunk(None, told)] if told else []

    def whole(self, text: str, done: Event) -> dict[str, Any]:
        """The answer without streaming."""
        message = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [_choice(message if self._chat else {"text": text}, done.reason)],
            "usage": usage(done.what),
            "speculative": figures(done.what, whole=self._trace),
        }

    def _chunk(
        self,
        delta: dict[str, str] | None,
        told: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        chunk = {**self._head, "choices": []}
        if delta is not None:
            said = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
            chunk["choices"] = [_choice(said, reason)]
        if self._usage:
            chunk["usage"] = None
        if told:
            chunk["speculative"] = told
        return chunk


def _choice(said: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, **said, "logprobs": None, "finish_reason": reason}


def usage(trace: Trace) -> dict[str, int]:
    """The tokens of prompt and answer."""
    prompt, made = trace.prompt_tokens, len(trace.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def figures(trace: Trace, *, whole: bool) -> dict[str, Any]:
    """The extension of a response: what speculation did for this answer, with the trace if `whole`.

    Times in seconds, rates in tokens a second; `certified` None: not asked for.
    """
    summary = summarize(trace)
    found = {
        "acceptance_rate": summary.acceptance_rate,
        "rounds": summary.rounds,
        "tokens": summary.tokens,
        "tokens_per_round": summary.tokens_per_round,
        "draft_tokens": summary.drafted,
        "accepted_tokens": summary.accepted,
        "time_to_first_token_s": summary.time_to_first_token,
        "prefill_s": trace.prefill_seconds,
        "decode_s": summary.decode_seconds,
        "draft_s": summary.draft_seconds,
        "verify_s": summary.verify_seconds,
        "tokens_per_second": summary.tokens_per_second,
        "certified": trace.certificate.certified if trace.certificate else None,
    }
    return {**found, "trace": json.loads(to_json(trace))} if whole else found


async def server_sent(
    form: Form, first: Event, events: AsyncIterator[Event]
) -> AsyncIterator[bytes]:
    """The stream as server-sent events. An error in the middle is one too, and the last.

    If rounds were asked for, a comment is sent whenever no event has come for PING seconds.
    """
    coming: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    coming.set_result(first)
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=PING if form.rounds else None)
            if not done:
                yield b": nothing new\n\n"
                continue
            event = coming.result()
            require_finished(event)
            for chunk in form.chunks(event):
                yield _line(chunk)
            if event.reason:
                break
            coming = asyncio.ensure_future(anext(events))
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _line(as_api_error(error).body)
    finally:
        await cancelled(coming)
        await events.aclose()


async def cancelled(*tasks: asyncio.Future) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _line(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text}\n\n".encode()


def require_finished(event: Event) -> None:
    """Raises RequestFailed for an answer that was stopped here, not by its client."""
    if event.reason == "cancelled":
        raise RequestFailed("The answer was cut off: the server is being stopped.")
