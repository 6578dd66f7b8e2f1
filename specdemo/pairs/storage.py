"""The models that this program made on this disk: their sizes, when each was used last, and their
removal. Files that the Hub's cache holds are not among them."""

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput, FetchError
from specdemo.machine import disk

DAY = 86_400  # seconds


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A folder of a model in the cache folder."""

    name: str  # its path there
    bytes: int  # without files that a model before it in the list has too
    unused_days: float  # since it was last loaded


def mark_used(folder: Path) -> None:
    """Note that a model is loaded: as the time of its folder, if this program made it."""
    if folder.parent.parent == disk.cache_home():
        with suppress(OSError):  # the cache may be read-only
            os.utime(folder)


def stored_models() -> list[StoredModel]:
    """All models, the one that was used last first."""
    now, counted = time.time(), set[tuple[int, int]]()
    folders = sorted(_folders().items(), key=lambda item: -item[1].stat().st_mtime)
    return [
        StoredModel(name, sum(_sizes(folder, counted)), max(now - folder.stat().st_mtime, 0) / DAY)
        for name, folder in folders
    ]


def remove(names: Collection[str]) -> None:
    """Delete models by their names in `stored_models`. A process that runs one keeps its files
    until it ends (not on Windows). Raises BadInput for an unknown name, before anything is
    deleted, and FetchError."""
    folders = _folders()
    if unknown := sorted(set(names) - folders.keys()):
        raise BadInput(
            f"--remove {unknown[0]}: there is no such model; `specdemo cache` lists them."
        )
    for name in names:
        with disk.exclusive_scratch(folders[name].parent) as scratch:
            try:
                # A folder is renamed first: one that is deleted in part would count as damaged.
                folders[name].rename(scratch / "removed")
            except OSError as error:
                why = f"{folders[name]} cannot be removed: {error.strerror}."
                raise FetchError(why) from error


def _folders() -> dict[str, Path]:
    """The folders of models by name."""
    home = disk.cache_home()
    paths = (*home.glob("embedded/*"), *home.glob("exported/*"))
    folders = (path for path in paths if path.is_dir() and not path.name.startswith("scratch-"))
    return {folder.relative_to(home).as_posix(): folder for folder in folders}


def _sizes(folder: Path, counted: set[tuple[int, int]]) -> Iterator[int]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            status = path.lstat()
            if path.is_file() and (status.st_dev, status.st_ino) not in counted:
                counted.add((status.st_dev, status.st_ino))
                yield status.st_size
