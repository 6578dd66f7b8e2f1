"""The cache folder where models are kept: SPECDEMO_HOME, else the user's cache directory."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specdemo.models.errors import ZooError


def cache_home() -> Path:
    """The folder that holds everything this program keeps. It need not exist yet."""
    chosen = os.environ.get("SPECDEMO_HOME", "").strip()
    return Path(chosen).expanduser().absolute() if chosen else _user_cache() / "specdemo"


@contextmanager
def only_one_in(folder: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `folder`, which the system lets go when its holder dies.

    `waiting` is called about once a second while another process holds it.
    """
    import filelock

    lock = filelock.FileLock(folder / "lock")
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except filelock.Timeout:
            if waiting:
                waiting()
    try:
        yield
    finally:
        lock.release()


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    chosen = os.environ.get(variable, "").strip()
    return Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"


def make_folder(folder: Path) -> Path:
    """Create `folder` with its parents. Raises ZooError, in one sentence, where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZooError(
            f"The cache folder {folder} cannot be created ({error.strerror or error}); "
            "set SPECDEMO_HOME to a folder you can write to."
        ) from error
    return folder


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise ZooError if the disk of `folder` has fewer than `needed` bytes free for `what`."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ZooError(
            f"{what} needs {needed / 1e9:.1f} GB of disk in {folder} and {free / 1e9:.1f} GB are free; "
            "free some space, or set SPECDEMO_HOME (HF_HOME for Hub models) to a larger disk."
        )
