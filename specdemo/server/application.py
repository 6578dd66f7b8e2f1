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


class Reports(Protocol):
    """What reports on models: a Host, or the replicas of one (`ray.ReplicaBackend`)."""

    async def health(self) -> dict[str, Any]: ...
    async def metrics(self) -> str: ...


REFUSED = HTTPException, RequestValidationError, SpecdemoError, Exception


def application(reports: Reports, guard: RequestGuard, router: APIRouter) -> FastAPI:
    """The application, with the guard in `state.guard`. With a key, /health gives only its status
    to requests without it."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException) and error.detail == "Not Found":  # by Starlette
            paths = app.openapi()["paths"].items()
            known = ", ".join(f"{verb.upper()} {path}" for path, verbs in paths for verb in verbs)
            route = f"{request.method} {request.url.path[:100]}"
            error.detail = f"There is no {route} here; there are {known}."
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
        health = await reports.health()
        shown = health if has_key(request, guard.key) else {"status": health["status"]}
        return JSONResponse(shown, 200 if health["status"] == "ready" else 503)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", dependencies=described)
    async def metrics() -> Response:
        return Response(await reports.metrics(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(router, dependencies=described)
    return app
