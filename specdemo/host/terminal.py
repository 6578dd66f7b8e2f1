"""Prints tables, progress and untrusted text on a terminal: control characters are escaped.

A table is a list of rows; a row maps the columns' names to values.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from specdemo.host.progress import Progress, Report

Table = Sequence[Mapping[str, Any]]

LINE_SECONDS = 5.0  # between lines on the same step, where there is no terminal


def printable(text: str, keep: str = "") -> str:
    """`text` with every control character escaped, except those in `keep`."""
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in keep
        else char
        for char in text
    )


def text(value: Any) -> str:
    """A value as a table shows it: figures with three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def show(title: str | None, table: Table, out: TextIO) -> None:
    """Print a table; nothing if it has no rows."""
    from rich import box, console
    from rich.table import Table as RichTable

    if not table:
        return
    drawn = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in table[0].items():
        justify: Literal["left", "right"] = "left" if isinstance(value, str) else "right"
        drawn.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in table:
        drawn.add_row(*(printable(text(value)) for value in row.values()))
    width = None if out.isatty() else 200
    console.Console(file=out, width=width, markup=False, highlight=False).print(drawn)


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A Report that shows progress on stderr: a bar on a terminal; elsewhere a line for each step,
    and one every LINE_SECONDS while it goes on."""
    from tqdm import tqdm

    form = "{percentage:3.0f}% |{bar:24}| {desc}"
    step, begun_at, shown_at = "", 0.0, 0.0
    with tqdm(leave=False, disable=None, bar_format=form) as bar:

        def show(progress: Progress) -> None:
            nonlocal step, begun_at, shown_at
            bar.total, bar.n = progress.total, progress.done
            bar.set_description_str(progress.line)
            if not bar.disable:
                return
            now = monotonic()
            if progress.text != step:
                step, begun_at, shown_at = progress.text, now, now
                print(step, file=sys.stderr)
            elif now - shown_at >= LINE_SECONDS:
                shown_at = now
                print(f"{progress.line} ({now - begun_at:.0f} s)", file=sys.stderr)

        yield show
