"""Progress of a download or a conversion, in bytes and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. `done` and `total` are bytes; `total` is None for a step of unknown size.

    `seconds_left` is an estimate, None where there is none.
    """

    text: str
    done: int = 0
    total: int | None = None
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, or None for a step of unknown size."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def line(self) -> str:
        """The report as one line of text, such as `Downloading X: 12 of 93 MB, 00:08 left`."""
        if not self.total:
            return self.text
        line = f"{self.text}: {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
        if self.seconds_left is not None:
            line += f", {tqdm.format_interval(self.seconds_left)} left"
        return line


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A Report that shows nothing."""


class Meter:
    """Reports a download of `total` bytes at most ten times a second; `done` were there before.

    It can stand in for a tqdm bar.
    """

    def __init__(self, report: Report, text: str, total: int, done: int = 0) -> None:
        self._report, self._text, self._total = report, text, total
        self.done = self._already = done
        self._began = time.monotonic()
        self._last = 0.0
        self.update(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._last > 0.1 or self.done >= self._total:
            self._last = now
            left, gained, seconds = None, self.done - self._already, now - self._began
            if gained > 0 and seconds > 0.5:
                left = max(0, self._total - self.done) * seconds / gained
            self._report(Progress(self._text, self.done, self._total, left))


def size(count: int) -> str:
    """Bytes for reading: `93 MB`, `2.8 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
