"""Hosts the models of a server: loads a pair in a thread, lends its session to requests, closes it,
and reports health and metrics. The page and the API are built on it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from specdemo.engine.scheduler import Activity
from specdemo.errors import Busy, DamagedModel, RequestFailed
from specdemo.machine.terminal import Progress, Report
from specdemo.pairs.registry import ModelChoice
from specdemo.server.metrics import Metrics

if TYPE_CHECKING:
    from specdemo.runs.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a pair, and a sentence about it. A pair whose files were damaged has failed; its
    `session` is closed when another pair replaces it."""

    pair: ModelChoice
    line: str = "Getting the models ready"
    session: Session | None = None
    kind: Literal["loading", "ready", "failed"] = "loading"


class Load(Future[None]):
    """A pair that is loaded for all who wait for it; `waiting` is their number. It fails with a
    RequestFailed that says why."""

    def __init__(self, pair: ModelChoice):
        super().__init__()
        self.pair, self.waiting = pair, 0


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
        self._last: Load | None = None
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

    def load(self, pair: ModelChoice) -> Load:
        """Load `pair`, unless it is here or being loaded, in a thread; an earlier load of another
        pair is given up. Raises RequestFailed if the server was stopped."""
        with self._changed:
            if self.closed:
                raise RequestFailed(self.state.line)
            load = self._last
            if self.ready(pair):
                load = Load(pair)
                load.set_result(None)
            elif load is None or load.done() or load.pair != pair:
                load = self._begin(pair)
            load.waiting += 1
            return load

    def _begin(self, pair: ModelChoice) -> Load:
        """The caller of this and of the other transitions holds the lock."""
        self._fail("Another pair was chosen meanwhile; ask again.")
        self._last = load = Load(pair)
        self._become(State(pair))
        threading.Thread(target=self._work, args=[load], name="load", daemon=True).start()
        return load

    def _become(self, state: State) -> None:
        self.state = state
        self._changed.notify_all()

    def _fail(self, line: str) -> None:
        """End the load, if there is one. A ready pair in memory goes on to answer."""
        if (load := self._last) and not load.done():
            load.set_exception(RequestFailed(line))
            failed = State(load.pair, line, kind="failed")
            self._become(ready if (ready := self._in_memory) and ready.kind == "ready" else failed)

    def _work(self, load: Load) -> None:
        def report(progress: Progress) -> None:
            with self._changed:
                if load.done():
                    raise RequestFailed("Nobody waits for this pair any more.")
                self._become(State(load.pair, progress.line))

        try:
            if not self._fetch(load.pair, report):
                self._replace(None, load)
            session = self._opener(load.pair, report)
        except Exception as error:
            line = self.failure_line(error)
            with self._changed:
                if not load.done():
                    self._fail(line)
        else:
            self._replace(State(load.pair, self.ready_line(session), session, "ready"), load)

    def _replace(self, ready: State | None, load: Load) -> None:
        """Ready, unless the load was given up; None only frees memory. The session that is not
        needed any more is closed once no request uses it."""
        with self._changed:
            unused = ready
            if not load.done():
                unused, self._in_memory = self._in_memory, ready
                self._become(ready or self.state)
                if ready:
                    load.set_result(None)
            session = unused.session if unused else None
            self._changed.wait_for(lambda: not self._users[session])
        if session:
            session.close()

    def close(self) -> None:
        """Cancel the running answers, which end within a round, and release the models."""
        with self._changed:
            self.closed = True
            session, self._in_memory = self.answering.session, None
            line = "The server was stopped."
            self._fail(line)  # a pair that is being loaded is given up
            self._become(State(self.state.pair, line, kind="failed"))
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

    def states(self, pair: ModelChoice, stop: threading.Event) -> Iterator[State]:
        """Yields the states of `pair` until it is loaded. Raises RequestFailed if that fails,
        another pair is chosen or `stop` is set before. The last who closes the iterator early gives
        up the load if another pair is here."""
        load, seen = self.load(pair), None
        try:
            while not load.done():
                if stop.is_set():
                    raise RequestFailed("Stopped before the models were ready.")
                if (state := self.state) != seen:
                    seen = state
                    yield state
                with self._changed:
                    if self.state == state:
                        self._changed.wait(timeout=0.25)
            load.result()
        finally:
            with self._changed:
                load.waiting -= 1
                replaceable = self._in_memory and self._in_memory.kind == "ready"
                if replaceable and not load.waiting and load is self._last:
                    self._fail("Nobody waits for this pair any more.")

    @contextmanager
    def lent_session(self, pair: ModelChoice) -> Iterator[Session]:
        """The session of a ready pair, kept open during the block. A DamagedModel raised in the
        block fails the pair, which is then loaded again. Raises Busy if another pair has replaced
        this one."""
        with self._changed:
            ready = self.ready(pair)
            if not (ready and (session := ready.session)):
                raise Busy("Another pair is being loaded; ask again in a moment.")
            self._users[session] += 1
        try:
            yield session
        except DamagedModel as error:
            log.warning(f"The models are loaded again: {error}")
            with self._changed:
                if self._in_memory is ready:
                    self._in_memory = State(pair, str(error), session, "failed")
                    self._begin(pair)
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
            "active": activity.active,
            "queue": activity.waiting,
            "restarts": activity.restarts,
            "preparing": activity.preparing,
            "cache_blocks": {name: asdict(use) for name, use in caches.items()},
        }

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self.counters.text(await self.health())
