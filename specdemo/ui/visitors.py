"""Who may ask how much: limits for each visitor and for a request, and counts of what became of requests.

Wraps a session so that everything that asks it, page, endpoints and benchmark, goes through the same gate. Runs no
model itself.
"""

from __future__ import annotations

import ipaddress
import math
import os
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdemo.trace import BaselineToken, Settings, Trace
from specdemo.metrics import Gauges, Metrics, Record

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting
    from specdemo.session import Session


class Refused(ValueError):
    """A request over a limit; the message is one sentence for the visitor."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server gives. `prompt_characters` of an instruction and `new_tokens` of an answer, `at_once` and
    `per_minute` requests of one visitor, `of_address` requests at once of one network address, `in_all` requests of
    everybody at work or waiting, and `seconds` for each answer, waiting included."""

    prompt_characters: int = 20_000
    new_tokens: int = 2000
    at_once: int = 2
    per_minute: int = 30
    of_address: int = 24
    in_all: int = 96
    seconds: float = 600.0


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser session or a program. `address` is empty where everybody has the same one."""

    name: str
    address: str = ""


ANYBODY = Visitor("")
"""Who asks from inside this process: no limits of a visitor hold."""


class Visitors:
    """The gate of one server: counts who is in, by the monotonic clock. Thread safe."""

    def __init__(self, limits: Limits = LIMITS, now: Callable[[], Gauges] = Gauges, clock=time.monotonic):
        self.limits = limits
        self._inside: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._begun: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._clock = clock
        self._now = now
        self.turns = Turns()
        self.metrics = Metrics(self.gauges)

    @property
    def inside(self) -> int:
        """Requests at work or waiting."""
        with self._lock:
            return self._inside.total()

    def gauges(self) -> Gauges:
        with self._lock:
            visitors = len(self._inside)
        now = self._now()
        return Gauges(visitors, now.active, now.waiting, now.restarts, now.blocks)

    @contextmanager
    def request(self, visitor: Visitor = ANYBODY) -> Iterator[None]:
        """A request of this visitor's, for as long as it takes. Raises Refused when it is over a limit."""
        try:
            self._enter(visitor)
        except Refused:
            self.metrics.requests.labels("answer", "refused").inc()
            raise
        try:
            yield
        finally:
            self._leave(visitor)

    def _enter(self, visitor: Visitor) -> None:
        limits = self.limits
        with self._lock:
            if self._inside.total() >= limits.in_all:
                raise Refused(f"{limits.in_all} questions are at work or waiting, as many as fit; try again in a minute.")
            if visitor.name:
                if self._inside[visitor.name] >= limits.at_once:
                    raise Refused(
                        f"You have {limits.at_once} questions at work already, as many as one visitor may have; "
                        "wait for one to finish, or stop it."
                    )
                if visitor.address and self._addresses[visitor.address] >= limits.of_address:
                    raise Refused(
                        f"{limits.of_address} questions from your network are at work already; try again in a moment."
                    )
                now = self._clock()
                begun = self._begun.setdefault(visitor.name, deque())
                while begun and now - begun[0] >= 60:
                    begun.popleft()
                if len(begun) >= limits.per_minute:
                    wait = math.ceil(60 - (now - begun[0]))
                    raise Refused(
                        f"You have asked {limits.per_minute} questions within a minute, as many as one visitor may; "
                        f"ask again in {wait} seconds."
                    )
                begun.append(now)
                self._forget(now)
            self._inside[visitor.name] += 1
            if visitor.address:
                self._addresses[visitor.address] += 1

    def _forget(self, now: float) -> None:
        """Drop visitors who have not asked for a minute, now and then: names cost nothing to make up."""
        if len(self._begun) > 1000:
            self._begun = {name: begun for name, begun in self._begun.items() if begun and now - begun[-1] < 60}

    def _leave(self, visitor: Visitor) -> None:
        with self._lock:
            for counter, key in ((self._inside, visitor.name), (self._addresses, visitor.address)):
                if key in counter:
                    counter[key] -= 1
                    if counter[key] <= 0:
                        del counter[key]


