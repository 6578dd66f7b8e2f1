"""Runs a session's iterator in a thread of its own, so that decoding never waits for the page. Draws nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

ABANDONED_AFTER = 20.0
"""Seconds without anybody collecting after which a run is taken to have lost its page, and is stopped."""


UPDATE_EVERY = 0.2
"""Seconds between two envelopes. The script spreads the tokens in one over the times at which they were made, so
bursts look smooth however few envelopes there are; fewer leave more of the processor to the models."""

MOST_BETWEEN = 0.5


def update_every(users: int) -> float:
    """Seconds between two updates of a page while `users` are at work: every update takes processor time from the models,
    so more users get fewer each."""
    return min(UPDATE_EVERY * max(users, 1), MOST_BETWEEN)


class Pump:
    """Collects what an iterator yields until somebody asks.

    `start` is called in the new thread and returns the iterator. An exception that it raises is raised again by
    `batches`, after what came before it.
    """

    def __init__(self, start: Callable[[], Iterator[Any]], stop: threading.Event):
        self._start, self._stop = start, stop
        self._items: deque[Any] = deque()
        self._error: BaseException | None = None
        self._collected_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="specdemo-run", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._start():
                self._items.append(item)
                if time.monotonic() - self._collected_at > ABANDONED_AFTER:
                    self._stop.set()
        except BaseException as error:  # handed to whoever collects
            self._error = error

    def batches(self, every: float) -> Iterator[list[Any]]:
        """Lists of what has arrived, at most one in `every` seconds, empty ones when nothing came in a second."""
        quiet_since = time.monotonic()
        while True:
            running = self._thread.is_alive()  # asked before collecting, so that nothing is left behind at the end
            batch = [self._items.popleft() for _ in range(len(self._items))]
            self._collected_at = time.monotonic()
            if batch or self._collected_at - quiet_since > 1.0:
                quiet_since = self._collected_at
                yield batch
            if not running:
                break
            # An answer's end is worth noticing early; join costs the decoding thread nothing.
            self._thread.join(every if batch else every / 4)
        if self._error is not None:
            raise self._error
