"""The page's host of models: limits how much each visitor may ask. The session's scheduler decides
how many requests run at once."""

from __future__ import annotations

import html
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING

from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.machine.terminal import Report
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question, SessionEvent
from specdemo.runs.race import ENOUGH_SECONDS
from specdemo.runs.settings import require_exact
from specdemo.runs.trace import Trace
from specdemo.server.host import Host
from specdemo.server.metrics import Record
from specdemo.server.page import MAX_EVENTS
from specdemo.server.page.wording import error_sentence, model_line
from specdemo.server.request_guard import network_of

if TYPE_CHECKING:
    import gradio
    from fastapi import Request

    from specdemo.runs.session import Session

UPDATE_SECONDS = 0.3, 0.5
"""Seconds between two messages to a browser, for a single visitor and for each of several. A
message takes 20 ms of processor time from the models."""


@dataclass(frozen=True, slots=True)
class VisitorLimits:
    """The limits of one server."""

    prompt_characters: int = 20_000
    new_tokens: int = 2000
    at_once: int = 2  # requests of a visitor
    per_minute: int = 30
    of_address: int = 24  # requests of a network at once
    of_address_per_minute: int = 120
    places: int = MAX_EVENTS * 3 // 4  # for requests of who has one already
    seconds: float = 600.0  # of a request with its waiting time
    race_seconds: float = ENOUGH_SECONDS  # that a race is repeated for
    fast_numerics: bool = True


LIMITS = VisitorLimits()


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser session or a program. `network` is empty if it does not tell visitors apart."""

    name: str = ""
    network: str = ""


def visitor_of(request: gradio.Request | Request, session: str | None) -> Visitor:
    """The visitor that sent a request, by the address of the connection or of a trusted proxy, and
    by the name of a browser session or tab."""
    network = network_of(request.client.host if request.client else "")
    return Visitor((session or "")[:64] or f"network {network or 'here'}", network)


class LimitedSession:
    """A session as one request of a visitor sees it: within the limits, counted. All answers
    share the time of the request. Pieces of an answer are sent every `update_seconds`."""

    def __init__(self, service: Service, session: Session):
        self._service, self._session = service, session
        self.info, self.limits = session.info, service.limits
        self.update_seconds = UPDATE_SECONDS[service.visitors > 1]
        self._until = monotonic() + self.limits.seconds
        self.repeating = service.repeating

    @property
    def occupied(self) -> bool:
        """Whether a question is answered, or waits."""
        activity = self._session.activity
        return bool(activity.active or activity.waiting or activity.preparing)

    def ask(self, question: Question) -> Generator[SessionEvent]:
        """As Session.ask. Raises BadInput over a limit, RequestFailed when it takes too long."""
        limits, settings = self.limits, question.settings
        question = replace(question, loading=lambda: self._service.state.kind == "loading")
        late = False
        with Record(self._service.counters) as record:
            if not limits.fast_numerics:
                require_exact(settings)
            if (length := len(question.instruction)) > limits.prompt_characters:
                limit = f"this server reads up to {limits.prompt_characters}: shorten it."
                raise BadInput(f"The question has {length} characters; {limit}")
            if (tokens := settings.max_new_tokens) > limits.new_tokens:
                limit = f"this server gives up to {limits.new_tokens}."
                raise BadInput(f"Maximum tokens is {tokens}; {limit}", "max_new_tokens")
            with closing(self._session.ask(question)) as events:
                for event in events:
                    if late and isinstance(event, Trace):
                        record.end("timeout", event)
                        raise RequestFailed(
                            f"Stopped after {limits.seconds:g} seconds, as long as this "
                            "server gives to a question; ask for a shorter answer."
                        )
                    record.count(event)
                    yield event
                    if monotonic() > self._until and not late:  # one event a second at least
                        late = True
                        question.stop.set()


class Service(Host):
    """A Host that limits the requests of each visitor and each network."""

    def __init__(
        self,
        pair: ModelChoice,
        opener: Callable[[ModelChoice, Report], Session],
        limits: VisitorLimits = LIMITS,
        fetch: Callable[[ModelChoice, Report], bool] = lambda pair, report: True,
    ):
        super().__init__(pair, opener, fetch)
        self.limits = limits
        self._lock = threading.Lock()
        self.repeating = threading.Lock()  # held by the race that is repeated
        self._at_work: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], deque[float]] = {}

    @property
    def visitors(self) -> int:
        with self._lock:
            return sum(whose == "you" for whose, _ in self._at_work)

    def ready_line(self, session: Session) -> str:
        return f"Ready: {model_line(session.info)}."

    def failure_line(self, error: Exception) -> str:
        return error_sentence(error)

    def status_lines(self) -> Iterator[str]:
        """Yields the line about the pair, as HTML, until it is ready or has failed."""
        words, shown = {"loading": "Loading. ", "ready": "", "failed": "Not available. "}, ""
        while not shown or shown.startswith(words["loading"]):
            if (line := words[self.state.kind] + self.state.line) != shown:
                shown = line
                yield html.escape(line)
            sleep(0.2)

    @contextmanager
    def session(self, pair: ModelChoice) -> Iterator[LimitedSession]:
        """The session of a ready pair for one request. Raises Busy if another pair has replaced
        this one."""
        with self.lent_session(pair) as session:
            yield LimitedSession(self, session)

    @contextmanager
    def request(self, visitor: Visitor) -> Iterator[None]:
        """Counts one request of `visitor` during the block. Raises Busy if it exceeds a limit."""
        limits, now = self.limits, monotonic()
        rules = {("you", visitor.name): (limits.at_once, limits.per_minute)}
        if visitor.network:  # a program can make up a new name for every question
            of_network = limits.of_address, limits.of_address_per_minute
            rules["your network", visitor.network] = of_network
        with self._lock:
            if refusal := self._refusal(rules, now):
                self.counters.requests.labels("answer", "refused").inc()
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

    def _refusal(self, rules: dict[tuple[str, str], tuple[int, int]], now: float) -> str:
        """Which limit a request by these rules exceeds, "" if none."""
        places = self.limits.places if self._at_work[[*rules][-1]] else MAX_EVENTS
        if sum(self._at_work[name] for name in self._at_work if name[0] == "you") >= places:
            return f"{places} questions are at work already; try again in a moment."
        for name, (at_once, per_minute) in rules.items():
            times = self._started.get(name) or deque[float]()
            if self._at_work[name] >= at_once:
                words = f"{at_once} questions from {name[0]} are at work already"
                return f"{words}; wait for one to finish, or stop it."
            if len(times) == per_minute and now - times[0] < 60:
                words = f"{per_minute} questions from {name[0]} came within a minute"
                return f"{words}; ask again in {math.ceil(60 - (now - times[0]))} seconds."
        return ""
