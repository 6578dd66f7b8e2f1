"""The routes that the page's server answers, by method, path and body; everything else that Gradio
has, or will have, is refused before Gradio sees it."""

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import parse_qs

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from specdemo.errors import BadInput
from specdemo.options import wrong_parameter
from specdemo.server.request_guard import RequestGuard, parsed

if TYPE_CHECKING:
    import gradio


def _scalar(value: Any) -> Any:
    """Refuses lists and objects: Gradio fetches and copies what an object in a value names."""
    if isinstance(value, dict | list) or isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it must be text, a number, true, false or null")
    return value


Scalar = Annotated[Any, AfterValidator(_scalar)]
Id = Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]


class Body(BaseModel):
    """A body. Gradio gets these fields, written anew, and no others."""

    model_config = ConfigDict(strict=True)
    size: ClassVar[int] = 500_000  # bytes; the longest question has 240,000 with every escape


class GradioEvent(Body):
    """An event of the page, or a call of gradio_client."""

    data: list[Scalar]
    fn_index: int
    session_hash: Id
    trigger_id: int | None = None


class PositionalCall(Body):
    """A call of /generate; the arguments by position."""

    data: list[Scalar]
    session_hash: Id | None = None


class NamedCall(Body, RootModel[dict[str, Scalar]]):
    """A call of /generate; the arguments by name."""


class Reset(Body):
    event_id: Id


class Cancel(Reset):
    fn_index: int
    session_hash: Id


class Ask(Body):
    """The inputs of a run of the page's scripts, by name. `visitor` is a name that the scripts make
    up for their tab."""

    visitor: Id
    values: dict[Id, Scalar] = {}


class OpenRun(Body):
    """A saved run, to be drawn."""

    size: ClassVar[int] = 3_200_000
    run: str
    visitor: Id


READS = (
    "/",
    "/health",
    "/metrics",
    "/config",
    "/theme.css",
    "/favicon.ico",
    "/manifest.json",
    "/robots.txt",
    "/assets/{path}",
    "/static/{path}",
    "/gradio_api/info",
    "/gradio_api/app_id",
    "/gradio_api/heartbeat/{session_hash}",
    "/gradio_api/queue/data",
    "/gradio_api/call/generate/{event_id}",
    "/gradio_api/call/v2/generate/{event_id}",
    "/page/{digest}/{file}",
)
"""Of GET and HEAD."""

CALLS: dict[str, type[Body]] = {
    "/gradio_api/queue/join": GradioEvent,
    "/gradio_api/run/predict": GradioEvent,
    "/gradio_api/call/generate": PositionalCall,
    "/gradio_api/call/v2/generate": NamedCall,
    "/gradio_api/cancel": Cancel,
    "/gradio_api/reset": Reset,
    "/race": Ask,
    "/drafts": Ask,
    "/benchmark": Ask,
    "/stop": Ask,
    "/open": OpenRun,
}
"""Of POST, with the shape of the body."""

HEADERS = (
    "accept-encoding authorization content-type host if-modified-since if-none-match range "
    "x-forwarded-host x-forwarded-proto"
).split()
"""The headers that the application gets. From others Gradio would take another address for its own,
as it would from an X-Forwarded-Host that is none of the server's names."""


PARTS = {"path": r"(?!.*\.\.)[\w./-]+", "file": r"[\w-]{1,40}(\.min)?\.\w{2,4}"}


def pattern_of(route: str) -> re.Pattern[str]:
    part = r"\\{(\w+)\\}", lambda name: PARTS.get(name[1], r"[\w-]{1,64}")
    return re.compile(re.sub(*part, re.escape(route)), re.ASCII)


class PageGuard(RequestGuard):
    """The RequestGuard of the page: answers READS and CALLS. Figures need the key."""

    endless = ("/gradio_api/heartbeat/",)
    max_of_network = 256
    reads = [pattern_of(route) for route in READS]
    blocks: "gradio.Blocks"  # set by `page_app`

    def needs_key(self, path: str) -> bool:
        return path == "/metrics"

    def largest_body(self, scope: Scope) -> int:
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD") and any(read.fullmatch(path) for read in self.reads):
            self._require_event(path, scope["query_string"].decode("latin-1"))
            return 0
        if method == "POST" and path in CALLS:
            return CALLS[path].size
        raise HTTPException(404, "This server has no such address for this method.")

    def _require_event(self, path: str, query: str) -> None:
        """Raises HTTPException for the results of a call unknown to Gradio, which fails on it."""
        queue, known = self.blocks._queue, True
        if path == "/gradio_api/queue/data":
            session = parse_qs(query).get("session_hash", [""])[0]
            known = session in queue.pending_messages_per_session
        elif path.startswith("/gradio_api/call/"):
            event = path.rpartition("/")[2]
            ended = queue.pending_event_ids_session.values()
            known = event in queue.event_ids_to_events or any(event in ids for ids in ended)
        if not known:
            raise HTTPException(404, "There is no such event; it ended, or it never began.")

    def validate_request(self, scope: Scope, body: bytes) -> bytes:
        wanted = {name.encode() for name in HEADERS}
        host = Headers(scope=scope).get("x-forwarded-host")
        if host and not self.answers_to(host):
            wanted.remove(b"x-forwarded-host")
        scope["headers"] = [header for header in scope["headers"] if header[0] in wanted]
        if scope["method"] != "POST":
            if scope["path"] == "/gradio_api/info":
                # Without `page` everybody gets the server's address in the words of the first one.
                scope["query_string"] = b"page="
            return b""
        value = parsed(body)
        try:
            call = CALLS[scope["path"]].model_validate(value)
        except ValidationError as error:
            raise wrong_parameter(error.errors(), value) from None
        if isinstance(call, GradioEvent | PositionalCall):
            self._require_inputs(call)
        return call.model_dump_json(exclude_unset=True).encode()

    def _require_inputs(self, call: GradioEvent | PositionalCall) -> None:
        functions = self.blocks.fns
        if isinstance(call, GradioEvent):
            function = functions.get(call.fn_index)
        else:
            function = next(f for f in functions.values() if f.api_name == "generate")
        if function is None or function.fn is None:
            raise HTTPException(404, "There is no such endpoint; GET /gradio_api/info lists them.")
        required = sum(not block.skip_api for block in function.inputs)
        if len(call.data) not in (required, len(function.inputs)):
            message = f"data must be a list of {required} values; GET /gradio_api/info has them."
            raise BadInput(message, "data")
