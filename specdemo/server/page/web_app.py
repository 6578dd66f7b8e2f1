"""The web application of the page: Gradio's Blocks, the streams of its runs, and the files that the
browser loads."""

import gzip
import hashlib
import html
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import cache
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio
import gradio
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount

from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.machine.threads import ShortestFirst, merged
from specdemo.runs.display import SOURCES
from specdemo.runs.saved_run import from_json
from specdemo.runs.trace import Trace
from specdemo.server.application import application
from specdemo.server.metrics import announce
from specdemo.server.page import MAX_EVENTS, benchmark, events
from specdemo.server.page.background_download import BackgroundDownload
from specdemo.server.page.layout import IDEA, LOOKS, STATIC, TITLE, build, fill
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.routes import Ask, OpenRun, PageGuard
from specdemo.server.page.service import Service, Visitor, visitor_of
from specdemo.server.page.wording import recorded_name

RECORDED = STATIC / "recorded"  # races to watch before a question; tools/page_record.py makes them
KINDS = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".png": "image/png",
}
PLOTLY = "plotly.min.js"

PING = 1.0
"""Seconds without a message after which a stream has a comment: only what is sent shows that a
visitor has left, and races are repeated without a word."""

MAX_SESSIONS = 256
"""Browser sessions that Gradio keeps 0.2 MB each for; further ones make it forget the oldest."""

START = """<head><script>{
  const frame = requestAnimationFrame;
  window.requestAnimationFrame = (draw) =>
    window.specdemo?.race && String(draw).includes("performance.now()") ? 0 : frame(draw);
  const later = (done) => (document.hidden ? done() : frame(() => setTimeout(done)));
  window.specdemo = { painted: new Promise(later) };
}</script>"""
"""Gradio 6.31's loading screen leaves a loop running that asks for sixty frames a second, 7 % of a
core. This ends the loop once the page is there, and says when the first frame has been painted."""

GRADIO = re.compile(r'<script type="module" crossorigin src="([^"]*)"></script>')
PRELOADED = r"""<link rel="modulepreload" href="\1">
<script>window.specdemo.painted.then(() => import("\1"));</script>"""
"""Gradio's script, which takes a second or more of a phone, in place of GRADIO: begun before the
first frame, it would delay it."""

CARD = """<meta property="og:title" content="{title}">
<meta property="og:description" content="{idea}"><meta property="og:image" content="{image}">
<meta name="twitter:card" content="summary_large_image">"""
"""What a chat shows of a link to the page, in place of Gradio's own."""

FIRST = f'<p class="sd-first" role="status"><b>{TITLE}</b><br>{IDEA}<br>Loading the page.</p>'
"""What is shown while Gradio's scripts load."""

KEEP = {"Cache-Control": "public, max-age=31536000, immutable"}


def finish(app: FastAPI, service: Service) -> None:
    """End all that runs on the page, Gradio's heartbeats too."""
    service.close()
    _gradio(app).stop_event.set()


def _gradio(app: FastAPI) -> Any:
    """Gradio's own application, which is mounted last."""
    mount = app.routes[-1]
    assert isinstance(mount, Mount)
    return mount.app


class Sessions(dict[str, Any]):
    """Gradio's messages to each browser session, of MAX_SESSIONS; the oldest without an event under
    way is dropped. Gradio drops the oldest of 2000, whose answer may be running."""

    def __init__(self, queue: gradio.queueing.Queue):
        self._queue = queue

    def __setitem__(self, session: str, messages: object) -> None:
        if session not in self and len(self) >= MAX_SESSIONS:
            busy = {event.session_hash for event in self._queue.event_ids_to_events.values()}
            if idle := next((other for other in self if other not in busy), None):
                self.pop(idle)
                self._queue.pending_event_ids_session.pop(idle, None)
        super().__setitem__(session, messages)


