"""Work for one request at a time, the shortest first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from time import perf_counter


class ShortestFirst:
    """Runs waiting requests one at a time, the shortest first (thread safe). Each is followed by
    a pause of `rest` times its duration, which leaves the processor to other work."""

    def __init__(self, rest: float = 0.0) -> None:
        self._rest = rest
        self._rests_until = 0.0
        self._changed = threading.Condition()
        self._busy = False
        self.waiting: list[tuple[int, object]] = []

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for the turn of a request of this size. The turn lasts as long as the block."""
        with self._changed:
            self._wait((size, object()))
        begun = perf_counter()
        try:
            yield
        finally:
            with self._changed:
                ended = perf_counter()
                self._rests_until = ended + self._rest * (ended - begun)
                self._busy = False
                self._changed.notify_all()

    def _wait(self, request: tuple[int, object]) -> None:
        self.waiting.append(request)
        try:
            while True:
                rest = self._rests_until - perf_counter()
                first = min(self.waiting, key=itemgetter(0)) is request
                if first and not self._busy and rest <= 0:
                    break
                self._changed.wait(rest if rest > 0 else None)
            self._busy = True
        finally:
            self.waiting.remove(request)
            self._changed.notify_all()
