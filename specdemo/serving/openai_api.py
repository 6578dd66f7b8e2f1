"""The API that OpenAI's clients speak, over any Backend: models, chat completions, completions, streamed and not.

Beside it `/health`, `/metrics`, and the endpoints of `native` for the page. Generates nothing itself.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from specdemo.serving import native
from specdemo.serving.backend import Backend
from specdemo.serving.generation import Description, Done, Event, Interrupted, Progress, Request
from specdemo.serving.schema import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatRequest,
    CommonRequest,
    Completion,
    CompletionRequest,
    Model,
    ModelList,
    Speculative,
    TextChoice,
    Usage,
    read,
)
from specdemo.serving.web import (
    ApiError,
    ClientGone,
    LineStream,
    as_api_error,
    body_of,
    compact,
    guarded,
    unless_gone,
)

log = logging.getLogger(__name__)

SSE = "text/event-stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def create_app(backend: Backend, *, key: str | None, default_limit: int, request_ids: bool = True) -> Starlette:
    """The ASGI application. `default_limit` is how many tokens a chat answer may have when its request does not say;
    `key`, unless None, must come with every request but those to /health and /metrics. `request_ids` says that responses
    get an x-request-id here, rather than by a proxy in front."""
    registry = CollectorRegistry()
    responses = Counter("specdemo_http_responses", "Responses by endpoint and status", ["path", "status"],
                        registry=registry)  # fmt: skip
    paths: set[str] = set()

    def count(path: str, status: int) -> None:
        # Paths of strangers must not become labels without end.
        responses.labels(path if path in paths else "other", str(status)).inc()

    api = Endpoints(backend, default_limit)

    async def metrics(request: HttpRequest) -> Response:
        return PlainTextResponse(await backend.metrics() + generate_latest(registry).decode(), media_type=PROMETHEUS)

    def route(path: str, handler, method: str, *, open_to_all: bool = False) -> Route:
        paths.add(path)
        return Route(path, guarded(handler, None if open_to_all else key, count, request_ids), methods=[method])

    routes = [
        route("/health", api.health, "GET", open_to_all=True),
        route("/metrics", metrics, "GET", open_to_all=True),
        route("/v1/models", api.models, "GET"),
        route("/v1/models/{model:path}", api.model, "GET"),
        route("/v1/chat/completions", api.chat, "POST"),
        route("/v1/completions", api.completions, "POST"),
        *(route(path, handler, method) for path, handler, method in native.endpoints(backend)),
    ]

    async def unknown(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            message = f"Not allowed to {request.method} on {request.url.path}."
        else:
            message = f"Invalid URL ({request.method} {request.url.path[:200]})"
        return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()

    return Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})


class Endpoints:
    """The handlers; each raises what `guarded` turns into a response."""

    def __init__(self, backend: Backend, default_limit: int):
        self._backend = backend
        self._default_limit = default_limit

    async def health(self, request: HttpRequest) -> Response:
        """200 when requests can be answered, 503 when not, with what is known in JSON."""
        health = await self._backend.health()
        return JSONResponse(health, 200 if health["status"] == "ready" else 503)

    async def models(self, request: HttpRequest) -> Response:
        description = await self._backend.describe()
        return JSONResponse(ModelList(data=[_model(description)]).model_dump())

    async def model(self, request: HttpRequest) -> Response:
        description = await self._backend.describe()
        _require_model(description, request.path_params["model"])
        return JSONResponse(_model(description).model_dump())

    async def chat(self, request: HttpRequest) -> Response:
        return await self._answer(request, ChatRequest, ChatForm)

    async def completions(self, request: HttpRequest) -> Response:
        return await self._answer(request, CompletionRequest, TextForm)

    async def _answer(self, request: HttpRequest, kind: type[CommonRequest], form_of: type[Form]) -> Response:
        asked = read(kind, await body_of(request))
        description = await self._backend.describe()
        _require_model(description, asked.model)
        job = asked.request(self._default_limit, description.longest)
        form = form_of(asked, description)
        if not asked.stream:
            text, done = await unless_gone(request, self._whole(job))
            return JSONResponse(form.whole(text, done))
        events = self._backend.generate(job)
        try:
            first = await unless_gone(request, anext(events))  # what is refused is refused before the stream begins
        except BaseException:
            await events.aclose()
            raise
        return LineStream(_server_sent(form, first, events), SSE)

    async def _whole(self, job: Request) -> tuple[str, Done]:
        """The whole answer. Nobody has seen any of it, so one that was interrupted is made anew, once."""
        try:
            return await self._once(job)
        except Interrupted:
            return await self._once(job)

    async def _once(self, job: Request) -> tuple[str, Done]:
        text = []
        async with aclosing(self._backend.generate(job)) as events:
            async for batch in events:
                text.append(_text_of(batch))
                if isinstance(batch[-1], Done):
                    _require_finished(batch[-1])
                    return "".join(text), batch[-1]
        raise Interrupted("The answer ended without an end; this is a fault of the server.")


class Form:
    """How one kind of answer is written as JSON. `prefix` begins its ids, `chunk` names its streamed pieces."""

    prefix = ""
    chunk = ""

    def __init__(self, asked: CommonRequest, description: Description):
        self._asked = asked
        self._usage = asked.include_usage
        self._trace = asked.with_trace
        self.head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "object": self.chunk,
            "created": int(time.time()),
            "model": description.model,
            "system_fingerprint": _fingerprint(description),
        }

    def opening(self) -> dict[str, Any] | None:
        """The event before any text, if there is one."""
        return None

    def piece(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def choice(self, reason: str) -> dict[str, Any]:
        """The choice of the event that ends the answer."""
        raise NotImplementedError

    def event(self, choice: dict[str, Any]) -> dict[str, Any]:
        nothing = {"usage": None} if self._usage else {}
        return {**self.head, "choices": [choice], **nothing}

    def ending(self, done: Done) -> list[dict[str, Any]]:
        """The events after all text."""
        last = self.event(self.choice(done.reason))
        last["speculative"] = Speculative.of(done.trace, whole=self._trace).json_object()
        if not self._usage:
            return [last]
        usage = {**self.head, "choices": [], "usage": Usage.of(done.trace).model_dump()}
        return [last, {**usage, "speculative": Speculative.of(done.trace, whole=False).json_object()}]

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The answer without streaming."""
        raise NotImplementedError

    def _whole(self, kind: type[ChatCompletion] | type[Completion], choice: Any, done: Done) -> dict[str, Any]:
        head = {name: value for name, value in self.head.items() if name != "object"}
        speculative = Speculative.of(done.trace, whole=self._trace)
        answer = kind(**head, choices=[choice], usage=Usage.of(done.trace), speculative=speculative)
        return {**answer.model_dump(), "speculative": speculative.json_object()}


