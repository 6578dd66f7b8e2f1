"""GET /health and GET /metrics beside the page, for monitors. Says nothing of what visitors wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specdemo.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from fastapi import FastAPI

    from specdemo.ui.service import Service


def mount(app: FastAPI, service: Service) -> None:
    """Adds both addresses to the page's server. /health answers 200 once the models are ready, 503 before."""

    async def health(_: Request) -> Response:
        told = service.health()
        return JSONResponse(told, 200 if told["status"] == "ready" else 503)

    async def metrics(_: Request) -> Response:
        return Response(service.visitors.metrics.text(), media_type=CONTENT_TYPE)

    # Before the page's own routes, one of which takes every path.
    app.router.routes[:0] = [Route("/health", health), Route("/metrics", metrics)]
