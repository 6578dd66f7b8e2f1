"""Work for one request at a time, the shortest first, but none has to wait for ever."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter

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
