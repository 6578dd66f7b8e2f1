"""The limits of one visitor and of one request, and the counts of how requests ended.

How many requests run at once is not decided here: the session's scheduler queues them.
"""

from __future__ import annotations

import ipaddress
import math
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.metrics import Metrics, Record
from specdemo.settings import Settings
from specdemo.trace import Trace

if TYPE_CHECKING:
    import gradio

    from specdemo.session import Session


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server gives: characters of an instruction, tokens of an answer, requests of one
    visitor at once and a minute, requests at once of one network address, and seconds for a
    request, waiting included."""

    prompt_characters: int = 20_000
    new_tokens: int = 2000
    at_once: int = 2
    per_minute: int = 30
    of_address: int = 24
    seconds: float = 600.0


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser session or a program. `address` is empty where it tells nobody apart."""

    name: str = ""
    address: str = ""


def visitor_of(request: gradio.Request) -> Visitor:
    """The visitor behind a request. A Space's proxy reports the network address; an address of this
    machine is left out."""
    if "SPACE_ID" in os.environ:
        address = str(request.headers.get("x-forwarded-for", "")).split(",")[0].strip()
    else:
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
            recent = {name: times for name, times in self._started.items() if now - times[-1] < 60}
            self._started = recent
        times = self._started.setdefault(visitor.name, deque(maxlen=limits.per_minute))
        if len(times) == limits.per_minute and now - times[0] < 60:
            return (
                f"You have asked {limits.per_minute} questions within a minute, as many as one "
                f"visitor may; ask again in {math.ceil(60 - (now - times[0]))} seconds."
            )
        times.append(now)
        return ""


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
