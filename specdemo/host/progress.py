"""Progress of a download or a conversion, in bytes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tqdm import tqdm

from specdemo.errors import SpecdemoError


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. `done` and `total` are bytes; `total` is None for a step of unknown size. `rate`
    is in bytes per second, 0 if it is not known yet."""

    text: str
    done: int = 0
    total: int | None = None
    rate: float = 0.0

    @property
    def line(self) -> str:
        """One line of text, such as `Downloading X: 12 of 93 MB, 9.0 MB/s, 00:09 left`."""
        if not self.total:
            return self.text
        line = f"{self.text}: {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
        if self.rate:
            line += f", {self.rate / 1e6:.1f} MB/s"
            left = (self.total - self.done) / self.rate
            # The first bytes are slow to come, and the last step may go on when all are done.
            if self.done > self.total / 50 and left >= 1:
                line += f", {tqdm.format_interval(left)} left"
        return line


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A Report that shows nothing."""


class Meter:
    """Reports `done` of `total` bytes. The rate leaves out the initial `done`."""

    def __init__(self, report: Report, text: str, total: int, done: int = 0) -> None:
        self._report, self._text, self.total = report, text, total
        self._began, self._before, self.done = time.monotonic(), done, done
        self.update(0)

    def update(self, count: int) -> None:
        self.done += count
        seconds = time.monotonic() - self._began
        rate = (self.done - self._before) / seconds if seconds > 1 else 0.0
        self._report(Progress(self._text, self.done, self.total, rate))


@contextmanager
def watched(meter: Meter, done: Callable[[], int], every: float = 0.5) -> Iterator[None]:
    """During the block, each `every` seconds, report `done()` of `meter.total`, at most all. No
    report comes after the block: a late one would say that work goes on which is done."""
    over = threading.Event()

    def watch() -> None:
        with suppress(SpecdemoError):  # nobody waits for it any more
            while not over.wait(every):
                meter.update(min(done(), meter.total) - meter.done)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def size(count: int) -> str:
    """`count` bytes as text: `93 MB`, `2.8 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
