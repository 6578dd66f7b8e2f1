"""The OpenAI-compatible API over either backend; docs/reference/api.md describes it."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from specdemo.errors import BadInput, SpecdemoError
from specdemo.runs.trace import Trace, summarize, to_json
from specdemo.server.application import application
from specdemo.server.backend import LocalBackend, Piece, ScoredToken
from specdemo.server.request_guard import MAX_BODY, RequestGuard, refusal
from specdemo.server.schema import ChatRequest, CommonRequest, CompletionRequest
from specdemo.server.server_options import ServeOptions
from specdemo.text.tools import FunctionCall

if TYPE_CHECKING:
    from specdemo.server.ray import ReplicaBackend

log = logging.getLogger(__name__)

SPARE_BYTES, TOKEN_BYTES = 500_000, 32
"""The most bytes of a body: for all but its texts, and for each token of the model's context."""


class ReadRequest(Request):
    """A request whose JSON the RequestGuard has read."""

    async def json(self) -> Any:
        return self.scope["json"]


class Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_read(request: Request) -> Response:
            return await handle(ReadRequest(request.scope, request.receive))

        return handle_read


def openai_application(
    backend: LocalBackend | ReplicaBackend, options: ServeOptions, key: str | None
) -> FastAPI:
    """The API. With a `key` all but /openapi.json and /health need it."""
    # With a key every host name is allowed: a page of another site does not have the key.
    names = ("*",) if key else (options.host, *options.allowed_host)
    guard = RequestGuard(names, options.allow_origin, key)
    router = APIRouter(route_class=Route)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [await backend.model()]}

    @router.get("/v1/models/{name:path}")
    async def model_named(name: str) -> dict[str, Any]:
        model = await backend.model()
        guard.most_bytes = min(MAX_BODY, SPARE_BYTES + TOKEN_BYTES * model["context_length"])
        if name not in (model["id"], model["pair"]):
            message = f"The model `{name[:100]}` does not exist here; this server has"
            raise BadInput(f"{message} `{model['id']}`.", "model", "model_not_found")
        return model

    @router.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await answer(backend, body, await model_named(body.model), request)

    @router.post("/v1/completions")
    async def completion(body: CompletionRequest, request: Request) -> Response:
        return await answer(backend, body, await model_named(body.model), request)

    return application(backend, guard, router)


async def answer(
    backend: LocalBackend | ReplicaBackend,
    body: CommonRequest,
    model: dict[str, Any],
    request: Request,
) -> Response:
    """The answers, whole or as a stream, as the request says."""
    form = Form(body, model)
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(aclosing(backend.answer(body)))
        async for event in events:
            if await request.is_disconnected():
                raise HTTPException(499, "The client closed its connection.")
            if body.stream and event.what is not None:  # the request was not refused
                return StreamingResponse(
                    server_sent(form, event, events),
                    headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
                    media_type="text/event-stream",
                    background=BackgroundTask(stack.pop_all().aclose),
                )
            form.add(event)
    return JSONResponse(form.whole())


@dataclass
class ChoiceState:
    """What has come of one answer: text, calls and scored tokens until they are written."""

    begun: bool = False
    text: str = ""
    calls: list[FunctionCall] = field(default_factory=list)
    written_calls: int = 0
    tokens: list[ScoredToken] = field(default_factory=list)
    offset: int = 0  # characters of tokens that were written
    trace: Trace | None = None

    @property
    def whole(self) -> Trace:
        """The trace of an answer that has ended."""
        assert self.trace is not None
        return self.trace


