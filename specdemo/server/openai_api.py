"""The OpenAI-compatible API over either backend; docs/reference/api.md describes it."""

import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, closing
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic_core import from_json, to_json
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from specdemo.errors import BadInput, SpecdemoError
from specdemo.runs.trace import Trace, summarize
from specdemo.server.application import Reports, application
from specdemo.server.backend import Piece, ScoredToken
from specdemo.server.request_guard import MAX_BODY, RequestGuard, refusal
from specdemo.server.schema import AnswerRequest, ChatRequest, CompletionRequest
from specdemo.server.server_options import ServeOptions
from specdemo.text.tools import FunctionCall

log = logging.getLogger(__name__)

SPARE_BYTES, TOKEN_BYTES = 500_000, 32
"""The most bytes of a body: for all but its texts, and for each token of the model's context."""

MANY_TOKENS = 100  # with their likeliest ones they take milliseconds to write

as_json = partial(to_json, inf_nan_mode="null")
"""Pydantic writes an iterator as a list. An answer may have 250 MB of log-probabilities as JSON, of
which one piece is in memory."""


class Backend(Reports, Protocol):
    """What answers: the pair in this process (`LocalBackend`), or replicas (`ReplicaBackend`)."""

    async def model(self) -> dict[str, Any]: ...
    def answer(self, request: AnswerRequest) -> AsyncGenerator[Piece | None, None]: ...


def openai_application(backend: Backend, options: ServeOptions, key: str | None) -> FastAPI:
    """The API. With a `key` all but /openapi.json and /health need it."""
    # With a key every host name is allowed: a page of another site does not have the key.
    names = ("*",) if key else (options.host, *options.allowed_host)
    guard = RequestGuard(names, options.allow_origin, key)
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [await backend.model()]}

    @router.get("/v1/models/{name:path}")
    async def model_named(name: str) -> dict[str, Any]:
        model = await backend.model()
        guard.max_body = min(MAX_BODY, SPARE_BYTES + TOKEN_BYTES * model["context_length"])
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
    backend: Backend, body: AnswerRequest, model: dict[str, Any], request: Request
) -> Response:
    """The answers, in one response or as a stream, as the request says."""
    writer = ResponseWriter(body, model)
    async with AsyncExitStack() as stack:
        pieces = await stack.enter_async_context(aclosing(backend.answer(body)))
        async for piece in pieces:
            if await request.is_disconnected():
                raise HTTPException(499, "The client closed its connection.")
            if piece is None:
                continue
            if body.stream:  # the request was not refused
                return StreamingResponse(
                    server_sent(writer, piece, pieces),
                    headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
                    media_type="text/event-stream",
                    background=BackgroundTask(stack.pop_all().aclose),
                )
            writer.add(piece)
    kind = "application/json"
    if body.top_count is not None or body.extension.trace:  # up to 250 MB, which take seconds
        content = in_threads(writer.complete())
        return StreamingResponse(
            content, media_type=kind, background=BackgroundTask(content.aclose)
        )
    return Response(await run_in_threadpool(b"".join, writer.complete()), media_type=kind)


async def in_threads(pieces: Generator[bytes]) -> AsyncGenerator[bytes]:
    """`pieces`, each made by another thread. They are closed with it: what they hold goes when a
    client does, not at some later collection of garbage."""
    with closing(pieces):
        while piece := await run_in_threadpool(next, pieces, b""):
            yield piece


