"""Starts the server: checks the options, puts the page up, and loads the models behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from specdemo import metrics
from specdemo.errors import BadInput
from specdemo.models.registry import chosen_pair
from specdemo.settings import ModelChoice, parse
from specdemo.ui.inputs import AUTO

if TYPE_CHECKING:
    from fastapi import FastAPI

    from specdemo.ui.service import Service

ON_SPACE = "SPACE_ID" in os.environ

SESSIONS = 256
"""Browser sessions whose state Gradio remembers, 0.2 MB each; the longest unused go first."""


def main(
    *,
    host: str,
    port: int,
    share: bool,
    pair: str | None,
    engine: str | None,
    device: str,
    draft_device: str,
    kv_cache: str,
    allow_own_pair: bool | None,
    max_new_tokens: int,
    visitors: int,
    cache_mb: int,
    exclusive: bool,
) -> None:
    """Serve until interrupted. The options are those of app.py. Raises SpecdemoError."""
    port = free_port(host, port)
    where = {"device": device, "draft_device": draft_device, "kv_cache": kv_cache}
    models = parse(ModelChoice, {"pair": pair, **where})
    chosen_pair(models, lambda field: "--" + field.replace("_", "-"), default=lambda: None)
    models = dataclasses.replace(models, pair=pair or AUTO)

    from starlette.middleware import Middleware

    from specdemo.ui import MAX_EVENTS, api, choice, page
    from specdemo.ui.preview import Preview
    from specdemo.ui.service import Service

    if engine:
        offer = choice.RemoteOffer(engine)
        service = Service(offer.first(), offer.open_session)
    else:
        local = host in ("127.0.0.1", "localhost", "::1") and not share and not ON_SPACE
        offer = choice.Offer(models, local if allow_own_pair is None else allow_own_pair)
        capacity = {"active": visitors, "cache_mb": cache_mb, "exclusive": exclusive}
        service = Service(models, partial(choice.open_session, **capacity))
    metrics.log_requests()
    blocks, looks = page.build(service, offer, max_new_tokens)
    blocks.queue(max_size=2 * MAX_EVENTS)
    app, url, _ = blocks.launch(
        max_threads=3 * MAX_EVENTS,  # a run that waits holds a thread
        state_session_capacity=SESSIONS,
        server_name=host,
        server_port=port,
        share=share,
        inbrowser=_has_desktop(),
        quiet=True,
        prevent_thread_lock=True,
        show_error=False,
        mcp_server=True,
        app_kwargs={"middleware": [Middleware(Preview)]},
        **looks,
    )
    add_monitoring(app, service)
    api.answer_in_json(blocks.mcp_server_obj)
    # Which pair suits the machine may take the network two seconds to tell: the page does not wait.
    threading.Thread(target=lambda: service.start(offer.first()), daemon=True).start()
    print(f"The page is up: {url}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        blocks.block_thread()


def add_monitoring(app: FastAPI, service: Service) -> None:
    """Adds GET /health (200 once the models are ready, else 503) and GET /metrics (Prometheus)."""
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def health(_: Request) -> Response:
        found = service.health()
        return JSONResponse(found, 200 if found["status"] == "ready" else 503)

    async def figures(_: Request) -> Response:
        return Response(service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    # Before the page's own routes, one of which takes every path.
    app.router.routes[:0] = [Route("/health", health), Route("/metrics", figures)]


def free_port(host: str, wanted: int) -> int:
    """`wanted`, or the next free port. Raises BadInput when none of fifty is free, or the host is
    not this machine's."""
    for port in range(wanted, min(wanted + 50, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return port
            except OSError as error:
                if error.errno not in (98, 48, 13):  # in use (Linux, macOS), or not allowed
                    raise BadInput(
                        f"--host {host!r} is not an address of this machine; try 127.0.0.1."
                    ) from error
    raise BadInput(f"--port {wanted}: no free port from {wanted} on; choose another.")


def _has_desktop() -> bool:
    """Whether a browser window can be seen here."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return screen and sys.stdout.isatty() and not ON_SPACE
