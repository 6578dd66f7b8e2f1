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
from specdemo.serving.backend import Description, Done, LocalBackend, Piece
from specdemo.serving.door import Door, has_key
from specdemo.serving.openapi import WITHOUT_KEY, document
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

    `default_limit` is how many tokens a chat answer may have when its request does not say; `key`,
    unless None, must come with every request, but for those to WITHOUT_KEY. `app` is the
    ASGI application, behind its `door`.
    """

    def __init__(
        self,
        backend: LocalBackend | ReplicaBackend,
        *,
        key: str | None,
        default_limit: int,
        door: Door,
    ):
        self._backend, self._key, self._default_limit = backend, key, default_limit
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
            self._route("/v1/models/{model:path}", self.model),
            self._route("/v1/chat/completions", partial(self.answer, kind=ChatRequest), "POST"),
            self._route("/v1/completions", partial(self.answer, kind=CompletionRequest), "POST"),
        ]
        handlers = {404: _unknown, 405: _unknown}
        self.app = Starlette(
            routes=routes, exception_handlers=handlers, middleware=door.middleware()
        )

    def _route(
        self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str = "GET"
    ) -> Route:
        async def handle(request: Request) -> Response:
            try:
                if path not in WITHOUT_KEY:
                    require_key(request, self._key)
                response = await handler(request)
            except Exception as error:
                told = as_api_error(error)
                response = JSONResponse(told.body, told.status, told.headers)
            self._responses.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, handle, methods=[method])

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
        description = await self._backend.describe()
        return JSONResponse(document(description, with_key=self._key is not None))

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(await self._backend.describe())]})

    async def model(self, request: Request) -> Response:
        description = await self._backend.describe()
        _require_model(description, request.path_params["model"])
        return JSONResponse(_model(description))

    async def answer(
        self, request: Request, kind: type[ChatRequest | CompletionRequest]
    ) -> Response:
        asked = read(kind, await request.body())
        description = await self._backend.describe()
        _require_model(description, asked.model)
        job = asked.job(self._default_limit, description.longest)
        form = Form(asked, description)
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

    async def _whole(self, job: Job, again: bool = True) -> tuple[str, Done]:
        """The whole answer. Nobody has seen any of it, so a failed one is made again, once."""
        text = ""
        try:
            async with aclosing(self._backend.answer(job)) as events:
                async for event in events:
                    if isinstance(event, Piece | Done):
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
    body = ApiError(error.status_code, message).body
    return JSONResponse(body, error.status_code, error.headers)


def _require_model(description: Description, name: str) -> None:
    if name not in (description.pair.target, description.pair.name):
        raise ApiError(
            404,
            f"The model `{name[:100]}` does not exist here; this server has `{description.model}`.",
            param="model",
            code="model_not_found",
        )


def _model(description: Description) -> dict[str, Any]:
    pair = description.pair
    return {
        "id": description.model,
        "object": "model",
        "created": description.created,
        "owned_by": "specdemo",
        "pair": pair.name,
        "draft": pair.draft,
        "target_revision": pair.target_revision,
        "draft_revision": pair.draft_revision,
        "context_length": description.context_limit,
        "max_answer_tokens": description.longest,
        "numerics_found": pair.numerics_found,
    }


def require_key(request: Request, key: str | None) -> None:
    """Raises ApiError for a request without the key."""
    if has_key(request, key):
        return
    message = "Incorrect API key provided."
    if not request.headers.get("authorization"):
        message = (
            "You didn't provide an API key: send it in an Authorization header, as in "
            "'Authorization: Bearer YOUR_KEY'."
        )
    headers = {"WWW-Authenticate": "Bearer"}
    raise ApiError(401, message, code="invalid_api_key", headers=headers)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; cancelled when the client leaves before. The body must have been read."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "The client closed its connection.")
    finally:
        await cancelled(working, leaving)
