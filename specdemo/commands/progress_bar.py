"""Progress on stderr: a bar on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
from typing import Self

import click
from tqdm import tqdm

from specdemo.models.progress import Progress


class ProgressBar:
    """A context whose value is a Report for `load_pair(progress=...)`."""

    def __init__(self) -> None:
        self._step = ""
        self._bar = tqdm(disable=True)

    def __call__(self, progress: Progress) -> None:
        if progress.text != self._step:
            self._begin(progress)
        self._bar.update(progress.done - self._bar.n)

    def _begin(self, progress: Progress) -> None:
        self._bar.close()
        self._step = progress.text
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            desc=progress.text,
            total=progress.total,
            initial=progress.done,
            unit="B",
            unit_scale=True,
            bar_format=None if progress.total else "{desc}",
            disable=not terminal,
        )
        if not terminal:
            click.echo(progress.text, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
