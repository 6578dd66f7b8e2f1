"""Work that is done for one request at a time: the shortest request comes first, so that nobody
waits for more than one that is longer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter


class Turns:
    """The order of those that wait (thread safe)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self.waiting: list[tuple[int, object]] = []

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for the turn of a request of this size, which lasts as long as the block."""
        mine = size, object()
        with self._changed:
            self.waiting.append(mine)
            try:
                self._changed.wait_for(
                    lambda: not self._busy and min(self.waiting, key=itemgetter(0)) is mine
                )
                self._busy = True
            finally:
                self.waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