class ChatForm(Form):
    prefix, chunk = "chatcmpl", "chat.completion.chunk"

    def opening(self) -> dict[str, Any]:
        return self.event(self._choice({"role": "assistant", "content": ""}))

    def piece(self, text: str) -> dict[str, Any]:
        return self.event(self._choice({"content": text}))

    def choice(self, reason: str) -> dict[str, Any]:
        return self._choice({}, reason)

    @staticmethod
    def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        choice = ChatChoice(message=AnswerMessage(content=text), finish_reason=done.reason)
        return self._whole(ChatCompletion, choice, done)


class TextForm(Form):
    prefix, chunk = "cmpl", "text_completion"

    def piece(self, text: str) -> dict[str, Any]:
        return self.event(self._choice(text))

    def choice(self, reason: str) -> dict[str, Any]:
        return self._choice("", reason)

    @staticmethod
    def _choice(text: str, reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        return self._whole(Completion, TextChoice(text=text, finish_reason=done.reason), done)


async def _server_sent(form: Form, first: list[Event], events: AsyncIterator[list[Event]]) -> AsyncIterator[bytes]:
    """The stream as server-sent events. An error in the middle is one too, and then the stream ends."""
    try:
        async with aclosing(events):
            if (opening := form.opening()) is not None:
                yield _event(opening)
            batch = first
            while True:
                if text := _text_of(batch):
                    yield _event(form.piece(text))
                if isinstance(batch[-1], Done):
                    _require_finished(batch[-1])
                    for last in form.ending(batch[-1]):
                        yield _event(last)
                    break
                try:
                    batch = await anext(events)
                except StopAsyncIteration:
                    raise Interrupted("The answer ended without an end; this is a fault of the server.") from None
        yield b"data: [DONE]\n\n"
    except (ClientGone, GeneratorExit):
        raise
    except Exception as error:
        yield _event(as_api_error(error).body.model_dump())


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {compact(data)}\n\n".encode()


def _text_of(batch: list[Event]) -> str:
    return "".join(event.text for event in batch if isinstance(event, Progress | Done))


def _require_finished(done: Done) -> None:
    if done.reason == "cancelled":
        raise Interrupted("The answer was cut off: the server is being stopped.")


def _require_model(description: Description, name: str) -> None:
    if not description.answers_to(name):
        raise ApiError(404, f"The model `{name[:100]}` does not exist here; this server has `{description.model}`.",
                       param="model", code="model_not_found")  # fmt: skip


def _model(description: Description) -> Model:
    pair = description.pair
    return Model(
        id=description.model,
        created=description.created,
        pair=pair.name,
        draft=pair.draft,
        target_revision=pair.target_revision,
        draft_revision=pair.draft_revision,
        context_length=description.context_limit,
        max_answer_tokens=description.longest,
    )


def _fingerprint(description: Description) -> str | None:
    """Changes when the weights do: the same seed then gives another answer."""
    revision = description.pair.target_revision
    return f"fp_{hashlib.sha256(revision.encode()).hexdigest()[:12]}" if revision else None
