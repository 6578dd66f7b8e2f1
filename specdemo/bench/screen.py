"""What bench and audit print: a progress bar on stderr, lines and tables. Measures nothing."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from tqdm import tqdm

from specdemo.bench.race import Step
from specdemo.bench.tables import Table, text


class Screen:
    """Text goes to standard output, or to stderr where `json_file` is '-'. A context."""

    def __init__(self, json_file: str | None) -> None:
        self._out = sys.stderr if json_file == "-" else sys.stdout
        form = "{percentage:3.0f}% |{bar:24}| {desc}"
        self._bar = tqdm(leave=False, disable=None, bar_format=form)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def step(self, step: Step) -> None:
        self._bar.total, self._bar.n = step.total, step.done
        self._bar.set_description_str(printable(step.text))

    def line(self, line: str = "") -> None:
        tqdm.write(printable(line), file=self._out)

    def table(self, title: str, table: Table) -> None:
        """Nothing for a table without rows."""
        if not table:
            return
        drawn = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for at, name in enumerate(table[0]):
            justify = "right" if at else "left"
            drawn.add_column(name.replace("_", " "), justify=justify, overflow="fold")
        for row in table:
            drawn.add_row(*(printable(text(value)) for value in row.values()))
        self._bar.clear()
        width = None if self._out.isatty() else 200
        Console(file=self._out, width=width, markup=False, highlight=False).print(drawn)


def printable(line: str) -> str:
    """One line without control characters, which could command the terminal: ids and tasks come
    from a file."""
    return "".join(char if char.isprintable() else "?" for char in line)
