"""Progress of a download or a conversion, in bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. `done` and `total` are bytes; `total` is None for a step of unknown size.

    `seconds_left` is an estimate from the mean rate so far, None where there is none.
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


def estimate(done: int, total: int, elapsed: float, already: int = 0) -> float | None:
    """Seconds left at the mean rate of this run; `already` bytes were there before it began."""
    gained = done - already
    if gained <= 0 or elapsed < 0.5:
        return None
    return max(0, total - done) * elapsed / gained


def size(count: int) -> str:
    """Bytes for reading: `93 MB`, `2.8 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
