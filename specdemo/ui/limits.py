"""The limits of one visitor and of one request, and the counts of how requests ended.

How many requests run at once is not decided here: the session's scheduler queues them.
"""

from __future__ import annotations

import ipaddress
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.metrics import Metrics, Record
from specdemo.settings import Settings, require_loaded
from specdemo.trace import Trace

if TYPE_CHECKING:
    import gradio

    from specdemo.answering import Answering


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server gives: characters of an instruction, tokens of an answer, requests of one
    visitor at once and a minute, and of one network address, seconds for a request, waiting
    included, and the numerics that are loaded."""

    prompt_characters: int = 20_000
    new_tokens: int = 2000
    at_once: int = 2
    per_minute: int = 30
    of_address: int = 24
    of_address_per_minute: int = 120
    seconds: float = 600.0
    numerics: tuple[str, ...] = ("exact", "fast")


LIMITS = Limits()


def limits_for(strangers: bool) -> Limits:
    """The limits of a server that strangers share, or do not: what makes it compile is its
    owner's."""
    return replace(LIMITS, numerics=("exact",)) if strangers else LIMITS


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser session or a program. `address` is empty where it tells nobody apart."""

    name: str = ""
    address: str = ""


def visitor_of(request: gradio.Request) -> Visitor:
    """The visitor behind a request. The address is the connection's, or what a trusted proxy says
    (`door.Server`); one of this machine is left out."""
    address = str(request.client.host) if request.client else ""
    try:
        address = "" if ipaddress.ip_address(address).is_loopback else address
    except ValueError:
        address = ""
    return Visitor((request.session_hash or "")[:64] or f"address {address or 'here'}", address)


SENTENCES = (
    ("You have {} questions", "You have asked {} questions"),
    ("{} questions from your network are", "{} questions came from your network"),
)
"""How the sentences on requests at work, and on those of a minute, begin: for a visitor, for an
address."""


class Gate:
    """Counts the requests of each visitor and each address. Thread safe."""

    def __init__(self, metrics: Metrics, limits: Limits = LIMITS):
        self.limits = limits
        self._metrics = metrics
        self._lock = threading.Lock()
        self._at_work: Counter[str] = Counter()
        self._started: dict[str, deque[float]] = {}

    @property
    def visitors(self) -> int:
        """Visitors that have a request."""
        with self._lock:
            return sum(who.startswith("visitor ") for who in self._at_work)

    @contextmanager
    def request(self, visitor: Visitor) -> Iterator[None]:
        """One request of this visitor, while it lasts. Raises Busy when it is over a limit."""
        names = {f"visitor {visitor.name}": 1}
        if visitor.address:  # a program can make up a new name for every question
            names[f"address {visitor.address}"] = 1
        with self._lock:
            refusal = self._refusal(list(names), monotonic())
            if refusal:
                self._metrics.requests.labels("answer", "refused").inc()
                raise Busy(refusal)
            self._at_work.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= Counter(names)

    def _refusal(self, names: list[str], now: float) -> str:
        """Why a request of these names is one too many; "" if it is not, which counts it."""
        limits, at_work, started = self.limits, self._at_work, self._started
        visitor = limits.at_once, limits.per_minute
        network = limits.of_address, limits.of_address_per_minute
        rules = list(zip(names, (visitor, network), SENTENCES, strict=False))
        for name, (most, _), (told, _) in rules:
            if at_work[name] >= most:
                return f"{told.format(most)} at work already; wait for one to finish, or stop it."
        if len(started) > 1000:  # names cost nothing to make up
            for name in [name for name, times in started.items() if now - times[-1] >= 60]:
                del started[name]
        for name, (_, most), (_, told) in rules:
            times = started.get(name, ())
            if len(times) == most and now - times[0] < 60:
                rest = math.ceil(60 - (now - times[0]))
                return f"{told.format(most)} within a minute; ask again in {rest} seconds."
        for name, (_, most), _ in rules:
            started.setdefault(name, deque(maxlen=most)).append(now)
        return ""


class LimitedSession:
    """A session within the limits of one request, which counts how the request ended. Attributes
    that are not here are the session's own."""

    def __init__(self, session: Answering, metrics: Metrics, limits: Limits = LIMITS):
        self._session = session
        self._metrics = metrics
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def answer(self, instruction: str, settings: Settings, **options: Any) -> Iterator[Any]:
        """As `Answering.answer`, but what it raises comes with the first event: BadInput too for an
        instruction or an answer over the limits, RequestFailed when it took too long."""
        return self._limited(self._session.answer, instruction, settings, **options)

    def race(self, instruction: str, settings: Settings, **options: Any) -> Iterator[Any]:
        """As `Answering.race`, in the same limits as `answer`."""
        return self._limited(self._session.race, instruction, settings, **options)

    def _limited(
        self,
        start: Callable[..., Iterator[Any]],
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        stop = stop or threading.Event()
        deadline = monotonic() + self._limits.seconds

        def late() -> bool:
            over = monotonic() > deadline
            if over:
                stop.set()
            return over

        def waited(waiting: Any) -> None:
            if not late() and on_wait is not None:
                on_wait(waiting)

        with Record(self._metrics) as record:
            self._check(instruction, settings)
            started = start(instruction, settings, stop=stop, on_wait=waited, **options)
            with closing(started) as events:
                for event in events:
                    if late() and isinstance(event, Trace):
                        record.end("timeout", event)
                        raise RequestFailed(
                            f"Stopped after {self._limits.seconds:g} seconds, as long as this "
                            "server gives to a question; ask for a shorter answer."
                        )
                    record.saw(event)
                    yield event

    def _check(self, instruction: str, settings: Settings) -> None:
        limits = self._limits
        require_loaded(settings, limits.numerics)
        if len(instruction) > limits.prompt_characters:
            raise BadInput(
                f"The question has {len(instruction)} characters; this server reads up to "
                f"{limits.prompt_characters}: shorten it."
            )
        if settings.max_new_tokens > limits.new_tokens:
            raise BadInput(
                f"Maximum tokens is {settings.max_new_tokens}; this server gives up to "
                f"{limits.new_tokens}.",
                "max_new_tokens",
            )
