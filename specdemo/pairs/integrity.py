"""Finds damaged model files by their SHA-256. Models made here have a manifest of hashes; the Hub's
cache names large files by their hash; any other folder is data: no manifest in it counts."""

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specdemo.convert import ir
from specdemo.errors import DamagedModel, FetchError
from specdemo.host.disk import cache_home, sha256
from specdemo.host.hardware import in_background
from specdemo.pairs import hub


def put(scratch: Path, folder: Path) -> None:
    """Write MANIFEST, the hashes of the files in `scratch`, then rename `scratch` to `folder`, in
    place of what was left there."""
    (scratch / ir.MANIFEST).unlink(missing_ok=True)
    files = [path for path in sorted(scratch.iterdir()) if path.is_file() and not path.is_symlink()]
    hashes = {path.name: sha256(path) for path in files}
    (scratch / ir.MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def whole(folder: Path) -> bool:
    """Whether `put` wrote the folder, and it was not removed; where a file is in use (Windows) the
    rest of a removed folder stays."""
    return (folder / ir.MANIFEST).is_file()


def damaged(folder: Path) -> list[str]:
    """Names of the files in `folder` that are missing or have another hash than the known one."""
    try:
        hashes = _known_hashes(folder)
    except FetchError:
        return [ir.MANIFEST]
    paths = {name: folder / name for name in hashes}
    return [
        name for name, path in paths.items() if not path.is_file() or sha256(path) != hashes[name]
    ]


def _known_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file name. Raises FetchError for a damaged manifest."""
    if _written_here(folder):
        hashes = ir.read_json(folder / ir.MANIFEST)
        return {name: digest for name, digest in hashes.items() if re.fullmatch(r"\w[\w.-]*", name)}
    blobs = hub.blobs(folder)
    paths = {file.name: file.resolve() for file in folder.iterdir()} if blobs else {}
    return {
        name: path.name
        for name, path in paths.items()
        if path.parent == blobs and re.fullmatch("[0-9a-f]{64}", path.name)
    }


def _written_here(folder: Path) -> bool:
    return folder.parent.parent == cache_home()


class Check:
    """Hashes the files of `folders` in the background. Removes damaged files from the caches, so
    that the next start makes or fetches them again."""

    def __init__(self, folders: Sequence[Path] = ()):
        self._damage = in_background(lambda: list(filter(None, map(_discarded, folders))))

    def require(self, seconds: float | None = None) -> None:
        """Raise DamagedModel if the check found damage. Waits at most `seconds` for its result
        (None: without limit), and raises nothing if it is not there by then."""
        with suppress(TimeoutError):
            if damage := self._damage.result(seconds):
                raise DamagedModel(
                    f"{' and '.join(damage)} changed after it was made or fetched (its SHA-256 "
                    "differs), so answers cannot be trusted; start again: it is replaced then."
                )


def _discarded(folder: Path) -> str:
    """Remove damaged files of `folder` from the caches; gives their names in words, or "". Deletes
    nothing but whole folders made here, and contents in the Hub's cache."""
    names = damaged(folder)
    with suppress(OSError):  # the cache may be read-only
        if names and _written_here(folder):
            shutil.rmtree(folder, ignore_errors=True)
        elif names:
            for name in names:
                (folder / name).resolve().unlink(missing_ok=True)
    return f"{' and '.join(names)} in {folder.name}" if names else ""
