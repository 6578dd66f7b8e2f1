"""Prints tables, progress and untrusted text on a terminal: control characters are escaped.

A table is a list of rows; a row maps the columns' names to values.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from specdemo.host.progress import Progress, Report

Table = Sequence[Mapping[str, Any]]


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
        justify = "left" if isinstance(value, str) else "right"
        drawn.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in table:
        drawn.add_row(*(printable(text(value)) for value in row.values()))
    width = None if out.isatty() else 200
    console.Console(file=out, width=width, markup=False, highlight=False).print(drawn)


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A Report that shows progress on stderr: a bar on a terminal, one line a step elsewhere."""
    from tqdm import tqdm

    form, step = "{percentage:3.0f}% |{bar:24}| {desc}", ""
    with tqdm(leave=False, disable=None, bar_format=form) as bar:

        def show(progress: Progress) -> None:
            nonlocal step
            bar.total, bar.n = progress.total, progress.done
            bar.set_description_str(progress.line)
            if bar.disable and progress.text != step:
                print(progress.text, file=sys.stderr)
            step = progress.text

        yield show
