"""`specdemo page`, which `app.py` is too: its options, and the server, which loads the models while
it serves the page."""

from __future__ import annotations

import gc
import os
import secrets
import tempfile
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import click
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo import metrics
from specdemo.cli import CONTEXT, option_name, options_of
from specdemo.errors import RequestFailed
from specdemo.models.registry import chosen_pair
from specdemo.serving.options import Port, ServerOptions, key_from_environment
from specdemo.serving.request_guard import PRIVATE_NETWORKS, Server, bound_socket, has_key, url_of
from specdemo.settings import CONFIG, Line, ModelChoice, Whole, option
from specdemo.ui import MAX_EVENTS, choice
from specdemo.ui.routes import PageGuard
from specdemo.verdict import ENOUGH_SECONDS

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


@dataclass(frozen=True, slots=True, config=CONFIG)
class PageOptions(ServerOptions):
    no_fetch: bool = option(
        False, "answer with a pair that is here; without this a Dolly pair is fetched meanwhile"
    )
    host: Line = option("0.0.0.0" if ON_SPACE else "127.0.0.1", "address to listen on")
    port: Port = option(7860, "port to listen on")
    share: bool = option(False, "also print a public link through Gradio's tunnel")
    trusted_proxy: tuple[str, ...] = option(
        (),
        "a proxy in front, whose X-Forwarded-For says who asks",
        metavar="ADDRESS",
        unset="a Space's own",
    )
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = option(
        20, "how long answers that have begun may take to finish when the server is stopped"
    )
    visitors: Annotated[Whole, Field(ge=1, le=64)] = option(
        16, "requests that share the models at once; more wait"
    )
    race_seconds: Annotated[float, Field(ge=0, le=60)] = option(
        ENOUGH_SECONDS, "a race of fewer seconds is repeated until it has so many; 0: raced once"
    )
    max_new_tokens: Annotated[Whole, Field(ge=1, le=2000)] = option(
        100, "where the page's setting of that name starts"
    )


@click.command(context_settings=CONTEXT)
@options_of(PageOptions, "options")
def page(options: PageOptions) -> None:
    """Serve the page: a question, both runs against the clock, the verdict."""
    listening = bound_socket(options.host, options.port)
    chosen_pair(options, partial(option_name, ModelChoice), default=lambda: None)

    from huggingface_hub import constants

    from specdemo.ui.service import Limits, Service

    first = ModelChoice(**{one.name: getattr(options, one.name) for one in fields(ModelChoice)})
    if not (first.pair or first.target):
        first = replace(first, pair=choice.AUTO)
    capacity = {"cache_mb": options.cache_mb, "learn": options.learn, "active": options.visitors}
    offer = choice.Offer(first, options.strangers, **capacity)
    limits = Limits(race_seconds=options.race_seconds, fast_numerics=not options.strangers)
    service = Service(offer.first, offer.open_session, limits, offer.fetch)
    metrics.log_requests()
    service.start()

    gc.disable()  # garbage collections take 0.4 s of the 2.6 s in which Gradio is imported
    from specdemo.ui.arrival import Arrival
    from specdemo.ui.page import build

    gc.enable()
    arrival = None
    if offer.later and not options.no_fetch and not constants.is_offline_mode():
        arrival = Arrival(service, offer)
        arrival.start()

    with tempfile.TemporaryDirectory(prefix="specdemo-page-") as files:
        os.environ["GRADIO_TEMP_DIR"] = files
        blocks, looks = build(service, offer, options.max_new_tokens, arrival)
        names, key = (options.host, *options.allowed_host), key_from_environment()
        guard = PageGuard(names, options.allow_origin, key)
        app = page_app(blocks, looks, service, guard)
        if options.share:
            guard.hosts.add(public_name(options.host, options.port))
        print(f"The page is up: {url_of(options.host, options.port)}/", flush=True)

        proxies = ",".join(options.trusted_proxy) or (PRIVATE_NETWORKS if ON_SPACE else "")
        ends = {"trusted_proxies": proxies, "finish": partial(finish, app, service)}
        Server(app, guard, options.drain_seconds, **ends).run([listening])


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

    async def unreadable(request: Request, error: Exception) -> Response:
        """Gradio's handlers raise these errors for a malformed request, before any work begins."""
        message = "This request cannot be read; GET /gradio_api/info says what the endpoints take."
        return JSONResponse({"detail": message}, 404 if isinstance(error, LookupError) else 400)

    guard.attach(blocks, gradio.utils.get_upload_folder())
    app = FastAPI(middleware=guard.middleware(), openapi_url=None)
    for path, answer in {"/": index, "/health": health, "/metrics": figures}.items():
        app.add_route(path, answer)
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
