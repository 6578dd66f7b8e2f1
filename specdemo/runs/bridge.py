"""From threads to asyncio: blocking generators, such as the events of answers, as one asynchronous
generator."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Begin = Callable[[], Generator[Item]]


async def merged(
    begins: Mapping[threading.Event, Begin[Item]], *, threads: int = 1, ping: float | None = None
) -> AsyncGenerator[Item | None, None]:
    """The items of several blocking generators in the order in which they come, from `threads`
    threads; None after `ping` seconds without one. Raises the first error. At the end, and when it
    is closed, the event of each generator is set, which must end that generator soon."""
    loop, running = asyncio.get_running_loop(), len(begins)
    waiting = SimpleQueue[Begin[Item]]()
    arrived = asyncio.Queue[Item | BaseException | None]()  # None: a generator has ended

    def put(item: Item | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has closed, so nothing is read
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def iterate() -> None:
        with suppress(Empty):
            while True:
                begin = waiting.get_nowait()
                try:
                    with closing(begin()) as items:
                        for item in items:
                            put(item)
                    put(None)
                except BaseException as error:
                    put(error)

    for begin in begins.values():
        waiting.put(begin)
    for _ in range(min(threads, running)):
        threading.Thread(target=iterate, name="specdemo-answer", daemon=True).start()
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
        for stop in begins:
            stop.set()