class Turns:
    """A queue for one after the other. Thread safe."""

    def __init__(self):
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    def wait(self, who: object, stop: threading.Event, every: float = 1.0) -> Iterator[int]:
        """Yields how many are ahead, at once and about `every` seconds, until nobody is or `stop` is set."""
        with self._changed:
            if who not in self._line:
                self._line.append(who)
        while True:
            with self._changed:
                ahead = self._line.index(who) if who in self._line else 0
            if not ahead or stop.is_set():
                return
            yield ahead
            with self._changed:
                if self._line and self._line[0] is not who:
                    self._changed.wait(every)

    def leave(self, who: object) -> None:
        with self._changed:
            if who in self._line:
                self._line.remove(who)
                self._changed.notify_all()


class Watched:
    """A session with the server's limits and counters around it; everything else is the session's own."""

    def __init__(self, session: Session, visitors: Visitors):
        self._session = session
        self._visitors = visitors
        self.request_id = uuid.uuid4().hex[:8]

    def turn(self, stop: threading.Event) -> Iterator[int]:
        """Where comparisons run one at a time: how many are ahead, until this one's turn has come. Else nothing."""
        if getattr(self._session, "exclusive", False):
            yield from self._visitors.turns.wait(self, stop)

    def leave(self) -> None:
        """The request is over, and with it its turn."""
        self._visitors.turns.leave(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        certify: bool = True,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[Any]:
        """As `Session.answer`, within the limits. Raises Refused when the question or its answer would be too long."""
        limits = self._visitors.limits
        if len(instruction) > limits.prompt_characters:
            raise Refused(
                f"The question has {len(instruction)} characters; this server reads up to {limits.prompt_characters}: "
                "shorten it."
            )
        if settings.max_new_tokens > limits.new_tokens:
            raise Refused(f"Maximum tokens is {settings.max_new_tokens}; this server gives up to {limits.new_tokens}.")
        stop = stop or threading.Event()
        try:
            events = self._session.answer(instruction, settings, stop=stop, certify=certify, on_wait=on_wait)
        except ValueError:
            self._visitors.metrics.requests.labels("answer", "refused").inc()
            raise
        return self._count(events, "answer", stop)

    def baseline(
        self,
        trace: Trace,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[Any]:
        """As `Session.baseline`, within the limits."""
        stop = stop or threading.Event()
        return self._count(self._session.baseline(trace, stop=stop, on_wait=on_wait), "baseline", stop)

    def _count(self, events: Iterator[Any], kind: str, stop: threading.Event) -> Iterator[Any]:
        record = Record(self._visitors.metrics, kind, self.request_id)
        seconds = self._visitors.limits.seconds
        late = threading.Event()

        def over() -> None:
            late.set()
            stop.set()

        timer = threading.Timer(seconds, over)
        timer.daemon = True
        timer.start()
        trace = None
        try:
            for event in events:
                if isinstance(event, Trace):
                    trace = event
                elif isinstance(event, BaselineToken):
                    record.added(1)
                else:
                    record.added(len(event.tokens))
                    record.drafted(len(event.drafted), event.accepted)
                if late.is_set() and trace is not None:
                    break
                yield event
            if late.is_set():
                record.end("timeout", trace)
                raise Refused(
                    f"Stopped after {seconds:g} seconds, as long as this server gives to a question; "
                    "ask for a shorter answer, or again when fewer are here."
                )
            if trace is not None:
                stopped = stop.is_set() and kind == "baseline"
                record.end("cancelled" if stopped else trace.finish_reason, trace)
        except Refused:
            raise
        except Exception as error:
            record.end("refused" if type(error).__name__ == "RequestError" else "error", trace, error)
            raise
        finally:
            timer.cancel()
            events.close()
            record.end("cancelled", trace)


def visitor_now() -> Visitor:
    """Who the request being handled belongs to, by Gradio's account of it; ANYBODY outside of one."""
    context = sys.modules.get("gradio.context")
    request = context.LocalContext.request.get(None) if context else None
    if request is None:
        return ANYBODY
    return visitor_of(getattr(request, "session_hash", None), _address(request))


def visitor_of(session: str | None, address: str) -> Visitor:
    """The visitor of a browser session at a network address; an address of this machine tells nobody apart."""
    try:
        if ipaddress.ip_address(address).is_loopback:
            address = ""
    except ValueError:
        address = ""
    name = (session or "")[:64]
    return Visitor(name or f"address {address or 'here'}", address)


def _address(request: Any) -> str:
    """The address that a request came from: as the proxy says on a Space, where nobody else can have set it."""
    try:
        if "SPACE_ID" in os.environ:
            return str(request.headers.get("x-forwarded-for", "")).split(",")[0].strip()
        return str(request.client.host)
    except AttributeError:
        return ""
