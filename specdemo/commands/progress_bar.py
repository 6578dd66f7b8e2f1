"""Progress on stderr: a bar that redraws itself on a terminal, one line a step elsewhere."""

from __future__ import annotations

import shutil
import sys

from specdemo.models.progress import Progress


class ProgressBar:
    """Give it to `load_pair(progress=...)`; call `close` when done."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._text = ""
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        if self._live:
            self._redraw(progress)
        elif progress.text != self._text:
            print(progress.text, file=sys.stderr, flush=True)
        self._text = progress.text

    def _redraw(self, progress: Progress) -> None:
        if progress.text != self._text and self._text:
            self.close()
        line = progress.line
        if progress.fraction is not None:
            filled = round(progress.fraction * 24)
            line = f"[{'#' * filled}{'.' * (24 - filled)}] {line}"
        line = line[: shutil.get_terminal_size().columns - 1]
        print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        """Leave the bar as it stands and go to the next line."""
        if self._live and self._width:
            print(file=sys.stderr)
        self._width = 0
