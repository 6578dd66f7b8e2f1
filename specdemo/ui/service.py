"""Loads the pair in a background thread, and limits how much each visitor may ask. The session's
scheduler decides how many requests run at once."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from specdemo.engine.scheduler import Activity
from specdemo.errors import BadInput, Busy, DamagedModel, RequestFailed
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Event, Question
from specdemo.runs.race import ENOUGH_SECONDS
from specdemo.runs.settings import require_exact
from specdemo.runs.trace import Trace
from specdemo.server.metrics import Metrics, Record
from specdemo.server.request_guard import network_of
from specdemo.ui.wording import error_sentence, model_line

if TYPE_CHECKING:
    import gradio
    from fastapi import Request

    from specdemo.runs.session import Session

Report = Callable[[str], None]
BEGINNING = "Getting the models ready"
UPDATE_SECONDS = 0.3, 0.5
"""Between two messages to a browser, which each take 20 ms of processor time from the models: for a
visitor alone, and for each of several."""


@dataclass(frozen=True, slots=True)
class VisitorLimits:
    """The limits of one server: characters of an instruction, tokens of an answer, requests at once
    and a minute of a visitor and of a network, seconds of a request with its waiting time, the
    `repeat` of a race, and whether fast numerics are on offer."""

    prompt_characters: int = 20_000
    new_tokens: int = 2000
    at_once: int = 2
    per_minute: int = 30
    of_address: int = 24
    of_address_per_minute: int = 120
    seconds: float = 600.0
    race_seconds: float = ENOUGH_SECONDS
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


class Gate:
    """Counts the requests of each visitor and each address. Thread safe."""

    def __init__(self, metrics: Metrics, limits: VisitorLimits = LIMITS):
        self.limits, self._refused = limits, metrics.requests.labels("answer", "refused")
        self._lock = threading.Lock()
        self._at_work: Counter[tuple[str, str]] = Counter()
        self._started: dict[tuple[str, str], deque[float]] = {}

    @property
    def visitors(self) -> int:
        """The number of visitors with a request in progress."""
        with self._lock:
            return sum(whose == "you" for whose, _ in self._at_work)

    @contextmanager
    def request(self, visitor: Visitor) -> Iterator[None]:
        """Counts one request of `visitor` during the block. Raises Busy if it exceeds a limit."""
        limits, now = self.limits, monotonic()
        rules = {("you", visitor.name): (limits.at_once, limits.per_minute)}
        if visitor.network:  # a program can make up a new name for every question
            most = limits.of_address, limits.of_address_per_minute
            rules["your network", visitor.network] = most
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
        times = self._started.get(name) or deque[float]()
        if self._at_work[name] >= at_once:
            words = f"{at_once} questions from {name[0]} are at work already"
            return f"{words}; wait for one to finish, or stop it."
        if len(times) == per_minute and now - times[0] < 60:
            words = f"{per_minute} questions from {name[0]} came within a minute"
            return f"{words}; ask again in {math.ceil(60 - (now - times[0]))} seconds."
        return ""


class LimitedSession:
    """Applies the limits to one request of a session, and counts how it ended. Raises BadInput over
    a limit, and RequestFailed when it takes too long. `update_seconds` is the UPDATE_SECONDS of its
    visitor."""

    def __init__(
        self,
        session: Session,
        metrics: Metrics,
        limits: VisitorLimits = LIMITS,
        loading: Callable[[], bool] = lambda: False,
        update_seconds: float = UPDATE_SECONDS[0],
    ):
        self._session, self._metrics, self._loading = session, metrics, loading
        self.info, self.limits, self.update_seconds = session.info, limits, update_seconds

    def ask(self, question: Question) -> Generator[Event]:
        limits, settings = self.limits, question.settings
        stop = question.stop or threading.Event()
        question = dataclasses.replace(question, stop=stop, loading=self._loading)
        until, late = monotonic() + limits.seconds, False
        with Record(self._metrics) as record:
            if not limits.fast_numerics:
                require_exact(settings)
            if (length := len(question.instruction)) > limits.prompt_characters:
                most = f"this server reads up to {limits.prompt_characters}: shorten it."
                raise BadInput(f"The question has {length} characters; {most}")
            if (tokens := settings.max_new_tokens) > limits.new_tokens:
                most = f"this server gives up to {limits.new_tokens}."
                raise BadInput(f"Maximum tokens is {tokens}; {most}", "max_new_tokens")
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
                    if monotonic() > until and not late:  # an event comes each second at least
                        late = True
                        stop.set()


@dataclass(frozen=True, slots=True)
class State:
    """The state of the service for a pair: "loading", "ready" or "failed"."""

    kind: str
    pair: ModelChoice
    line: str


class Service:
    """Answers with one pair at a time. Another pair is fetched and loaded while the first answers,
    and then replaces it; requests that run at that moment end on the first. `fetch` gets a pair's
    files; if it returns False, the first pair is closed before, for memory."""

    def __init__(
        self,
        pair: ModelChoice,
        opener: Callable[[ModelChoice, Report], Session],
        limits: VisitorLimits = LIMITS,
        fetch: Callable[[ModelChoice, Report], bool] = lambda pair, report: True,
    ):
        self._opener, self._fetch = opener, fetch
        self._changed = threading.Condition()
        # The pair that answers: its state, "ready" or (its files were damaged) "failed".
        self._loaded: tuple[State, Session] | tuple[None, None] = None, None
        self._load_number = 0
        self._users: Counter[Session] = Counter()
        self.state = State("loading", pair, BEGINNING)
        self.metrics = Metrics(lambda: self._loaded[1], lambda: self.gate.visitors)
        self.gate = Gate(self.metrics, limits)

    def start(self) -> None:
        """Begin loading the first pair."""
        with self._changed:
            self._begin(self.state.pair)

    def _begin(self, pair: ModelChoice) -> None:
        """Load `pair` in a thread; an earlier load is given up. The caller holds the lock."""
        self._load_number += 1
        self.state = State("loading", pair, BEGINNING)
        self._changed.notify_all()
        arguments = pair, self._load_number
        threading.Thread(target=self._load, args=arguments, name="load", daemon=True).start()

    def _load(self, pair: ModelChoice, number: int) -> None:
        def tell(line: str) -> None:
            with self._changed:
                if number != self._load_number:
                    raise RequestFailed("Nobody waits for this pair any more.")
                self.state = State("loading", pair, line)
                self._changed.notify_all()

        session = None
        try:
            if not self._fetch(pair, tell):
                self._become(State("loading", pair, BEGINNING), None, number)
            session = self._opener(pair, tell)
            state = State("ready", pair, f"Ready: {model_line(session.info)}.")
        except Exception as error:
            state = State("failed", pair, error_sentence(error))
        self._become(state, session, number)

    def _become(self, state: State, session: Session | None, number: int) -> None:
        """Set the state of load `number`; unless it failed, `session` replaces the one in use. That
        one, or `session` of a load given up, is closed once no request uses it."""
        with self._changed:
            old = session
            if number == self._load_number:
                old, self.state = None, state
                if state.kind != "failed":
                    old = self._loaded[1]
                    self._loaded = (state, session) if session else (None, None)
                self._changed.notify_all()
            self._changed.wait_for(lambda: not (old and self._users[old]))
        if old:
            old.close()

    def _answers(self, pair: ModelChoice) -> State | None:
        """The state "ready" if `pair` is loaded, else None."""
        state, _ = self._loaded
        return state if state and state.pair == pair and state.kind == "ready" else None

    def states(self, pair: ModelChoice, stop: threading.Event | None = None) -> Iterator[State]:
        """Yields the states until `pair` is ready. Starts to load it if needed, and gives up the
        load of another pair; closing the iterator early gives up this load if another pair is here.
        Raises RequestFailed if the load fails, another pair is chosen or `stop` is set before."""
        with self._changed:
            wanted = self.state.pair == pair and self.state.kind != "failed" and self._load_number
            if not wanted and not self._answers(pair):
                self._begin(pair)
        seen = None
        try:
            while not (here := self._answers(pair)):
                state = self.state
                if state.pair != pair:
                    raise RequestFailed("Another pair was chosen meanwhile; ask again.")
                if state.kind == "failed":
                    raise RequestFailed(state.line)
                if stop is not None and stop.is_set():
                    raise RequestFailed("Stopped before the models were ready.")
                if state != seen:
                    seen = state
                    yield state
                with self._changed:
                    if self.state == state:
                        self._changed.wait(timeout=0.25)
            yield here
        finally:
            with self._changed:
                loaded, _ = self._loaded
                given_up = self.state.pair == pair and not self._answers(pair)
                if loaded and loaded.kind == "ready" and given_up:
                    self._load_number += 1
                    self.state = loaded
                    self._changed.notify_all()

    @contextmanager
    def session(self, pair: ModelChoice, visitor: Visitor) -> Iterator[LimitedSession]:
        """The session of a ready pair for one request of the visitor, kept open while in use.
        Raises Busy when a limit is reached, or when another pair has replaced this one."""
        with self.gate.request(visitor):
            with self._changed:
                loaded = self._loaded
                if not self._answers(pair) or not (session := loaded[1]):
                    raise Busy("Another pair is being loaded; ask again in a moment.")
                self._users[session] += 1
            try:
                yield LimitedSession(
                    session,
                    self.metrics,
                    self.gate.limits,
                    lambda: self.state.kind == "loading",
                    UPDATE_SECONDS[self._users.total() > 1],
                )
            except DamagedModel as error:
                with self._changed:
                    if self._loaded == loaded:
                        self.state = State("failed", pair, str(error))
                        self._loaded = self.state, session  # the next request replaces it
                raise
            finally:
                with self._changed:
                    self._users[session] -= 1
                    self._users = +self._users
                    self._changed.notify_all()

    def close(self) -> None:
        """Cancel the running answers, which end within a round, and release the models."""
        with self._changed:
            self._load_number += 1  # a pair that is being loaded is given up
            if self.state.kind == "loading":  # who waits for it would wait for ever
                self.state = State("failed", self.state.pair, "The server was stopped.")
                self._changed.notify_all()
            _, session = self._loaded
            self._loaded = None, None
        if session:
            session.close()

    def health(self) -> dict[str, object]:
        """The figures of /health: "status" is "ready", "loading" or "failed"."""
        state, session = self._loaded
        activity = session.activity if session else Activity()
        caches = session.cache_blocks() if session else {}
        return {
            "status": state.kind if state else self.state.kind,
            "visitors": self.gate.visitors,
            "active": activity.active,
            "queue": activity.waiting,
            "restarts": activity.restarts,
            "preparing": activity.preparing,
            "cache_blocks": {name: dataclasses.asdict(use) for name, use in caches.items()},
        }