class Form:
    """Writes the answers to a request as JSON: of a chat or of completions, whole or as chunks."""

    def __init__(self, body: CommonRequest, model: dict[str, Any]):
        self._body, self._chat = body, isinstance(body, ChatRequest)
        self._answers = [ChoiceState() for _ in range(body.answers)]
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model["id"],
        }

    def add(self, event: Piece) -> ChoiceState:
        """Adds what an event brings to its answer."""
        answer = self._answers[event.answer]
        answer.text += event.text
        answer.calls += event.calls
        answer.tokens += event.tokens
        if isinstance(event.what, Trace):
            answer.trace = event.what
        return answer

    def whole(self) -> dict[str, Any]:
        """All answers, which have ended."""
        choices = []
        for number, answer in enumerate(self._answers):
            message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
            if answer.calls:
                message |= {"content": answer.text or None, "tool_calls": self._calls(answer)}
            content = {"message": message} if self._chat else {"text": answer.text}
            choices.append(self._choice(number, content))
        figures = [self._figures(answer.whole) for answer in self._answers]
        return {
            **self._head,
            "choices": choices,
            "usage": self._usage(),
            "speculative": figures[0] if len(figures) == 1 else figures,
        }

    def chunks(self, event: Piece) -> Iterator[dict[str, Any]]:
        """The chunks for an event; there may be none."""
        answer, ended = self.add(event), isinstance(event.what, Trace)
        text, answer.text = answer.text, ""

        def chunk(content: dict[str, Any], ended: bool = False) -> dict[str, Any]:
            return self._chunk(self._choice(event.answer, content, ended))

        if self._chat and not answer.begun:
            yield chunk({"delta": {"role": "assistant", "content": ""}})
        answer.begun = True
        if text or answer.tokens:
            yield chunk({"delta": {"content": text}} if self._chat else {"text": text})
        if answer.calls:
            yield chunk({"delta": {"tool_calls": self._calls(answer)}})
        if ended:
            last = chunk({"delta": {}} if self._chat else {"text": ""}, ended=True)
            yield last | {"speculative": self._figures(answer.whole)}
            if self._with_usage and all(answer.trace for answer in self._answers):
                yield self._chunk() | {"usage": self._usage()}

    def _calls(self, answer: ChoiceState) -> list[dict[str, Any]]:
        """The calls that were not written yet. Templates of Mistral want ids of nine characters."""
        calls = [
            {
                "index": index,
                "id": uuid.uuid4().hex[:9],
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(answer.calls, answer.written_calls)
        ]
        answer.written_calls += len(calls)
        answer.calls = []
        return calls

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, number: int, content: dict[str, Any], ended: bool = True) -> dict[str, Any]:
        """A choice with the tokens of `answer` that were not written yet."""
        answer, reason = self._answers[number], None
        if ended:
            reason = answer.whole.finish_reason.replace("context", "length")
            if answer.written_calls and reason == "stop":
                reason = "tool_calls"
        logprobs = None
        if self._body.likeliest is not None and (answer.tokens or not self._body.stream):
            logprobs = self._chat_logprobs(answer) if self._chat else self._text_logprobs(answer)
        answer.tokens = []
        return {"index": number, **content, "logprobs": logprobs, "finish_reason": reason}

    def _chat_logprobs(self, answer: ChoiceState) -> dict[str, Any]:
        def entry(text: str, logprob: float | None) -> dict[str, Any]:
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        entries = [
            entry(token.text, token.logprob)
            | {"top_logprobs": [entry(*likely) for likely in token.likeliest]}
            for token in answer.tokens
        ]
        return {"content": entries, "refusal": None}

    def _text_logprobs(self, answer: ChoiceState) -> dict[str, Any]:
        offsets = [*accumulate((len(token.text) for token in answer.tokens), initial=answer.offset)]
        answer.offset = offsets.pop()
        # The chosen token is listed even if others are likelier.
        likeliest = [
            None
            if token.logprob is None
            else {token.text: token.logprob, **dict(reversed(token.likeliest))}
            for token in answer.tokens
        ]
        return {
            "tokens": [token.text for token in answer.tokens],
            "token_logprobs": [token.logprob for token in answer.tokens],
            "top_logprobs": likeliest if self._body.likeliest else None,
            "text_offset": offsets,
        }

    def _figures(self, trace: Trace) -> dict[str, Any]:
        """What speculative decoding did in an answer."""
        summary = summarize(trace)
        figures = {
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
        }
        if self._body.extension.trace:
            figures["trace"] = json.loads(to_json(trace))
        return figures

    def _usage(self) -> dict[str, Any]:
        """The tokens of all prompts, each counted once, and of all answers."""
        traces = [answer.whole for answer in self._answers]
        prompts = traces[:: self._body.n or 1]
        prompt = sum(trace.prompt_tokens for trace in prompts)
        made = sum(len(trace.token_ids) for trace in traces)
        predicted = [
            token
            for trace in traces
            for round_ in trace.rounds
            for token in round_.drafted
            if token.source == "prediction"
        ]
        accepted = sum(token.accepted for token in predicted)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {
                "cached_tokens": sum(trace.prompt_reused for trace in prompts)
            },
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": len(predicted) - accepted,
            },
        }


async def server_sent(
    form: Form, event: Piece, events: AsyncIterator[Piece]
) -> AsyncIterator[bytes]:
    """The stream as server-sent events, `event` the first. An error is sent as the last event.
    While no event comes, comments are sent, so that no proxy ends the stream."""
    try:
        while True:
            if event.what is None:
                yield b": nothing new\n\n"
            else:
                for chunk in form.chunks(event):
                    text = json.dumps(chunk, ensure_ascii=False, allow_nan=False)
                    yield f"data: {text}\n\n".encode()
            event = await anext(events)
    except StopAsyncIteration:
        yield b"data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, SpecdemoError):
            log.error("A request failed.", exc_info=error)
        yield b"data: %b\n\n" % bytes(refusal(error).body)
