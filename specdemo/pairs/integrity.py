"""Finds damaged model files by their SHA-256. Models made here have a manifest of hashes; the Hub's
cache names large files by their hash; a user's own folder has no known hashes."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specdemo.convert import ir
from specdemo.errors import DamagedModel, FetchError
from specdemo.host.disk import cache_home
from specdemo.host.hardware import in_background

MANIFEST = "sha256.json"


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def put(made: Path, folder: Path) -> None:
    """Write MANIFEST, the hashes of the files in `made`, then rename `made` to `folder`."""
    files = [path for path in sorted(made.iterdir()) if path.is_file() and not path.is_symlink()]
    hashes = {path.name: sha256(path) for path in files}
    (made / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    made.rename(folder)


def damaged(folder: Path) -> list[str]:
    """Names of the files in `folder` that are missing or have another hash than the known one."""
    try:
        known = ir.read_json(folder / MANIFEST)
    except FetchError:
        return [MANIFEST]
    if not known:  # the Hub's cache names the content of large files by its hash
        blobs = {file.name: file.resolve().name for file in folder.iterdir()}
        known = {name: blob for name, blob in blobs.items() if re.fullmatch("[0-9a-f]{64}", blob)}
    there = {name for name in known if (folder / name).is_file()}
    return [name for name in known if name not in there or sha256(folder / name) != known[name]]


class Check:
    """Hashes the files of `folders` in the background. Removes damaged files from the caches, so
    that the next start makes or fetches them again."""

    def __init__(self, folders: Sequence[Path] = ()):
        self._found = in_background(lambda: list(filter(None, map(_discarded, folders))))

    def require(self, seconds: float | None = None) -> None:
        """Raise DamagedModel if the check found damage. Waits at most `seconds` for its result
        (None: without limit), and raises nothing if it is not there by then."""
        with suppress(TimeoutError):
            if found := self._found.result(seconds):
                raise DamagedModel(
                    f"{' and '.join(found)} changed after it was made or fetched (its SHA-256 "
                    "differs), so answers cannot be trusted; start again: it is replaced then."
                )


def _discarded(folder: Path) -> str:
    """Remove damaged files of `folder` from the caches; gives their names in words, or ""."""
    names = damaged(folder)
    with suppress(OSError):  # the cache may be read-only
        for name in names:
            if (folder / name).is_symlink():  # in the Hub's cache
                (folder / name).resolve().unlink(missing_ok=True)
        if names and (folder / MANIFEST).is_file() and cache_home() in folder.parents:
            shutil.rmtree(folder, ignore_errors=True)
    return f"{' and '.join(names)} in {folder.name}" if names else ""
