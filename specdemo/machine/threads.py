"""Threads: one request at a time, work in the background, and events of threads for asyncio."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import TypeVar

from specdemo.engine.constraint import yield_to_models

Result = TypeVar("Result")
Item = TypeVar("Item")

PASSED_OVER = 4  # a request is next after so many turns of others


@dataclass(eq=False)
class WaitingTurn:
    size: int
    passed_over: int = 0

    @property
    def order(self) -> tuple[bool, int]:
        return (True, self.size) if self.passed_over < PASSED_OVER else (False, 0)


class ShortestFirst:
    """Runs waiting requests one at a time, the shortest first, but passes none over more than
    PASSED_OVER times (thread safe). Each is followed by a pause of `rest` times its duration, which
    leaves the processor to other work."""

    def __init__(self, rest: float = 0.0) -> None:
        self._rest = rest
        self._rests_until = 0.0
        self._changed = threading.Condition()
        self._busy = False
        self.waiting: list[WaitingTurn] = []

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for the turn of a request of this size. The turn lasts as long as the block."""
        with self._changed:
            self._wait(WaitingTurn(size))
        begun = perf_counter()
        try:
            yield
        finally:
            with self._changed:
                ended = perf_counter()
                self._rests_until = ended + self._rest * (ended - begun)
                self._busy = False
                self._changed.notify_all()

    def _wait(self, request: WaitingTurn) -> None:
        self.waiting.append(request)
        try:
            while True:
                rest = self._rests_until - perf_counter()
                first = min(self.waiting, key=attrgetter("order")) is request
                if first and not self._busy and rest <= 0:
                    break
                self._changed.wait(rest if rest > 0 else None)
            self._busy = True
            for other in self.waiting:
                other.passed_over += 1
        finally:
            self.waiting.remove(request)
            self._changed.notify_all()


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Run `work` in a thread, on Linux at the lowest priority; the future has its result or error.
    Not for work that starts threads: they would inherit the priority."""
    result: Future[Result] = Future()

    def run() -> None:
        yield_to_models()
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


async def merged(
    works: Mapping[threading.Event, Iterator[Item]], *, threads: int = 1, ping: float | None = None
) -> AsyncGenerator[Item | None, None]:
    """The items of several blocking iterators, in the order in which they come, from `threads`
    threads; None after `ping` seconds without one. Raises the first error. At the end, and when it
    is closed, the event of each iterator is set, which must end it soon."""
    loop, running = asyncio.get_running_loop(), len(works)
    waiting = iter(list(works.values()))  # shared by the threads
    arrived = asyncio.Queue[Item | BaseException | None]()  # None: an iterator has ended

    def send(item: Item | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has closed, so nothing is read
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def run() -> None:
        for work in waiting:
            try:
                for item in work:
                    send(item)
                send(None)
            except BaseException as error:
                send(error)

    for _ in range(min(threads, running)):
        begin = partial(copy_context().run, run)  # with the id of the request, for the log
        threading.Thread(target=begin, name="specdemo-answer", daemon=True).start()
    try:
        while running:
            try:
                async with asyncio.timeout(ping):
                    item = await arrived.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for stop in works:
            stop.set()
