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
BEGINNING = "Getting the models ready"


@dataclass(frozen=True, slots=True)
class State:
    """What the service is doing. `kind` is "loading", "ready" or "failed"."""

    kind: str
    pair: ModelChoice
    line: str


class _Superseded(Exception):
    """Another pair was asked for before this one was ready, and nobody waits for this one."""


class Service:
    """One pair at a time. Loading a second one first waits until nobody uses the first, then closes
    it; `exchange` opens the second one beside the first. A pair that is still loading is given up
    as soon as nobody waits for it and another is wanted."""

    def __init__(self, pair: ModelChoice, opener: Opener, limits: Limits = LIMITS):
        self._opener = opener
        self._changed = threading.Condition()
        self._session: Session | None = None
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

    def _begin(self, pair: ModelChoice) -> None:
        """Start a thread that loads the pair. The caller holds the lock."""
        self._load_number += 1
        self.state = State("loading", pair, BEGINNING)
        self._changed.notify_all()
        arguments = pair, self._load_number
        threading.Thread(target=self._load, args=arguments, name="load", daemon=True).start()

    def _load(self, pair: ModelChoice, number: int) -> None:
        def tell(line: str, kind: str = "loading") -> None:
            with self._changed:
                if number != self._load_number:
                    raise _Superseded
                self.state = State(kind, pair, line)
                self._changed.notify_all()

        session = None
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self.users or number != self._load_number)
                tell(BEGINNING)
                old, self._session = self._session, None
            if old is not None:
                old.close()
            session = self._opener(pair, tell)
            with self._changed:
                tell(_ready(session), kind="ready")
                self._session = session
        except _Superseded:
            if session is not None:
                session.close()
        except Exception as error:
            with suppress(_Superseded):
                tell(error_sentence(error), kind="failed")

    def exchange(self, pair: ModelChoice, opener: Callable[[], Session]) -> None:
        """Put what `opener` opens in the place of the session of `pair`, which answers meanwhile;
        what it is answering then, it finishes. Where another pair is here, nothing is done. Raises
        what `opener` raises: nothing has changed then."""
        with self._changed:
            self._changed.wait_for(lambda: self.state.kind != "loading")
            if self.state.pair != pair:
                return
        session = opener()
        with self._changed:
            stale = self.state.pair != pair or self.state.kind == "loading"
            if not stale:
                old, self._session = self._session, session
                self.state = State("ready", pair, _ready(session))
                self._changed.notify_all()
        if stale:
            session.close()
        elif old is not None:
            threading.Thread(target=self._retire, args=[old], daemon=True).start()

    def _retire(self, session: Session) -> None:
        """Close a session once nobody uses it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._users[session])
        session.close()

    def states(self, pair: ModelChoice, stop: threading.Event | None = None) -> Iterator[State]:
        """The states until `pair` is ready; starts loading if need be. Raises RequestFailed, in one
        sentence, when the pair cannot be loaded or `stop` is set before it is."""
        seen = None
        with self._changed:
            self._waiting[pair] += 1
            if self.state.pair == pair and (self.state.kind == "failed" or not self._load_number):
                self._begin(pair)
        try:
            while True:
                with self._changed:
                    # Those who wait for another pair get to use it before it is replaced.
                    if self.state.pair != pair and not self._waiting[self.state.pair]:
                        self._begin(pair)
                    state = self.state
                if state.pair == pair and state.kind == "failed":
                    raise RequestFailed(state.line)
                if state != seen:
                    seen = state
                    yield state
                if state.pair == pair and state.kind == "ready":
                    return
                if stop is not None and stop.is_set():
                    raise RequestFailed("Stopped before the models were ready.")
                with self._changed:
                    self._changed.wait_for(lambda state=state: self.state != state, timeout=0.25)
        finally:
            with self._changed:
                self._waiting[pair] -= 1

    @contextmanager
    def session(self, pair: ModelChoice, visitor: Visitor) -> Iterator[LimitedSession]:
        """The session of a ready pair for one request of the visitor, kept open while in use.
        Raises Busy when a limit is reached, or when another pair has taken the place of this
        one."""
        with self.gate.request(visitor):
            with self._changed:
                if self._session is None or (self.state.kind, self.state.pair) != ("ready", pair):
                    raise Busy("Another pair is being loaded; ask again in a moment.")
                session = self._session
                self._users[session] += 1
            try:
                yield LimitedSession(session, self.metrics, self.gate.limits)
            except DamagedModel as error:
                with self._changed:
                    if self._session is session:  # the next one loads it again
                        self.state = State("failed", pair, str(error))
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
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def health(self) -> dict[str, object]:
        """What a monitor asks for: "status" is "ready", "loading" or "failed"."""
        session = self._session
        load = session.load if session else None
        return {
            "status": self.state.kind,
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
