"""Holds the loaded pair: opens it in a background thread and says how far that is."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdemo.errors import Busy, DamagedModel, RequestFailed
from specdemo.metrics import Metrics
from specdemo.settings import ModelChoice
from specdemo.ui.limits import LIMITS, Gate, LimitedSession, Limits, Visitor
from specdemo.ui.wording import error_sentence

if TYPE_CHECKING:
    from specdemo.session import Session

Report = Callable[[str], None]
Opener = Callable[[ModelChoice, Report], "Session"]
Fetch = Callable[[ModelChoice, Report], bool]
BEGINNING = "Getting the models ready"


@dataclass(frozen=True, slots=True)
class State:
    """What the service is doing. `kind` is "loading", "ready" or "failed"."""

    kind: str
    pair: ModelChoice
    line: str


class _Superseded(Exception):
    """Nobody waits any more for the pair that is being loaded."""


class Service:
    """One pair at a time. Another is fetched and loaded while the first answers, and then takes its
    place; what runs at that moment ends on the first. A pair is given up as soon as nobody waits
    for it, where another is here or wanted.

    `fetch` gets a pair's files and says whether there is memory to load it beside another one.
    Where there is not, the one that is here is closed before.
    """

    def __init__(
        self,
        pair: ModelChoice,
        opener: Opener,
        limits: Limits = LIMITS,
        fetch: Fetch = lambda pair, report: True,
    ):
        self._opener, self._fetch = opener, fetch
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._here: State | None = None  # "ready", of the pair that `_session` answers for
        self._load_number = 0
        self._waiting: Counter[ModelChoice] = Counter()
        self._users: Counter[Session] = Counter()
        self.state = State("loading", pair, BEGINNING)
        self.metrics = Metrics(lambda: self._session, lambda: self.gate.visitors)
        self.gate = Gate(self.metrics, limits)

    @property
    def users(self) -> int:
        """The requests that hold a session."""
        return self._users.total()

    def start(self) -> None:
        """Begin loading the first pair, unless one has been asked for already."""
        with self._changed:
            if not self._load_number:
                self._begin(self.state.pair)

    def _begin(
        self,
        pair: ModelChoice,
        chosen: ModelChoice | None = None,
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a thread that loads `chosen`, or the pair itself. The caller holds the lock."""
        self._load_number += 1
        self.state = State("loading", pair, BEGINNING)
        self._changed.notify_all()
        arguments = pair, self._load_number, chosen or pair, taken
        threading.Thread(target=self._load, args=arguments, name="load", daemon=True).start()

    def _load(
        self, pair: ModelChoice, number: int, chosen: ModelChoice, taken: Callable[[], None]
    ) -> None:
        def tell(line: str, kind: str = "loading") -> None:
            with self._changed:
                if number != self._load_number:
                    raise _Superseded
                self.state = State(kind, pair, line)
                self._changed.notify_all()

        session = None
        try:
            if not self._fetch(chosen, tell):
                with self._changed:
                    tell(BEGINNING)
                    old = self._put(None, None)
                self._retire(old)
            session = self._opener(chosen, tell)
            with self._changed:
                tell(_ready(session), kind="ready")
                taken()
                old = self._put(session, self.state)
            self._retire(old)
        except _Superseded:
            self._retire(session)
        except Exception as error:
            with suppress(_Superseded):
                tell(error_sentence(error), kind="failed")

    def _put(self, session: Session | None, here: State | None) -> Session | None:
        """Exchange the session that answers; returns the old one. The caller holds the lock."""
        old, self._session, self._here = self._session, session, here
        return old

    def _retire(self, session: Session | None) -> None:
        """Close a session once nobody uses it."""
        if session is not None:
            with self._changed:
                self._changed.wait_for(lambda: not self._users[session])
            session.close()

    def exchange(self, pair: ModelChoice, chosen: ModelChoice, taken: Callable[[], None]) -> None:
        """Load `chosen` in the place of `pair`, and from then on as `pair`; `taken` is called in
        that moment. Where another pair is here, nothing is done. Raises RequestFailed, in one
        sentence: nothing has changed then."""
        with self._changed:
            self._changed.wait_for(lambda: self.state.kind != "loading")
            if (self._here or self.state).pair != pair:
                return
            self._waiting[pair] += 1
            self._begin(pair, chosen, taken)
            self._changed.wait_for(lambda: self.state.kind != "loading")
            last = self.state
            self._leave(pair)
        if last.kind == "failed":
            raise RequestFailed(last.line)

    def _answers(self, pair: ModelChoice) -> State | None:
        """The state "ready" if `pair` is here."""
        return self._here if self._here and self._here.pair == pair else None

    def _leave(self, pair: ModelChoice) -> None:
        """One less waits for `pair`. The caller holds the lock."""
        self._waiting[pair] -= 1
        if self._here and self.state != self._here and not self._waiting[self.state.pair]:
            self._load_number += 1
            self.state = self._here
            self._changed.notify_all()

    def states(self, pair: ModelChoice, stop: threading.Event | None = None) -> Iterator[State]:
        """The states until `pair` is ready; starts loading if need be. Raises RequestFailed, in one
        sentence, when the pair cannot be loaded or `stop` is set before it is."""
        seen = None
        with self._changed:
            self._waiting[pair] += 1
            fresh = self.state.kind == "failed" or not self._load_number
            if fresh and self.state.pair == pair and not self._answers(pair):
                self._begin(pair)
        try:
            while True:
                with self._changed:
                    here = self._answers(pair)
                    # Those who wait for another pair get to use it before it is replaced.
                    waited = self.state.pair == pair or self._waiting[self.state.pair]
                    if not here and not waited:
                        self._begin(pair)
                    state = here or self.state
                if state.pair == pair and state.kind == "failed":
                    raise RequestFailed(state.line)
                if state != seen:
                    seen = state
                    yield state
                if here:
                    return
                if stop is not None and stop.is_set():
                    raise RequestFailed("Stopped before the models were ready.")
                with self._changed:
                    self._changed.wait_for(lambda state=state: self.state != state, timeout=0.25)
        finally:
            with self._changed:
                self._leave(pair)

    @contextmanager
    def session(self, pair: ModelChoice, visitor: Visitor) -> Iterator[LimitedSession]:
        """The session of a ready pair for one request of the visitor, kept open while in use.
        Raises Busy when a limit is reached, or when another pair has taken the place of this
        one."""
        with self.gate.request(visitor):
            with self._changed:
                if not self._answers(pair):
                    raise Busy("Another pair is being loaded; ask again in a moment.")
                session = self._session
                self._users[session] += 1
            try:
                yield LimitedSession(session, self.metrics, self.gate.limits)
            except DamagedModel as error:
                with self._changed:
                    if self._session is session:  # the next one loads it again
                        self.state, self._here = State("failed", pair, str(error)), None
                raise
            finally:
                with self._changed:
                    self._users[session] -= 1
                    self._users = +self._users
                    self._changed.notify_all()

    def close(self) -> None:
        """Cancel what is being answered, which ends within a round, and release the models."""
        with self._changed:
            self._load_number += 1  # a pair that is being loaded is given up
            session = self._put(None, None)
        if session is not None:
            session.close()

    def health(self) -> dict[str, object]:
        """What a monitor asks for: "status" is "ready", "loading" or "failed"."""
        session = self._session
        load = session.load if session else None
        return {
            "status": "ready" if self._here else self.state.kind,
            "visitors": self.gate.visitors,
            "active": load.active if load else 0,
            "queue": load.waiting if load else 0,
            "restarts": load.restarts if load else 0,
            "preparing": load.preparing if load else False,
            "cache_blocks": {
                name: dataclasses.asdict(use)
                for name, use in (session.cache_blocks() if session else {}).items()
            },
        }


def _ready(session: Session) -> str:
    draft = session.info.draft or "n-gram lookup (no draft model)"
    return f"Ready: {session.info.target}, drafts by {draft}"
