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
SHARED_LIMITS = Limits(numerics=("exact",))
"""Of a server that strangers share: what makes it compile is its owner's."""


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
        self.limits, self._refused = limits, metrics.requests.labels("answer", "refused")
        self._lock = threading.Lock()
        self._at_work: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], deque[float]] = {}

    @property
    def visitors(self) -> int:
        """Visitors that have a request."""
        with self._lock:
            return sum(whose == "you" for whose, _ in self._at_work)

    @contextmanager
    def request(self, visitor: Visitor) -> Iterator[None]:
        """One request of this visitor, while it lasts. Raises Busy when it is over a limit."""
        limits, now = self.limits, monotonic()
        rules = {("you", visitor.name): (limits.at_once, limits.per_minute)}
        if visitor.address:  # a program can make up a new name for every question
            most = limits.of_address, limits.of_address_per_minute
            rules["your network", visitor.address] = most
        with self._lock:
            for name, most in rules.items():
                if refusal := self._refusal(name, *most, now):
                    self._refused.inc()
                    raise Busy(refusal)
            for name, (_, per_minute) in rules.items():
                self._started.setdefault(name, deque(maxlen=per_minute)).append(now)
            self._at_work.update(rules.keys())
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= Counter(rules.keys())
                if len(self._started) > 1000:  # names cost nothing to make up
                    seen = self._started.items()
                    self._started = {name: times for name, times in seen if now - times[-1] < 60}

    def _refusal(self, name: tuple[str, str], at_once: int, per_minute: int, now: float) -> str:
        times = self._started.get(name, ())
        if self._at_work[name] >= at_once:
            words = f"{at_once} questions from {name[0]} are at work already"
            return f"{words}; wait for one to finish, or stop it."
        if len(times) == per_minute and now - times[0] < 60:
            words = f"{per_minute} questions from {name[0]} came within a minute"
            return f"{words}; ask again in {math.ceil(60 - (now - times[0]))} seconds."
        return ""


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
        limits, settings = self._limits, question.settings
        stop = question.stop or threading.Event()
        timer = threading.Timer(limits.seconds, stop.set)
        timer.daemon = True
        with Record(self._metrics) as record:
            require_loaded(settings, limits.numerics)
            if (length := len(question.instruction)) > limits.prompt_characters:
                most = f"this server reads up to {limits.prompt_characters}: shorten it."
                raise BadInput(f"The question has {length} characters; {most}")
            if (asked := settings.max_new_tokens) > limits.new_tokens:
                most = f"this server gives up to {limits.new_tokens}."
                raise BadInput(f"Maximum tokens is {asked}; {most}", "max_new_tokens")
            timer.start()
            try:
                with closing(self._session.ask(replace(question, stop=stop))) as events:
                    for event in events:
                        if timer.finished.is_set() and isinstance(event, Trace):
                            record.end("timeout", event)
                            raise RequestFailed(
                                f"Stopped after {limits.seconds:g} seconds, as long as this "
                                "server gives to a question; ask for a shorter answer."
                            )
                        record.saw(event)
                        yield event
            finally:
                timer.cancel()