class Assets:
    """The `files` by name, compressed by gzip, and the recorded `races` by file name, the first to
    be shown first. The `digest` is a part of every address, so that browsers may keep the files."""

    def __init__(self) -> None:
        paths = [path for path in STATIC.iterdir() if path.suffix in KINDS]
        files = {path.name: path.read_bytes() for path in paths}
        files["benchmark.json"] = json.dumps(benchmark.recorded()).encode()
        self.races: dict[str, Trace] = {}
        for path in sorted(RECORDED.glob("*.json")):
            self.races[path.name] = trace = from_json(path.read_text("utf-8"))
            files[path.name] = events.finished(trace, "opened").encode()
        everything = b"".join(files[name] for name in sorted(files))
        self.digest = hashlib.sha256(everything).hexdigest()[:12]
        self.files = {name: gzip.compress(content) for name, content in files.items()}

    @property
    def head(self) -> str:
        """Loads the scripts and styles while Gradio starts, whose own `head` adds them a second
        later; its `css` would put a prefix before every selector."""
        root = f"./page/{self.digest}/"
        recorded = [(name, recorded_name(trace)) for name, trace in self.races.items()]
        known = json.dumps({"races": recorded, "sources": SOURCES}).replace("<", "\\u003c")
        scripts = [name for name in self.files if name.endswith(".js")]
        links = [f'<link rel="modulepreload" href="{root}{name}">' for name in scripts]
        return f"""<meta name="description" content="{IDEA}">
<link rel="stylesheet" href="{root}style.css">{"".join(links)}
<script>Object.assign(window.specdemo, {{ known: {known},
  page: window.specdemo.painted.then(() => import("{root}main.js")) }});</script>"""


@cache
def plotly() -> bytes:
    """Plotly's script, compressed by gzip: 1.4 MB of 4.6."""
    from plotly.offline import get_plotlyjs

    return gzip.compress(get_plotlyjs().encode(), 6)


def sent(request: Request, packed: bytes, kind: str, **headers: str) -> Response:
    """A response with what is compressed by gzip, as it is if the request's Accept-Encoding allows
    that."""
    accepted = request.headers.get("accept-encoding", "")
    parts = [part.replace(" ", "").lower().partition(";q=") for part in accepted.split(",")]
    weights = {name: weight or "1" for name, _, weight in parts}
    headers["Vary"] = "Accept-Encoding"
    if weights.get("gzip", weights.get("*", "0")).strip("0."):
        headers["Content-Encoding"] = "gzip"
    else:
        packed = gzip.decompress(packed)
    return Response(packed, media_type=kind, headers=headers)


def page_app(
    service: Service,
    menu: ModelMenu,
    guard: PageGuard,
    max_new_tokens: int,
    download: BackgroundDownload | None,
) -> FastAPI:
    """The page with its endpoint; `max_new_tokens` is the first value of that setting. With a key,
    /metrics and the figures of /health need it."""

    async def unreadable(request: Request, error: Exception) -> Response:
        """Gradio's handlers raise these errors for a malformed request, before any work begins."""
        message = "This request cannot be read; GET /gradio_api/info says what the endpoints take."
        return JSONResponse({"detail": message}, 404 if isinstance(error, LookupError) else 400)

    blocks, router = build(service, menu, max_new_tokens, download), APIRouter()
    guard.blocks = blocks
    _add_runs(router, service, menu)
    app = application(service, guard, router)
    _add_files(app, menu)
    wrong = LookupError, TypeError, ValueError, AttributeError, RequestValidationError
    blocks.max_threads = 3 * MAX_EVENTS  # a run that waits holds a thread
    blocks.state_session_capacity = MAX_SESSIONS  # the least recently used is dropped first
    blocks.queue(max_size=2 * MAX_EVENTS, api_open=False)
    blocks._queue.pending_messages_per_session = Sessions(blocks._queue)
    # By default Gradio looks for new events a thousand times a second, which takes 6 % of a core.
    # The first token of a question waits for this interval, so it is not longer.
    blocks._queue.sleep_when_free = 0.005
    gradio.mount_gradio_app(
        app,
        blocks,
        path="/",
        app_kwargs={"exception_handlers": dict.fromkeys(wrong, unreadable)},
        show_error=False,
        enable_monitoring=False,
        mcp_server=False,
        **LOOKS,
    )
    return app


