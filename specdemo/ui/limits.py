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

    from specdemo.session import Session


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
    (`door.bounded_server`); one of this machine is left out."""
    address = str(request.client.host) if request.client else ""
    try:
        address = "" if ipaddress.ip_address(address).is_loopback else address
    except ValueError:
        address = ""
    return Visitor((request.session_hash or "")[:64] or f"address {address or 'here'}", address)


class Gate:
    """Counts the requests of each visitor and each address. Thread safe."""

    def __init__(self, metrics: Metrics, limits: Limits = LIMITS):
        self.limits = limits
        self._metrics = metrics
        self._lock = threading.Lock()
        self._names: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._started: dict[str, deque[float]] = {}

    @property
    def visitors(self) -> int:
        """Visitors that have a request."""
        with self._lock:
            return len(self._names)

    @contextmanager
    def request(self, visitor: Visitor) -> Iterator[None]:
        """One request of this visitor, while it lasts. Raises Busy when it is over a limit."""
        with self._lock:
            refusal = self._refusal(visitor)
            if refusal:
                self._metrics.requests.labels("answer", "refused").inc()
                raise Busy(refusal)
            self._names[visitor.name] += 1
            self._addresses[visitor.address] += 1
        try:
            yield
        finally:
            with self._lock:
                self._names[visitor.name] -= 1
                self._addresses[visitor.address] -= 1
                self._names, self._addresses = +self._names, +self._addresses

    def _refusal(self, visitor: Visitor) -> str:
        """Why this request is one too many, "" if it is not."""
        limits, now = self.limits, monotonic()
        if self._names[visitor.name] >= limits.at_once:
            return (
                f"You have {limits.at_once} questions at work already, as many as one visitor may "
                "have; wait for one to finish, or stop it."
            )
        if visitor.address and self._addresses[visitor.address] >= limits.of_address:
            return (
                f"{limits.of_address} questions from your network are at work already; "
                "try again in a moment."
            )
        if len(self._started) > 1000:  # names cost nothing to make up
            recent = {
                name: times
                for name, times in self._started.items()
                if times and now - times[-1] < 60
            }
            self._started = recent
        own = self._minute(f"visitor {visitor.name}", limits.per_minute)
        if _full(own, now):
            return (
                f"You have asked {limits.per_minute} questions within a minute, as many as one "
                f"visitor may; ask again in {math.ceil(60 - (now - own[0]))} seconds."
            )
        if visitor.address:  # a program can make up a new name for every question
            network = self._minute(f"address {visitor.address}", limits.of_address_per_minute)
            if _full(network, now):
                return (
                    f"{limits.of_address_per_minute} questions came from your network within a "
                    f"minute; ask again in {math.ceil(60 - (now - network[0]))} seconds."
                )
            network.append(now)
        own.append(now)
        return ""

    def _minute(self, name: str, most: int) -> deque[float]:
        """When the last `most` requests of this name began."""
        return self._started.setdefault(name, deque(maxlen=most))


def _full(times: deque[float], now: float) -> bool:
    return len(times) == times.maxlen and now - times[0] < 60


class LimitedSession:
    """A session within the limits of one request, which counts how the request ended. Attributes
    that are not here are the session's own."""

    def __init__(self, session: Session, metrics: Metrics, limits: Limits = LIMITS):
        self._session = session
        self._metrics = metrics
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def answer(self, instruction: str, settings: Settings, **options: Any) -> Iterator[Any]:
        """As `Session.answer`, but what it raises comes with the first event. Raises BadInput too
        for an instruction or an answer over the limits, RequestFailed when it took too long."""
        return self._limited(self._session.answer, instruction, settings, **options)

    def race(self, instruction: str, settings: Settings, **options: Any) -> Iterator[Any]:
        """As `Session.race`, in the same limits as `answer`."""
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
            events = start(instruction, settings, stop=stop, on_wait=waited, **options)
            with closing(events):
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
