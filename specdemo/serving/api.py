"""The API that OpenAI's clients speak, over any Backend: models, chat completions, completions.

Beside it /health, /metrics and /openapi.json. docs/reference/api.md is its description. Generates
nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specdemo.errors import RequestFailed
from specdemo.metrics import CONTENT_TYPE
from specdemo.serving.backend import Event, LocalBackend
from specdemo.serving.door import Door, error_body, has_key
from specdemo.serving.openapi import WITHOUT_KEY, document
from specdemo.serving.options import ServeOptions
from specdemo.serving.replicas import ReplicaBackend
from specdemo.serving.responses import (
    ApiError,
    Form,
    as_api_error,
    cancelled,
    require_finished,
    server_sent,
)
from specdemo.serving.schema import ChatRequest, CompletionRequest, Job, read

T = TypeVar("T")


class Api:
    """The endpoints. What a handler raises becomes a response; every response is counted.

    `key`, unless None, must come with every request, but for those to WITHOUT_KEY. `app` is the
    ASGI application behind its `door`: where a key is needed, a page of another site can do
    nothing, whatever name it reaches the server by.
    """

    def __init__(
        self, backend: LocalBackend | ReplicaBackend, options: ServeOptions, key: str | None
    ):
        self._backend, self._key, self._default_limit = backend, key, options.max_new_tokens
        self.door = Door(("*",) if key else options.allowed_hosts, options.allow_origins)
        self._registry = CollectorRegistry()
        self._responses = Counter(
            "specdemo_http_responses",
            "Responses by endpoint and status",
            ["path", "status"],
            registry=self._registry,
        )
        routes = [
            self._route("/health", self.health),
            self._route("/metrics", self.metrics),
            self._route("/openapi.json", self.openapi),
            self._route("/v1/models", self.models),
            self._route("/v1/models/{model:path}", self.models),
            self._route("/v1/chat/completions", partial(self.answer, kind=ChatRequest), "POST"),
            self._route("/v1/completions", partial(self.answer, kind=CompletionRequest), "POST"),
        ]
        handlers = {404: _unknown, 405: _unknown}
        middleware = self.door.middleware()
        self.app = Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)

    def _route(
        self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str = "GET"
    ) -> Route:
        async def handle(request: Request) -> Response:
            try:
                if path not in WITHOUT_KEY:
                    self._require_key(request)
                response = await handler(request)
            except Exception as error:
                told = as_api_error(error)
                response = JSONResponse(told.body, told.status, told.headers)
            self._responses.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, handle, methods=[method])

    def _require_key(self, request: Request) -> None:
        if has_key(request, self._key):
            return
        message = "Incorrect API key provided."
        if not request.headers.get("authorization"):
            message = (
                "You didn't provide an API key: send it in an Authorization header, as in "
                "'Authorization: Bearer YOUR_KEY'."
            )
        headers = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, message, code="invalid_api_key", headers=headers)

    async def metrics(self, request: Request) -> Response:
        text = await self._backend.metrics() + generate_latest(self._registry).decode()
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        """200 when requests can be answered, 503 when not, with what is known in JSON."""
        health = await self._backend.health()
        if not has_key(request, self._key):
            health = {"status": health["status"]}
        return JSONResponse(health, 200 if health["status"] == "ready" else 503)

    async def openapi(self, request: Request) -> Response:
        model = await self._backend.model()
        return JSONResponse(document(model, with_key=self._key is not None))

    async def models(self, request: Request) -> Response:
        """The one model, as a list or by its name."""
        model = await self._backend.model()
        if "model" not in request.path_params:
            return JSONResponse({"object": "list", "data": [model]})
        _require_model(model, request.path_params["model"])
        return JSONResponse(model)

    async def answer(
        self, request: Request, kind: type[ChatRequest | CompletionRequest]
    ) -> Response:
        asked = read(kind, await request.body())
        model = await self._backend.model()
        _require_model(model, asked.model)
        job = asked.job(self._default_limit, model["max_answer_tokens"])
        form = Form(asked, model)
        if not asked.stream:
            text, done = await unless_gone(request, self._whole(job))
            return JSONResponse(form.whole(text, done))
        events = self._backend.answer(job)
        try:
            # What is refused is refused before the stream begins.
            first = await unless_gone(request, anext(events))
        except BaseException:
            await events.aclose()
            raise
        pieces = server_sent(form, first, events)
        return StreamingResponse(
            pieces,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            media_type="text/event-stream",
            background=BackgroundTask(pieces.aclose),
        )

    async def _whole(self, job: Job, again: bool = True) -> tuple[str, Event]:
        """The whole answer. Nobody has seen any of it, so a failed one is made again, once."""
        text = ""
        try:
            async with aclosing(self._backend.answer(job)) as events:
                async for event in events:
                    text += event.text
            require_finished(event)
            return text, event
        except RequestFailed:
            if not again:
                raise
            return await self._whole(job, again=False)


async def _unknown(request: Request, error: HTTPException) -> Response:
    message = f"Invalid URL ({request.method} {request.url.path[:200]})"
    if error.status_code == 405:
        message = f"Not allowed to {request.method} on {request.url.path}."
    body = error_body(error.status_code, message)
    return JSONResponse(body, error.status_code, error.headers)


def _require_model(model: dict[str, Any], name: str) -> None:
    if name not in (model["id"], model["pair"]):
        raise ApiError(
            404,
            f"The model `{name[:100]}` does not exist here; this server has `{model['id']}`.",
            param="model",
            code="model_not_found",
        )


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; cancelled when the client leaves before. The body must have been read."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "The client closed its connection.")
    finally:
        await cancelled(working, leaving)
