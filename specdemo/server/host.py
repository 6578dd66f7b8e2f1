"""Hosts the models of a server: loads a pair in a thread, lends its session to requests, closes it,
and reports health and metrics. The page and the API are built on it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from specdemo.engine.scheduler import Activity
from specdemo.errors import Busy, DamagedModel, RequestFailed
from specdemo.host.terminal import Progress, Report
from specdemo.pairs.registry import ModelChoice
from specdemo.server.metrics import Metrics

if TYPE_CHECKING:
    from specdemo.runs.session import Session


@dataclass(frozen=True, slots=True)
class State:
    """The state of a pair, and a sentence about it. A pair whose files were damaged has failed; its
    `session` is closed when another pair replaces it."""

    pair: ModelChoice
    line: str = "Getting the models ready"
    session: Session | None = None
    kind: Literal["loading", "ready", "failed"] = "loading"


class Host:
    """Answers with one pair at a time. Another pair is fetched and loaded while the first answers,
    and then replaces it; requests that run at that moment end on the first. `fetch` gets a pair's
    files; if it returns False, the first pair is closed before the other is loaded, for memory.
    `state` is that of the pair asked for last."""

    def __init__(
        self,
        pair: ModelChoice,
        opener: Callable[[Any, Report], Session],
        fetch: Callable[[ModelChoice, Report], bool] = lambda pair, report: True,
    ):
        self._opener, self._fetch = opener, fetch
        self._changed = threading.Condition()
        self._load_number = 0
        self._users: Counter[Session | None] = Counter()
        self._in_memory: State | None = None
        self.state = State(pair)
        self.closed = False
        self.counters = Metrics()

    @property
    def visitors(self) -> int:
        """The number of visitors with a request in progress."""
        return self._users.total()

    def ready_line(self, session: Session) -> str:
        return "Ready"

    def failure_line(self, error: Exception) -> str:
        return f"The model could not be loaded: {error}"

    def start(self) -> None:
        """Begin loading the first pair."""
        with self._changed:
            self._begin(self.state.pair)

    def _become(self, state: State) -> None:
        """The caller of this and of the other transitions holds the lock."""
        self.state = state
        self._changed.notify_all()

    def _begin(self, pair: ModelChoice) -> None:
        """Loading, in a thread; an earlier load is given up."""
        self._load_number += 1
        self._become(State(pair))
        arguments = pair, self._load_number
        threading.Thread(target=self._load, args=arguments, name="load", daemon=True).start()

    def _load(self, pair: ModelChoice, number: int) -> None:
        def report(progress: Progress) -> None:
            with self._changed:
                if number != self._load_number:
                    raise RequestFailed("Nobody waits for this pair any more.")
                self._become(State(pair, progress.line))

        try:
            if not self._fetch(pair, report):
                self._replace(None, number)
            session = self._opener(pair, report)
        except Exception as error:
            failed = State(pair, self.failure_line(error), kind="failed")
            with self._changed:
                if number == self._load_number:
                    self._become(failed)
        else:
            self._replace(State(pair, self.ready_line(session), session, "ready"), number)

    def _replace(self, ready: State | None, number: int) -> None:
        """Ready, unless the load was given up; None only frees memory. The session that is not
        needed any more is closed once no request uses it."""
        with self._changed:
            unused = ready
            if number == self._load_number:
                unused, self._in_memory = self._in_memory, ready
                self._become(ready or self.state)
            session = unused.session if unused else None
            self._changed.wait_for(lambda: not self._users[session])
        if session:
            session.close()

    def _give_up(self, pair: ModelChoice) -> None:
        """Ready with the pair in memory again, if `pair` was to replace it."""
        ready = self._in_memory
        if ready and ready.kind == "ready" and self.state.pair == pair != ready.pair:
            self._load_number += 1
            self._become(ready)

    def close(self) -> None:
        """Cancel the running answers, which end within a round, and release the models."""
        with self._changed:
            self.closed = True
            self._load_number += 1  # a pair that is being loaded is given up
            session, self._in_memory = self.answering.session, None
            self._become(State(self.state.pair, "The server was stopped.", kind="failed"))
        if session:
            session.close()

    @property
    def answering(self) -> State:
        """The state of the pair in memory, else of the one that is loaded."""
        return self._in_memory or self.state

    @property
    def activity(self) -> Activity:
        session = self.answering.session
        return session.activity if session else Activity()

    def ready(self, pair: ModelChoice) -> State | None:
        """The state of `pair` if it answers."""
        state = self._in_memory
        return state if state and state.kind == "ready" and state.pair == pair else None

    def states(self, pair: ModelChoice, stop: threading.Event | None = None) -> Iterator[State]:
        """Yields the states until `pair` is ready. Starts to load it if needed, and gives up the
        load of another pair; closing the iterator early gives up this load if another pair is here.
        Raises RequestFailed if the load fails, another pair is chosen or `stop` is set before."""
        with self._changed:
            if self.closed:
                raise RequestFailed(self.state.line)
            loading = self.state.kind == "loading" and self.state.pair == pair
            if not (loading and self._load_number) and not self.ready(pair):
                self._begin(pair)
        seen = None
        try:
            while not (ready := self.ready(pair)):
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
            yield ready
        finally:
            with self._changed:
                self._give_up(pair)

    @contextmanager
    def lent_session(self, pair: ModelChoice) -> Iterator[Session]:
        """The session of a ready pair, kept open during the block. A DamagedModel raised in the
        block fails the pair; the next request loads it again. Raises Busy if another pair has
        replaced this one."""
        with self._changed:
            ready = self.ready(pair)
            if not (ready and (session := ready.session)):
                raise Busy("Another pair is being loaded; ask again in a moment.")
            self._users[session] += 1
        try:
            yield session
        except DamagedModel as error:
            with self._changed:
                if self._in_memory is ready:
                    self._in_memory = State(pair, str(error), session, "failed")
                    self._become(self._in_memory)
            raise
        finally:
            with self._changed:
                self._users -= Counter([session])
                self._changed.notify_all()

    async def health(self) -> dict[str, Any]:
        """The figures of /health. `status` is "ready", or else `detail` says why not."""
        state, activity = self.answering, self.activity
        caches = state.session.engine.cache_blocks() if state.session else {}
        return {
            "status": state.kind,
            **({} if state.kind == "ready" else {"detail": state.line}),
            "replicas": int(state.kind == "ready"),
            "in_flight": self.visitors,
            "visitors": self.visitors,
            "active": activity.active,
            "queue": activity.waiting,
            "restarts": activity.restarts,
            "preparing": activity.preparing,
            "cache_blocks": {name: asdict(use) for name, use in caches.items()},
        }

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self.counters.text(self.answering.session, self.visitors)
