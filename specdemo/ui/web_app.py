"""The web application of the page: Gradio's Blocks, GET /health, GET /metrics."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
from prometheus_client import CONTENT_TYPE_LATEST

from specdemo.errors import RequestFailed, SpecdemoError
from specdemo.serving.request_guard import has_key, network_of
from specdemo.ui import MAX_EVENTS, events
from specdemo.ui.routes import OpenRun, PageGuard
from specdemo.ui.service import Visitor

if TYPE_CHECKING:
    import gradio
    from fastapi import FastAPI

    from specdemo.ui.service import Service

ON_SPACE = "SPACE_ID" in os.environ

MAX_SESSIONS = 256
"""Browser sessions that Gradio keeps 0.2 MB each for; further ones make it forget the oldest."""

STOP_LOOP = b"""<head><script>{
  const frame = requestAnimationFrame;
  window.requestAnimationFrame = (draw) =>
    window.specdemo?.race && String(draw).includes("performance.now()") ? 0 : frame(draw);
}</script>"""
"""Gradio 6.31's loading screen leaves a loop running that asks for sixty frames a second, 5 % of a
core. This ends the loop once the page is there. Gradio adds its own `head` too late for it."""


def finish(app: FastAPI, service: Service) -> None:
    """End all that runs on the page, Gradio's heartbeats too."""
    service.close()
    app.routes[-1].app.stop_event.set()


class Sessions(dict):
    """Gradio's messages to each browser session, of MAX_SESSIONS; the oldest without an event under
    way is dropped. Gradio drops the oldest of 2000, whose answer may be running."""

    def __init__(self, queue: gradio.queueing.Queue):
        self._queue = queue

    def __setitem__(self, session: str, messages: object) -> None:
        if session not in self and len(self) >= MAX_SESSIONS:
            busy = {event.session_hash for event in self._queue.event_ids_to_events.values()}
            idle = next((one for one in self if one not in busy), None)
            self.pop(idle, None)
            self._queue.pending_event_ids_session.pop(idle, None)
        super().__setitem__(session, messages)


def page_app(
    blocks: gradio.Blocks, looks: dict[str, Any], service: Service, guard: PageGuard
) -> FastAPI:
    """The page with its endpoint, GET /health (status 503 until the models are ready) and GET
    /metrics. With a key, /metrics and the figures of /health need it."""
    import gradio
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, Response

    def index(request: Request) -> Response:
        gradios = next(route.endpoint for route in app.routes[-1].app.routes if route.path == "/")
        return HTMLResponse(gradios(request, None).body.replace(b"<head>", STOP_LOOP, 1))

    async def health(request: Request) -> Response:
        found = service.health()
        shown = found if has_key(request, guard.key) else {"status": found["status"]}
        return JSONResponse(shown, 200 if found["status"] == "ready" else 503)

    async def figures(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def open_run(request: Request) -> Response:
        """The envelope of a saved run. It counts as a question of the visitor, and runs are read
        one at a time: the longest takes half a second of the processor."""
        asked = OpenRun.model_validate_json(await request.body())
        network = network_of(request.client.host if request.client else "")

        def envelope() -> tuple[str, int]:
            try:
                with service.gate.request(Visitor(asked.visitor, network)):
                    return events.opened(asked.run), 200
            except SpecdemoError as error:
                return events.failed(error), error.http_status

        shown = await anyio.to_thread.run_sync(envelope, limiter=reading)
        return Response(*shown, media_type="application/json")

    async def unreadable(request: Request, error: Exception) -> Response:
        """Gradio's handlers raise these errors for a malformed request, before any work begins."""
        message = "This request cannot be read; GET /gradio_api/info says what the endpoints take."
        return JSONResponse({"detail": message}, 404 if isinstance(error, LookupError) else 400)

    reading = anyio.CapacityLimiter(1)
    guard.attach(blocks, gradio.utils.get_upload_folder())
    app = FastAPI(middleware=guard.middleware(), openapi_url=None)
    for path, answer in {"/": index, "/health": health, "/metrics": figures}.items():
        app.add_route(path, answer)
    app.add_route("/open", open_run, methods=["POST"])
    wrong = LookupError, TypeError, ValueError, AttributeError, RequestValidationError
    blocks.max_threads = 3 * MAX_EVENTS  # a run that waits holds a thread
    blocks.state_session_capacity = MAX_SESSIONS  # the least recently used is dropped first
    blocks.queue(max_size=2 * MAX_EVENTS, api_open=False)
    blocks._queue.pending_messages_per_session = Sessions(blocks._queue)
    # By default Gradio looks for new events a thousand times a second, which takes 5 % of a core.
    # The first token of a question waits for this interval, so it is not longer.
    blocks._queue.sleep_when_free = 0.005
    # Without this a mounted page copies any file of this machine that a request names (launch()
    # sets it; mount_gradio_app of Gradio 6.31 does not).
    blocks.has_launched = True
    gradio.mount_gradio_app(
        app,
        blocks,
        path="/",
        app_kwargs={"exception_handlers": dict.fromkeys(wrong, unreadable)},
        show_error=False,
        enable_monitoring=False,
        mcp_server=False,
        **looks,
    )
    return app


def public_name(host: str, port: int) -> str:
    """Opens a tunnel for --share, prints its URL, returns its host name. Raises RequestFailed."""
    from gradio.networking import setup_tunnel

    try:
        name = urlsplit(setup_tunnel(host, port, secrets.token_urlsafe(32), None, None)).netloc
    except Exception as error:  # from the download of the tunnel's program, or from its server
        raise RequestFailed(f"No public link could be made: {error}") from error
    print(f"Anybody can reach it for a week: https://{name}", flush=True)
    return name
