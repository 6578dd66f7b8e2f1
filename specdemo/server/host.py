"""Hosts the models of a server: loads a pair in a thread, lends its session to requests, closes it,
and reports health and metrics. The page and the API are built on it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from specdemo.engine.scheduler import Activity
from specdemo.errors import Busy, DamagedModel, RequestFailed
from specdemo.machine.terminal import Progress, Report
from specdemo.pairs.registry import ModelChoice
from specdemo.server.metrics import Metrics

if TYPE_CHECKING:
    from specdemo.runs.session import Session

log = logging.getLogger(__name__)


class Load(Future[None]):
    """A pair that is loaded, or was. It fails with a RequestFailed that says why, and later if its
    files are damaged; its session is closed when another pair replaces it."""

    def __init__(self, pair: ModelChoice):
        super().__init__()
        self.pair = pair
        self.waiting = 0  # how many wait for it
        self.session: Session | None = None
        self.line = "Getting the models ready"  # a sentence about it
        self.kind: Literal["loading", "ready", "failed"] = "loading"


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
        self._users: Counter[Session | None] = Counter()
        self._in_memory: Load | None = None
        self.state = Load(pair)
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
            load = self.ready(pair) or self.state
            if not (load.kind == "ready" or load.running()) or load.pair != pair:
                load = self._begin(pair)
            load.waiting += 1
            return load

    def _begin(self, pair: ModelChoice) -> Load:
        """The caller of this and of `_fail` holds the lock."""
        self._fail("Another pair was chosen meanwhile; ask again.")
        self.state = load = Load(pair)
        load.set_running_or_notify_cancel()
        threading.Thread(target=self._work, args=[load], name="load", daemon=True).start()
        return load

    def _fail(self, line: str) -> None:
        """End the load, if there is one. A ready pair in memory goes on to answer."""
        if not (load := self.state).done():
            load.line, load.kind = line, "failed"
            load.set_exception(RequestFailed(line))
            if self._in_memory and self._in_memory.kind == "ready":
                self.state = self._in_memory
            self._changed.notify_all()

    def _work(self, load: Load) -> None:
        def report(progress: Progress) -> None:
            with self._changed:
                if load.done():
                    raise RequestFailed("Nobody waits for this pair any more.")
                load.line = progress.line
                self._changed.notify_all()

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
            self._replace(session, load)

    def _replace(self, session: Session | None, load: Load) -> None:
        """Ready, unless the load was given up; None only frees memory. The session that is not
        needed any more is closed once no request uses it."""
        with self._changed:
            unused = session
            if not load.done():
                unused = self._in_memory.session if self._in_memory else None
                self._in_memory = load if session else None
                if session:
                    load.session, load.line = session, self.ready_line(session)
                    load.kind = "ready"  # last: it is read without the lock
                    load.set_result(None)
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._users[unused])
        if unused:
            unused.close()

    def close(self) -> None:
        """Cancel the running answers, which end within a round, and release the models."""
        with self._changed:
            self.closed = True
            session, self._in_memory = self.answering.session, None
            self._fail("The server was stopped.")  # a pair that is being loaded is given up
            self.state.line, self.state.kind = "The server was stopped.", "failed"
            self._changed.notify_all()
        if session:
            session.close()

    @property
    def answering(self) -> Load:
        """The state of the pair in memory, else of the one that is loaded."""
        return self._in_memory or self.state

    @property
    def activity(self) -> Activity:
        session = self.answering.session
        return session.activity if session else Activity()

    def ready(self, pair: ModelChoice) -> Load | None:
        """The state of `pair` if it answers."""
        load = self._in_memory
        return load if load and load.kind == "ready" and load.pair == pair else None

    def states(self, pair: ModelChoice, stop: threading.Event) -> Iterator[Load]:
        """Yields `pair` with each new line until it is loaded. Raises RequestFailed if that fails,
        another pair is chosen or `stop` is set before. The last who closes the iterator early gives
        up the load if another pair is here."""
        load, seen = self.load(pair), ""
        try:
            while not load.done():
                if stop.is_set():
                    raise RequestFailed("Stopped before the models were ready.")
                if (line := load.line) != seen:
                    seen = line
                    yield load
                with self._changed:
                    if load.line == line:
                        self._changed.wait(timeout=0.25)
            load.result()
        finally:
            with self._changed:
                load.waiting -= 1
                replaceable = self._in_memory and self._in_memory.kind == "ready"
                if replaceable and not load.waiting and load is self.state:
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
                if self.ready(pair) is ready:
                    ready.line, ready.kind = str(error), "failed"
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
