"""The files of this program on this machine: their folder, free space, complete writes."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specdemo.errors import FetchError
from specdemo.machine.terminal import size


def cache_home() -> Path:
    """The folder for all files of this program: SPECDEMO_HOME, else `specdemo` in HF_HOME, else
    in the user's cache folder. It may not exist yet. Raises FetchError without a home folder."""
    caches = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("SPECDEMO_HOME", "").strip() or os.path.join(caches, "specdemo")
    path = os.path.expanduser(chosen)
    if path.startswith("~"):
        why = f"There is no home folder for {chosen}; set SPECDEMO_HOME to a folder of yours."
        raise FetchError(why)
    return Path(path).absolute()


def _variable(folder: Path) -> str:
    """The environment variable that moves `folder`."""
    named = os.environ.get("SPECDEMO_HOME", "").strip()
    return "SPECDEMO_HOME" if named and folder.is_relative_to(cache_home()) else "HF_HOME"


def measured_folder() -> Path:
    return cache_home() / "profiles"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that may be missing: nothing is written if the disk is full or read-only."""
    with suppress(OSError), replacing(path) as partial:
        partial.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path of the same suffix, which replaces `path` in one step after the block: readers
    find the old or the new content, also after a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=path.parent) as scratch:
        partial = Path(scratch, path.name)
        yield partial
        partial.replace(path)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise FetchError if the disk of `folder` has fewer than `needed` bytes free for `what`."""
    disk = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(disk).free
    if free < needed:
        raise FetchError(
            f"{what} needs {size(needed)} of disk in {disk} and {size(free)} are free; free some "
            f"space, or set {_variable(folder)} to a folder on a larger disk."
        )


@contextmanager
def exclusive_scratch(home: Path) -> Iterator[Path]:
    """Lock `home` and yield a scratch folder in it, which is removed at the end, like those that
    killed processes left. Raises FetchError if a file cannot be written."""
    import filelock

    try:
        home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home / "lock"):
            for leftover in home.glob("scratch-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix="scratch-", dir=home, ignore_cleanup_errors=True
            ) as scratch:
                yield Path(scratch)
    except OSError as error:
        space = "free some disk space or " if error.errno == errno.ENOSPC else ""
        raise FetchError(
            f"The folder {home} could not be written ({error.strerror or error}); {space}set "
            f"{_variable(home)} to another folder, then start again."
        ) from error


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link(target: Path, name: Path) -> None:
    """Make `name` a symbolic link to the file `target`, else (Windows may want a privilege) a hard
    link, else (on another disk) a copy."""
    for make in (name.symlink_to, name.hardlink_to):
        with suppress(OSError):
            return make(target)
    shutil.copyfile(target, name)


def file_size(path: Path) -> int:
    """Bytes of the file at `path`, 0 if there is none."""
    with suppress(OSError):
        return path.stat().st_size
    return 0
