"""How answers and errors are written: as JSON of OpenAI's API, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from specdemo.engine.handle import Waiting
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.serving.backend import Description, Done, Event, NotReady, Piece, Started
from specdemo.serving.schema import ChatRequest, CommonRequest, figures, usage
from specdemo.trace import BaselineToken

log = logging.getLogger(__name__)

PING = 0.25
"""Seconds without an event after which a stream of rounds gets a comment line. Its reader may want
to stop, and looks up only when something comes."""


class ApiError(Exception):
    """A response other than 200, in the API's form."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, headers
        detail = {"message": message, "type": kind, "param": param, "code": code}
        self.body = {"error": detail}


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; an unforeseen one is logged and only named."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadInput):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, NotReady):
        wait = {"Retry-After": str(math.ceil(error.retry_after))}
        return ApiError(503, str(error), "server_error", code="model_not_ready", headers=wait)
    if isinstance(error, Busy):
        wait = {"Retry-After": "1"}
        return ApiError(429, str(error), "requests", code="rate_limit_exceeded", headers=wait)
    if isinstance(error, RequestFailed):
        return ApiError(500, str(error), "server_error", code="answer_interrupted")
    log.error("A request failed.", exc_info=error)
    name = type(error).__name__
    message = f"The server had an error while processing your request ({name})."
    return ApiError(500, message, "server_error")


class Form:
    """How an answer is written as JSON: of a chat or of a completion, whole or as chunks."""

    def __init__(self, asked: CommonRequest, description: Description):
        self._chat = isinstance(asked, ChatRequest)
        self._usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._trace = asked.extension.trace
        self.rounds = asked.extension.rounds
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": description.model,
            "system_fingerprint": description.fingerprint,
        }

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """What is sent for an event; for most of them nothing unless rounds were asked for."""
        if isinstance(event, Done):
            text = [self._chunk({"content": event.text})] if event.text else []
            return [*text, *self._ending(event)]
        told = _extension(event) if self.rounds else None
        if isinstance(event, Started) and self._chat:
            return [self._chunk({"role": "assistant", "content": ""}, told)]
        if isinstance(event, Piece) and (event.text or told):
            return [self._chunk({"content": event.text}, told)]
        return [] if told is None else [{**self._head, "choices": [], "speculative": told}]

    def _chunk(
        self,
        delta: dict[str, str],
        told: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        said = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head, "choices": [choice]}
        if self._usage:
            chunk["usage"] = None
        if told is not None:
            chunk["speculative"] = told
        return chunk

    def _ending(self, done: Done) -> list[dict[str, Any]]:
        last = self._chunk({}, figures(done.trace, whole=self._trace), done.reason)
        if not self._usage:
            return [last]
        brief = figures(done.trace, whole=False)
        total = {**self._head, "choices": [], "usage": usage(done.trace), "speculative": brief}
        return [last, total]

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The answer without streaming."""
        message = {"message": {"role": "assistant", "content": text, "refusal": None}}
        said = message if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": done.reason}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": usage(done.trace),
            "speculative": figures(done.trace, whole=self._trace),
        }


def _extension(event: Event) -> dict[str, Any]:
    if isinstance(event, Started):
        return {"prompt_tokens": event.prompt_tokens}
    if isinstance(event, Waiting):
        return {"waiting": dataclasses.asdict(event)}
    if isinstance(event, BaselineToken):
        return {"baseline_token": dataclasses.asdict(event)}
    return {"round": dataclasses.asdict(event.round)}


async def server_sent(
    form: Form, first: Event, events: AsyncIterator[Event]
) -> AsyncIterator[bytes]:
    """The stream as server-sent events. An error in the middle is one too, and the last."""
    try:
        async with aclosing(events), aclosing(_with_pings(first, events, form.rounds)) as coming:
            async for event in coming:
                if event is None:
                    yield b": nothing new\n\n"
                    continue
                if isinstance(event, Done):
                    require_finished(event)
                for chunk in form.chunks(event):
                    yield _line(chunk)
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _line(as_api_error(error).body)


async def _with_pings(
    first: Event, events: AsyncIterator[Event], wanted: bool
) -> AsyncIterator[Event | None]:
    """The events; if `wanted`, also None whenever none has come for PING seconds."""
    yield first
    coming = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=PING if wanted else None)
            if not done:
                yield None
                continue
            finished, coming = coming, None
            try:
                event = finished.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if coming is not None:
            await cancelled(coming)


async def cancelled(*tasks: asyncio.Future) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _line(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text}\n\n".encode()


def require_finished(done: Done) -> None:
    if done.reason == "cancelled":
        raise RequestFailed("The answer was cut off: the server is being stopped.")