class ChoiceWriter:
    """Writes an answer as a choice of the response, or as those of chunks. What its pieces bring is
    kept until it is written."""

    def __init__(self, index: int, request: AnswerRequest):
        self._index, self._request = index, request
        self._chat = isinstance(request, ChatRequest)
        self._text = ""
        self._calls: list[FunctionCall] = []
        self._tokens: list[ScoredToken] = []
        self._begun = False
        self._written_calls = 0
        self.trace: Trace | None = None

    def add(self, piece: Piece) -> None:
        self._text += piece.text
        self._calls += piece.calls
        self._tokens += piece.tokens
        if isinstance(piece.event, Trace):
            self.trace = piece.event

    def complete(self) -> dict[str, Any]:
        if not self._chat:
            return self._choice({"text": self._text})
        message: dict[str, Any] = {"role": "assistant", "content": self._text, "refusal": None}
        if self._calls:
            message |= {"content": self._text or None, "tool_calls": self._new_calls()}
        return self._choice({"message": message})

    def parts(self) -> Iterator[dict[str, Any]]:
        """The choices of chunks for what is new; there may be none."""
        unfinished, text, self._text = {"finish_reason": None}, self._text, ""
        if self._chat and not self._begun:
            role = {"delta": {"role": "assistant", "content": ""}}
            yield {"index": self._index, **role, "logprobs": None, **unfinished}
        self._begun = True
        if text or self._tokens:
            part = {"delta": {"content": text}} if self._chat else {"text": text}
            yield self._choice(part) | unfinished
        if self._calls:
            yield self._choice({"delta": {"tool_calls": self._new_calls()}}) | unfinished
        if self.trace:
            yield self._choice({"delta": {}} if self._chat else {"text": ""})

    def _choice(self, content: dict[str, Any]) -> dict[str, Any]:
        logprobs, tokens, self._tokens = None, self._tokens, []
        if self._request.top_count is not None and (tokens or not self._request.stream):
            logprobs = self._logprobs(tokens)
        reason = self.trace.finish_reason.replace("context", "length") if self.trace else None
        if self._written_calls and reason == "stop":
            reason = "tool_calls"
        return {"index": self._index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _new_calls(self) -> list[dict[str, Any]]:
        """Templates of Mistral want ids of nine characters."""
        calls = [
            {
                "index": index,
                "id": uuid.uuid4().hex[:9],
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(self._calls, self._written_calls)
        ]
        self._written_calls += len(calls)
        self._calls = []
        return calls

    def _logprobs(self, tokens: list[ScoredToken]) -> dict[str, Any]:
        """Iterators are lists that are made as they are written."""
        if self._chat:
            return {"content": map(chat_token, tokens), "refusal": None}
        return {
            "tokens": (token_text(token.contents[0]) for token in tokens),
            "token_logprobs": (next(iter(token.logprobs), None) for token in tokens),
            "top_logprobs": map(likeliest, tokens) if self._request.top_count else None,
            "text_offset": (token.offset for token in tokens),
        }


class ResponseWriter:
    """Writes the answers to a request as JSON: of a chat or of completions, as one response or as
    chunks."""

    def __init__(self, request: AnswerRequest, model: dict[str, Any]):
        self._request, self._chat = request, isinstance(request, ChatRequest)
        self._choices = [ChoiceWriter(index, request) for index in range(request.answers)]
        self._with_usage = bool(request.stream_options and request.stream_options.include_usage)
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model["id"],
        }

    @property
    def _traces(self) -> list[Trace]:
        """Of the answers that have ended."""
        return [choice.trace for choice in self._choices if choice.trace]

    def add(self, piece: Piece) -> None:
        self._choices[piece.answer].add(piece)

    def complete(self) -> Generator[bytes]:
        """All answers, which have ended, as JSON. Only one of them is in memory as text."""
        yield as_json({**self._head, "usage": self._usage()})[:-1]
        yield b',"choices":'
        yield from json_list(choice.complete() for choice in self._choices)
        yield b',"speculative":'
        figures = map(self._figures, self._traces)
        yield from json_list(figures) if len(self._choices) > 1 else map(as_json, figures)
        yield b"}"

    def chunks(self, piece: Piece) -> bytes:
        """The server-sent events for a piece; there may be none."""
        return b"".join(b"data: %b\n\n" % as_json(chunk) for chunk in self._chunks(piece))

    def _chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        self.add(piece)
        choice = self._choices[piece.answer]
        for part in choice.parts():
            figures = choice.trace and part["finish_reason"] and self._figures(choice.trace)
            yield self._chunk(part) | ({"speculative": figures} if figures else {})
        if choice.trace and self._with_usage and len(self._traces) == len(self._choices):
            yield self._chunk() | {"usage": self._usage()}

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    def _figures(self, trace: Trace) -> dict[str, Any]:
        summary = summarize(trace)
        figures: dict[str, Any] = {
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
        if self._request.extension.trace:
            figures["trace"] = from_json(trace.to_json())
        return figures

    def _usage(self) -> dict[str, Any]:
        """The tokens of all prompts, each counted once, and of all answers."""
        traces = self._traces
        prompts = traces[:: self._request.n or 1]
        prompt = sum(trace.prompt_tokens for trace in prompts)
        reused = sum(trace.prompt_reused for trace in prompts)
        made = sum(len(trace.token_ids) for trace in traces)
        drafted = (token for trace in traces for round_ in trace.rounds for token in round_.drafted)
        predicted = [token.accepted for token in drafted if token.source == "prediction"]
        accepted = sum(predicted)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": reused},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": len(predicted) - accepted,
            },
        }


async def server_sent(
    writer: ResponseWriter, piece: Piece | None, pieces: AsyncIterator[Piece | None]
) -> AsyncIterator[bytes]:
    """The stream as server-sent events, `piece` the first. An error is sent as the last event.
    While no event comes, comments are sent, so that no proxy ends the stream."""
    try:
        while True:
            if piece is None:
                yield b": nothing new\n\n"
            elif len(piece.tokens) > MANY_TOKENS or isinstance(piece.event, Trace):
                yield await run_in_threadpool(writer.chunks, piece)
            else:
                yield writer.chunks(piece)
            piece = await anext(pieces)
    except StopAsyncIteration:
        yield b"data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, SpecdemoError):
            log.error("A request failed.", exc_info=error)
        yield b"data: %b\n\n" % bytes(refusal(error).body)


def json_list(items: Iterable[Any]) -> Iterator[bytes]:
    """A list as JSON, each item by itself."""
    separator = b"["
    for item in items:
        yield separator + as_json(item)
        separator = b","
    yield b"]"


def chat_token(token: ScoredToken) -> dict[str, Any]:
    """A token of a chat with its likeliest ones."""
    chosen, *others = (
        {"token": content.decode("utf-8", "replace"), "bytes": [*content], "logprob": logprob}
        for content, logprob in zip(token.contents, token.logprobs, strict=True)
    )
    return {**chosen, "top_logprobs": others}


def token_text(content: bytes) -> str:
    """A token's text; of a part of a character its bytes, which tell such tokens apart."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def likeliest(token: ScoredToken) -> dict[str, float] | None:
    """The likeliest tokens of a completion and the chosen one; None for a prompt's first token."""
    if not token.logprobs:
        return None
    chosen, *others = zip(map(token_text, token.contents), token.logprobs, strict=True)
    return dict([chosen, *reversed(others)])
