"""What bench and audit print: a live line of progress on stderr, and tables of plain text. Measures nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from specdemo.bench.run import Step


class Screen:
    """Tables go to `out`; progress to stderr, as a line that redraws itself, where that is a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = sys.stderr.isatty()
        self._drawn = False

    def step(self, step: Step) -> None:
        if not self._live:
            return
        filled = round(24 * step.done / max(step.total, 1))
        line = f"[{'#' * filled}{'.' * (24 - filled)}] {step.done}/{step.total} {printable(step.text)}"
        width = shutil.get_terminal_size().columns - 1
        print("\r" + line[:width].ljust(width), end="", file=sys.stderr, flush=True)
        self._drawn = True

    def line(self, text: str = "") -> None:
        self.clear()
        print(text, file=self._out, flush=True)

    def clear(self) -> None:
        if self._drawn:
            print("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r", end="", file=sys.stderr, flush=True)
            self._drawn = False


class Table:
    """Columns of fixed width, so that rows can be printed as they come: (heading, width), numbers to the right."""

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._widths = [max(width, len(heading)) for heading, width in columns]
        self._headings = [heading for heading, _ in columns]

    @property
    def head(self) -> str:
        return self.row(*self._headings)

    def row(self, *cells: object) -> str:
        texts = [printable(str(cell)) for cell in cells]
        first = texts[0][: self._widths[0]].ljust(self._widths[0])
        rest = (text.rjust(width) for text, width in zip(texts[1:], self._widths[1:], strict=True))
        return "  ".join([first, *rest]).rstrip()


def printable(text: str) -> str:
    """One line without control characters: ids and tasks come from a file, and could command the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def yes_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with the first column to the left and the others to the right, each as wide as it must be."""
    widths = [max(len(printable(row[at])) for row in rows) for at in range(len(rows[0]))]
    return [Table(*(("", width) for width in widths)).row(*row) for row in rows]
