"""The web application of both servers, the page's and the API's: /health, /metrics and the server's
routes, behind a RequestGuard."""

from typing import Any, Protocol

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from specdemo import __version__
from specdemo.errors import SpecdemoError
from specdemo.server.request_guard import RequestGuard, has_key, refusal

INSTEAD = {
    "/v1/responses": "Use POST /v1/chat/completions, with messages in place of input.",
    "/v1/messages": "Use POST /v1/chat/completions, in OpenAI's format.",
    "/v1/embeddings": "This model writes text; run an embedding model on another server.",
    "/infill": "Use POST /v1/completions, with prompt and suffix.",
    "/completion": "Use POST /v1/completions.",
    "/api/chat": "Use POST /v1/chat/completions.",
    "/api/generate": "Use POST /v1/completions.",
}
"""Addresses of other services, and what to use here."""


def unknown_address(method: str, path: str, paths: dict[str, Any]) -> str:
    """The sentence about an address that is none of the `paths` of the OpenAPI schema."""
    hint = INSTEAD.get(path.rstrip("/"), "")
    if f"/v1{path}" in paths:
        hint = "Let the client's base URL end with /v1."
    known = [f"{verb.upper()} {name}" for name, verbs in paths.items() for verb in verbs]
    return " ".join([f"There is no {method} {path[:100]} here.", hint, f"{', '.join(known)}."])


class Reports(Protocol):
    """What reports on models: a Host, or the replicas of one (`ray.ReplicaBackend`)."""

    async def health(self) -> dict[str, Any]: ...
    async def metrics(self) -> str: ...


REFUSED = HTTPException, RequestValidationError, SpecdemoError, Exception


def application(host: Reports, guard: RequestGuard, router: APIRouter) -> FastAPI:
    """The application, with the guard in `state.guard`. With a key, /health gives only its status
    to requests without it."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException) and error.detail == "Not Found":  # by Starlette
            paths = app.openapi()["paths"]
            error.detail = unknown_address(request.method, request.url.path, paths)
        return refusal(error)

    app = FastAPI(
        title="specdemo",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        middleware=guard.middleware(),
        exception_handlers=dict.fromkeys(REFUSED, refused),
    )
    app.state.guard = guard
    described = [Depends(HTTPBearer(auto_error=False))] if guard.key else []  # in /openapi.json

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(request: Request) -> Response:
        health = await host.health()
        shown = health if has_key(request, guard.key) else {"status": health["status"]}
        return JSONResponse(shown, 200 if health["status"] == "ready" else 503)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", dependencies=described)
    async def metrics() -> Response:
        return Response(await host.metrics(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(router, dependencies=described)
    return app
