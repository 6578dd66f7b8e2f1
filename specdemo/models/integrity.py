"""Damage that leaves a file's size alone: found by hashes, in the background, and removed.

What is made here gets a manifest when it is made; the Hub's cache names large files by their hash.
A folder of the user's own has no known hashes and is left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specdemo.errors import DamagedModel, FetchError
from specdemo.models import ir
from specdemo.models.machine import cache_home, lower_priority

MANIFEST = "sha256.json"


def sha256(path: Path) -> str:
    """Of the content of `path`. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Keep the hashes of the files in `folder` beside them. Raises OSError."""
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}
    (folder / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")


def damaged(folder: Path) -> list[str]:
    """The names of the files in `folder` that are not what was made or fetched. Reads all of them:
    a second for every gigabyte or so."""
    try:
        known = ir.read_json(folder / MANIFEST)
    except FetchError:
        return [MANIFEST]
    if not known:  # the Hub's cache names the content of large files by its hash
        blobs = {one.name: one.resolve().name for one in folder.iterdir() if one.is_file()}
        known = {name: blob for name, blob in blobs.items() if re.fullmatch("[0-9a-f]{64}", blob)}
    return [name for name, hash in known.items() if not _holds(folder / name, hash)]


def _holds(path: Path, hash: str) -> bool:
    try:
        return sha256(path) == hash
    except OSError:
        return False


def discard(folder: Path, names: Sequence[str]) -> None:
    """Take what is damaged out of the caches, so that the next start makes or fetches it again."""
    for name in names:
        if (folder / name).is_symlink():  # the Hub's
            (folder / name).resolve().unlink(missing_ok=True)
    if (folder / MANIFEST).is_file() and cache_home() in folder.parents:
        shutil.rmtree(folder, ignore_errors=True)


class Check:
    """Hashes the files of `folders` in a thread of low priority."""

    def __init__(self, folders: Sequence[Path] = ()):
        self._found: list[str] = []
        self._thread = threading.Thread(target=self._run, args=[folders], daemon=True)
        self._thread.start()

    def require(self, seconds: float | None = None) -> None:
        """Raises DamagedModel once damage was found; waits for that at most `seconds`, None for as
        long as it takes."""
        self._thread.join(seconds)
        if self._found:
            raise DamagedModel(
                f"{' and '.join(self._found)} changed after it was made or fetched (its SHA-256 "
                "differs), so answers cannot be trusted; start again: it is replaced then."
            )

    def _run(self, folders: Sequence[Path]) -> None:
        lower_priority()
        for folder in folders:
            if names := damaged(folder):
                with suppress(OSError):  # a cache that is read only
                    discard(folder, names)
                self._found.append(f"{' and '.join(names)} in {folder.name}")
