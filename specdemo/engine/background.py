"""Work that no request waits for: what is compiled and measured between requests."""

import logging
import threading
from collections import deque
from collections.abc import Generator
from time import monotonic

log = logging.getLogger(__name__)

QUIET, PATIENCE = 1.0, 10.0
"""Seconds without requests before work goes on, and between its steps beside them."""

END = object()


class Background:
    """Runs generators one after the other, a step at a time: after QUIET seconds without requests
    and beside requests every PATIENCE seconds, unless `only_hurried`; after `hurry` always. `step`
    and `due` are for the engine's thread. What it measures has cache blocks of its own
    (`PrefixCache.set_aside`)."""

    def __init__(self, only_hurried: bool = False):
        self._works: deque[Generator[None]] = deque()
        self._only_hurried = only_hurried
        self._hurried: set[threading.Event] = set()
        self._busy_at = self._stepped_at = monotonic()

    def __bool__(self) -> bool:
        return bool(self._works)

    def add(self, work: Generator[None]) -> None:
        self._works.append(work)

    def hurry(self, until: threading.Event) -> None:
        """Work beside requests too, until this is set."""
        self._hurried = {*self._hurried, until}

    @property
    def pause(self) -> float | None:
        """Seconds after which an idle loop should ask again whether work is `due`."""
        return QUIET / 4 if self._works and not self._only_hurried else None

    def due(self, *, busy: bool, timed: bool) -> bool:
        """Whether a step is due. `busy`: there are requests; `timed`: one of them is timed."""
        now = monotonic()
        if busy:
            self._busy_at = now
        quiet = now - self._busy_at >= QUIET
        late = now - self._stepped_at >= PATIENCE and not timed
        due = self._is_hurried() or (not self._only_hurried and (quiet or late))
        # Compiling starts threads, which is an error once the main thread has ended.
        return due and bool(self._works) and threading.main_thread().is_alive()

    def step(self) -> None:
        hurried, work = self._is_hurried(), self._works[0]
        try:
            ended = next(work, END) is END
        except Exception as error:
            log.error("Work in the background failed and is left.", exc_info=error)
            ended = True
        if ended and self._works:  # the work can hold the engine last, whose end closes this
            self._works.popleft()
        self._stepped_at = monotonic()
        if hurried:  # a request may have waited for this
            self._busy_at = self._stepped_at

    def close(self) -> None:
        while self._works:
            self._works.popleft().close()

    def _is_hurried(self) -> bool:
        return not all(until.is_set() for until in self._hurried)
