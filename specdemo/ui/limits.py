"""The limits of one visitor and of one request, and the counts of how requests ended.

How many requests run at once is not decided here: the session's scheduler queues them.
"""

from __future__ import annotations

import ipaddress
import math
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from specdemo.answering import Answering, Question
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.metrics import Metrics, Record
from specdemo.settings import require_loaded
from specdemo.trace import Trace

if TYPE_CHECKING:
    import gradio


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
        limits = self.limits
        rules = [(f"visitor {visitor.name}", "from you", limits.at_once, limits.per_minute)]
        if visitor.address:  # a program can make up a new name for every question
            most = limits.of_address, limits.of_address_per_minute
            rules.append((f"address {visitor.address}", "from your network", *most))
        names = Counter(name for name, *_ in rules)
        with self._lock:
            try:
                self._admit(rules, monotonic())
            except Busy:
                self._metrics.requests.labels("answer", "refused").inc()
                raise
            self._at_work += names
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= names

    def _admit(self, rules: list[tuple[str, str, int, int]], now: float) -> None:
        """Count a request of these names, each with its most requests at once and a minute."""
        if len(self._started) > 1000:  # names cost nothing to make up
            recent = self._started.items()
            self._started = {name: times for name, times in recent if now - times[-1] < 60}
        for name, whose, at_once, per_minute in rules:
            if self._at_work[name] >= at_once:
                words = "are at work already; wait for one to finish, or stop it."
                raise Busy(f"{at_once} questions {whose} {words}")
            times = self._started.get(name, ())
            if len(times) == per_minute and now - times[0] < 60:
                rest = math.ceil(60 - (now - times[0]))
                words = f"came within a minute; ask again in {rest} seconds."
                raise Busy(f"{per_minute} questions {whose} {words}")
        for name, _, _, per_minute in rules:
            self._started.setdefault(name, deque(maxlen=per_minute)).append(now)


class LimitedSession(Answering):
    """A session within the limits of one request, which counts how the request ended. Attributes
    that are not here are the session's own.

    What it raises comes with the first event: BadInput too for an instruction or an answer over the
    limits, RequestFailed when it took too long."""

    def __init__(self, session: Answering, metrics: Metrics, limits: Limits = LIMITS):
        self._session, self._metrics, self._limits = session, metrics, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        """The session is not this request's to close."""

    def ask(self, question: Question) -> Iterator[Any]:
        stop = question.stop or threading.Event()
        late = threading.Event()

        def end() -> None:
            late.set()
            stop.set()

        timer = threading.Timer(self._limits.seconds, end)
        timer.daemon = True
        with Record(self._metrics) as record:
            self._check(question)
            timer.start()
            try:
                with closing(self._session.ask(replace(question, stop=stop))) as events:
                    for event in events:
                        if late.is_set() and isinstance(event, Trace):
                            record.end("timeout", event)
                            raise RequestFailed(
                                f"Stopped after {self._limits.seconds:g} seconds, as long as this "
                                "server gives to a question; ask for a shorter answer."
                            )
                        record.saw(event)
                        yield event
            finally:
                timer.cancel()

    def _check(self, question: Question) -> None:
        limits, length = self._limits, len(question.instruction)
        require_loaded(question.settings, limits.numerics)
        if length > limits.prompt_characters:
            most = f"this server reads up to {limits.prompt_characters}: shorten it."
            raise BadInput(f"The question has {length} characters; {most}")
        if (asked := question.settings.max_new_tokens) > limits.new_tokens:
            message = f"Maximum tokens is {asked}; this server gives up to {limits.new_tokens}."
            raise BadInput(message, "max_new_tokens")
