"""Who answers for the API: one engine in this process here, replicas elsewhere in `deployment`. No HTTP.

`LocalBackend` runs every answer in a thread of its own and hands its events to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

from specdemo.trace import BaselineToken, Trace
from specdemo.metrics import Gauges
from specdemo.serving.generation import Description, Done, Engine, Event, Interrupted, Refused, Request, Waits
from specdemo.serving.metrics import Metrics, Record

log = logging.getLogger(__name__)

T = TypeVar("T")

LOADING_FAILED = "The model could not be loaded:"


class Unavailable(RuntimeError):
    """The answer cannot be had now; the message is one sentence. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0):
        super().__init__(message)
        self.message, self.retry_after = message, retry_after

    def __reduce__(self):
        return type(self), (self.message, self.retry_after)


class Busy(Unavailable):
    """As many requests as may wait are waiting."""


class NotReady(Unavailable):
    """No model is loaded yet, or none is any more."""


class Backend(Protocol):
    """What the API needs. Every method may raise NotReady."""

    async def describe(self) -> Description: ...

    def generate(self, request: Request) -> AsyncIterator[list[Event]]:
        """The events of an answer, those that came together in one list. Closing it ends the answer within a round.

        Raises Refused, Busy or NotReady before the first list, Interrupted after it.
        """
        ...

    def baseline(self, trace: Trace) -> AsyncIterator[list[BaselineToken | Waits | Trace]]: ...

    async def health(self) -> dict[str, Any]:
        """`status` ("ready", "loading" or "failed") and `replicas`, as JSON."""
        ...

    async def metrics(self) -> str:
        """Of every replica, in the Prometheus text format."""
        ...


class LocalBackend:
    """One engine in this process. `load` makes it, in a thread; until then every request raises NotReady.

    At most `ongoing` requests are answered at once and `waiting` more wait for one to end.
    """

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], Engine],
        *,
        ongoing: int,
        waiting: int,
        stalled_after: float = 120.0,
    ):
        self._load = load
        self._engine: Engine | None = None
        self._failed: str | None = None
        self._line = "The model is being loaded"
        self._limit = ongoing
        self._waiting_limit = waiting
        self._places = asyncio.Semaphore(ongoing)
        self._present = 0
        self._stalled_after = stalled_after
        self._stops: set[threading.Event] = set()
        self._progress = time.monotonic()
        self._metrics = Metrics(self._gauges)

    def start(self) -> threading.Thread:
        """Begin to load."""
        thread = threading.Thread(target=self.load, name="specdemo-load", daemon=True)
        thread.start()
        return thread

    def load(self) -> None:
        """Load now. A failure is kept for those who ask; it is raised again only as what they get."""
        try:
            self._engine = self._load(self._report)
        except Exception as error:
            log.error("The model cannot be loaded.", exc_info=error)
            self._failed = str(error)

    def _report(self, line: str) -> None:
        self._line = line

    def close(self) -> None:
        """Stop every answer and release the models."""
        for stop in list(self._stops):
            stop.set()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    @property
    def in_flight(self) -> int:
        """Requests that are answered now or wait for it, in threads that may be ending."""
        return len(self._stops)

    def stalled(self) -> bool:
        """Whether something is being answered and nothing has come of it for `stalled_after` seconds."""
        return bool(self._stops) and time.monotonic() - self._progress > self._stalled_after

    def ready_engine(self) -> Engine:
        """The engine. Raises NotReady."""
        if self._failed is not None:
            raise NotReady(f"{LOADING_FAILED} {self._failed}", 30)
        if self._engine is None:
            raise NotReady(f"The model is not ready yet: {self._line.rstrip('.')}.", 2)
        return self._engine

    async def describe(self) -> Description:
        return self.ready_engine().description

    async def health(self) -> dict[str, Any]:
        if self._failed is not None:
            return {"status": "failed", "replicas": 0, "detail": self._failed}
        if self._engine is None:
            return {"status": "loading", "replicas": 0, "detail": self._line}
        if self.stalled():
            return {"status": "failed", "replicas": 0, "detail": "An answer makes no progress any more."}
        return {"status": "ready", "replicas": 1, "in_flight": self.in_flight}

    async def metrics(self) -> str:
        return self._metrics.text().decode()

    def _gauges(self) -> Gauges:
        engine = self._engine
        return Gauges(self._present) if engine is None else engine.gauges(self._present)

    async def generate(self, request: Request) -> AsyncIterator[list[Event]]:
        engine = self.ready_engine()
        async with self._place():
            record = Record(self._metrics)
            try:
                async with aclosing(self._stream(lambda stop, note: engine.generate(request, stop, note))) as batches:
                    async for batch in batches:
                        for event in batch:
                            record.saw(event)
                        yield batch
                        if isinstance(batch[-1], Done):
                            return
                raise Interrupted("The answer ended without an end; this is a fault of the server.")
            except Refused:
                record.end("refused")
                raise
            except (GeneratorExit, asyncio.CancelledError):  # after the last event as well, and then it has ended
                record.end("cancelled")
                raise
            except Exception as error:
                record.end("error", error=error)
                raise

    async def baseline(self, trace: Trace) -> AsyncIterator[list[BaselineToken | Waits | Trace]]:
        engine = self.ready_engine()
        async with (
            self._place(),
            aclosing(self._stream(lambda stop, note: engine.baseline(trace, stop, note))) as batches,
        ):
            async for batch in batches:
                yield batch

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place among those that are answered; waits for one. Raises Busy when too many wait already."""
        if self._present >= self._limit + self._waiting_limit:
            raise Busy(f"{self._present} requests are being answered or wait already; try again in a moment.")
        self._present += 1
        try:
            async with self._places:
                yield
        finally:
            self._present -= 1

    async def _stream(
        self, start: Callable[[threading.Event, Callable[[T], None]], Iterator[T]]
    ) -> AsyncIterator[list[T]]:
        """What an iterator yields in a thread, or notes between, in lists of what has arrived. Its exceptions are raised
        here."""
        loop = asyncio.get_running_loop()
        stop, arrived = threading.Event(), asyncio.Event()
        items: deque[T] = deque()
        ended: list[BaseException | None] = []

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(arrived.set)
            except RuntimeError:  # the loop has closed: nobody listens
                stop.set()

        def arrive(item: T) -> None:
            self._progress = time.monotonic()
            items.append(item)
            wake()

        def run() -> None:
            error: BaseException | None = None
            try:
                for item in start(stop, arrive):
                    arrive(item)
            except BaseException as raised:
                error = raised
            finally:
                self._stops.discard(stop)
                ended.append(error)
                wake()

        if not self._stops:
            self._progress = time.monotonic()
        self._stops.add(stop)
        threading.Thread(target=run, name="specdemo-answer", daemon=True).start()
        try:
            while True:
                await arrived.wait()
                arrived.clear()
                over = bool(ended)  # asked before collecting, so that nothing is left behind
                batch = [items.popleft() for _ in range(len(items))]
                if batch:
                    yield batch
                if over:
                    break
        finally:
            stop.set()
        if ended[0] is not None:
            raise ended[0]
