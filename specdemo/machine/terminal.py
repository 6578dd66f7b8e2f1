"""Progress of a download or a conversion, in bytes; tables and untrusted text on a terminal."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TextIO

from specdemo.engine.faults import printable as printable
from specdemo.errors import SpecdemoError

Table = Sequence[Mapping[str, Any]]
"""Rows, which map the names of columns to values."""

PIPE_WIDTH = 120  # columns of a table where there is no terminal and no COLUMNS
GAP = 2  # characters between two columns of a table
DRAWING_SECONDS = 0.1  # between two drawings of a bar
LINE_SECONDS = 5.0  # between lines on the same step, where there is no terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of progress."""

    text: str
    done: int = 0
    total: int | None = None  # None for a step of unknown size
    rate: float = 0.0  # per second, 0 if it is not known yet
    unit: str = "MB"  # of `done` and `total`, which are bytes for MB

    @property
    def line(self) -> str:
        """One line of text, such as `Downloading X: 12 of 93 MB, 9.0 MB/s, 00:09 left`."""
        if not self.total:
            return self.text
        scale = 1e6 if self.unit == "MB" else 1
        line = f"{self.text}: {self.done / scale:,.0f} of {self.total / scale:,.0f} {self.unit}"
        if self.rate:
            line += f", {self.rate / 1e6:.1f} MB/s"
            left = (self.total - self.done) / self.rate
            # The first bytes are slow to come, and the last step may go on when all are done.
            if self.done > self.total / 50 and left >= 1:
                line += f", {left // 60:02.0f}:{left % 60:02.0f} left"
        return line


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A Report that shows nothing."""


class Meter:
    """Reports `done` of `total` bytes. The initial `done` do not count for the rate."""

    def __init__(self, report: Report, text: str, total: int, done: int = 0) -> None:
        self._report, self._text, self.total = report, text, total
        self._began, self._before, self.done = monotonic(), done, done
        self.update(0)

    def update(self, count: int) -> None:
        self.done += count
        seconds = monotonic() - self._began
        rate = (self.done - self._before) / seconds if seconds > 1 else 0.0
        self._report(Progress(self._text, self.done, self.total, rate))


@contextmanager
def watched(meter: Meter, done: Callable[[], int], every: float = 0.5) -> Iterator[None]:
    """During the block, report `done()` of `meter.total` every `every` seconds. No report is sent
    after the block ends."""
    ended = threading.Event()

    def watch() -> None:
        with suppress(SpecdemoError):  # raised by a report that cancels the work
            while not ended.wait(every):
                meter.update(min(done(), meter.total) - meter.done)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def size(count: int) -> str:
    """`count` bytes as text: `93 MB`, `2.8 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def counted(count: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def text(value: Any) -> str:
    """A value as a table shows it: figures with three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def show(table: Table, out: TextIO) -> None:
    """Print a table without its empty columns; nothing if it has no rows. Words are not broken, if
    the longest of each column fit beside each other."""
    from rich import box, console
    from rich.table import Table as RichTable

    if not table:
        return
    names = [name for name in table[0] if any(row[name] not in (None, "") for row in table)]
    cells = {name: [printable(text(row[name])) for row in table] for name in names}
    titles = {name: name.replace("_", " ") for name in names}
    width = None if out.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    drawing = console.Console(file=out, width=width, markup=False, highlight=False)
    drawn = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    columns = [[titles[name], *cells[name]] for name in names]
    widths = _widths(columns, drawing.width - GAP * len(names))
    for index, name in enumerate(names):
        left = any(isinstance(row[name], str) for row in table)
        drawn.add_column(
            titles[name],
            justify="left" if left else "right",
            overflow="fold",
            width=widths[index] if widths else None,
        )
    for row in zip(*cells.values(), strict=True):
        drawn.add_row(*row)
    drawing.print(drawn)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Characters for each column, so that all fit into `room` and no word is broken, nor a size
    and its unit; none if that cannot be. The columns with the most room to spare beside their
    longest word are narrowed."""
    words = [
        max(len(word) for cell in column for word in re.split(r" (?![GM]B\b)", cell))
        for column in columns
    ]
    widths = [max(map(len, column)) for column in columns]
    if sum(words) > room:
        return []
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda index: widths[index] - words[index])
        widths[widest] -= 1
    return widths


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A Report that shows progress on stderr: a bar on a terminal; elsewhere a line for each step,
    and one every LINE_SECONDS while it goes on."""
    from rich import markup
    from rich import progress as bars
    from rich.console import Console

    step, begun_at, shown_at = "", 0.0, 0.0
    columns = bars.TaskProgressColumn(), bars.BarColumn(24), bars.TextColumn("{task.description}")
    # Drawn by the thread that reports: another one would take time from what is measured.
    console = Console(stderr=True)
    how: dict[str, Any] = {"auto_refresh": False, "transient": True}
    with bars.Progress(*columns, console=console, disable=not console.is_terminal, **how) as bar:
        task = bar.add_task("", total=None)

        def show(progress: Progress) -> None:
            nonlocal step, begun_at, shown_at
            now = monotonic()
            if console.is_terminal:
                bar.update(
                    task,
                    total=progress.total,
                    completed=progress.done,
                    description=markup.escape(progress.line),
                )
                if progress.text != step or now - shown_at >= DRAWING_SECONDS:
                    step, shown_at = progress.text, now
                    bar.refresh()
            elif progress.text != step:
                step, begun_at, shown_at = progress.text, now, now
                print(step, file=sys.stderr)
            elif now - shown_at >= LINE_SECONDS:
                shown_at = now
                print(f"{progress.line} ({now - begun_at:.0f} s)", file=sys.stderr)

        yield show