def _add_files(app: FastAPI, menu: ModelMenu) -> None:
    assets = Assets()
    head = assets.head

    def index(request: Request) -> Response:
        gradios = next(route.endpoint for route in _gradio(app).routes if route.path == "/")
        page = gradios(request, None)
        document = page.body.decode()
        # A link's values are there from the first moment: Run may be pressed, or something typed.
        if linked := menu.from_link(request.query_params):
            fill(page.context["config"], linked)
            document = page.template.render(page.context)
        image = f"{request.base_url}page/{assets.digest}/card.png"
        card = CARD.format(title=TITLE, idea=IDEA, image=html.escape(image))
        document = re.sub(r'<meta\s+(property="og:|name="twitter:)[^>]*>', "", document)
        # Plotly would put the address into its drawings, which are lost when it changes.
        document = re.sub(r'<base href="./"[^>]*>', "", document)
        document = GRADIO.sub(PRELOADED, document)
        # The styles come after Gradio's, which they change.
        document = document.replace("</head>", head + "</head>", 1)
        document = document.replace("<gradio-app", FIRST + "<gradio-app", 1)
        document = document.replace("<head>", START + card, 1)
        return sent(request, gzip.compress(document.encode(), 1), "text/html")

    def asset(request: Request) -> Response:
        name = request.path_params["file"]
        packed = plotly() if name == PLOTLY else assets.files.get(name)
        # Browsers keep a file for a year: that of another version must not come by this address.
        if packed is None or request.path_params["digest"] != assets.digest:
            return Response("There is no such file.", 404)
        kind = KINDS["." + name.rpartition(".")[2]]
        return sent(request, packed, kind, **KEEP)

    app.add_route("/", index)
    app.add_route("/page/{digest}/{file}", asset)


def _add_runs(router: APIRouter, service: Service, menu: ModelMenu) -> None:
    """Adds the routes of the page's scripts, which answer with the messages of `events`."""
    stops = WeakValueDictionary[str, Event]()  # of runs in progress, by tab
    readers, reading = anyio.CapacityLimiter(MAX_EVENTS), ShortestFirst(rest=1.0)

    def add_stream(path: str, kind: events.Kind) -> None:
        @router.post(path)
        async def run(ask: Ask, request: Request) -> Response:
            visitor, stop = visitor_of(request, ask.visitor), Event()
            messages = events.run(kind, service, menu, ask.values, stop)
            # A proxy may hold back other kinds of text until they are whole.
            headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
            sent = lines(visitor, stop, messages)
            return StreamingResponse(sent, media_type="text/event-stream", headers=headers)

    async def lines(visitor: Visitor, stop: Event, run: Iterator[str]) -> AsyncIterator[str]:
        stops.get(visitor.name, Event()).set()  # a tab's new run ends the one before
        stops[visitor.name] = stop
        try:
            # A refusal takes no thread. The visitor may leave, which ends the run.
            with service.request(visitor):
                async with aclosing(merged({stop: run}, ping=PING)) as messages:
                    async for text in messages:
                        yield ":\n\n" if text is None else f"data: {text}\n\n"
        except Busy as error:
            yield f"data: {events.message('error', str(error))}\n\n"

    add_stream("/race", events.race)
    add_stream("/drafts", events.drafts)
    add_stream("/benchmark", benchmark.measure)

    @router.post("/stop", status_code=204)
    async def stop(ask: Ask) -> None:
        stops.get(ask.visitor, Event()).set()

    @router.post("/open")
    async def open_run(ask: OpenRun, request: Request) -> Response:
        """The message of a saved run. It counts as a question of the visitor, and runs are read one
        at a time, with rests: the longest takes half a second of the processor."""

        def opened() -> tuple[str, int]:
            try:
                visitor = visitor_of(request, ask.visitor)
                with service.request(visitor), reading.turn(len(ask.run)):
                    return events.opened(ask.run), 200
            except Busy as error:
                return events.message("error", str(error)), error.http_status
            except BadInput as error:  # the message says so; browsers would log another status
                return events.message("error", str(error)), 200

        shown = await anyio.to_thread.run_sync(opened, limiter=readers)
        return Response(*shown, media_type="application/json")


def public_name(host: str, port: int) -> str:
    """Opens a tunnel for --share, prints its URL, returns its host name. Raises RequestFailed."""
    try:
        tunnel = gradio.networking.setup_tunnel(host, port, secrets.token_urlsafe(32), None, None)
    except Exception as error:  # from the download of the tunnel's program, or from its server
        raise RequestFailed(f"No public link could be made: {error}") from error
    name = str(urlsplit(tunnel).netloc)
    announce(f"Anybody can reach it for a week: https://{name}")
    return name
