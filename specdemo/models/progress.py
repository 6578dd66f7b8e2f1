"""How far a download or a conversion has come, in bytes, and how long it may still take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. `done` and `total` are bytes; `total` is None while nobody knows it or the step has no bytes.

    `seconds_left` is an estimate from the mean rate so far, None where there is none.
    """

    text: str
    done: int = 0
    total: int | None = None
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, or None for a step without a known size."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def line(self) -> str:
        """The report as one line of text, such as `Downloading X: 12 of 93 MB, 8 s left`."""
        if not self.total:
            return self.text
        line = f"{self.text}: {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
        return line if self.seconds_left is None else f"{line}, {duration(self.seconds_left)} left"


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A report that nobody reads."""


def estimate(done: int, total: int | None, elapsed: float, already: int = 0) -> float | None:
    """Seconds left at the mean rate of this run; `already` bytes were there before it began."""
    gained = done - already
    if not total or gained <= 0 or elapsed < 0.5:
        return None
    return max(0, total - done) * elapsed / gained


def duration(seconds: float) -> str:
    """Seconds as a person says them: `8 s`, `3 min`, `1 h 20 min`."""
    seconds = round(seconds)
    if seconds < 90:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes as a person reads them: `93 MB`, `2.8 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
