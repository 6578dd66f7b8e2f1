"""Files from the Hugging Face Hub: checked before the first byte, resumed after a kill, verified, and never half used.

The files land in huggingface_hub's own cache, where other programs find them; a small manifest of ours says that a
snapshot is whole. `snapshot_download` alone starts a file anew after a kill, so the bytes are fetched here, by
huggingface_hub's `http_get`, into a file that is kept, and handed to its cache when they are whole and right.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.models.errors import BadChoice, ZooError
from specdemo.models.home import cache_home, make_folder, require_space
from specdemo.models.progress import Progress, Report, estimate, silent

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

Choose = Callable[[Sequence[str]], list[str]]
"""From the names in a repository, those that are needed; raises BadChoice if it has not got what is needed."""


Check = Callable[[Path], None]
"""Looks at a folder and raises ZooError if it is not what it should be."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`size` in bytes; the hash is SHA-256 for large files, git's blob hash for small ones, "" if the Hub has none."""

    path: str
    size: int
    sha256: str = ""
    blob_id: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is wanted of a repository at one commit."""

    repo: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing(self) -> int:
        """Bytes that are not on this disk yet."""
        return sum(file.size - _already(self, file) for file in self.files)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole copy of what was wanted of a repository, at a commit."""

    folder: Path
    commit: str


def answers(timeout: float = 2.0) -> bool:
    """Whether the Hub can be reached now: at most `timeout` seconds, and none at all with HF_HUB_OFFLINE."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import get_session

    heard = []

    def ask() -> None:
        with suppress(httpx.HTTPError, OfflineModeIsEnabled, OSError):
            heard.append(get_session().head(constants.ENDPOINT, timeout=timeout).status_code < 500)

    if constants.is_offline_mode():
        return False
    # A thread, because looking a name up obeys no timeout.
    asking = threading.Thread(target=ask, name="is-the-hub-there", daemon=True)
    asking.start()
    asking.join(timeout)
    return heard == [True]


def cached(repo: str, choose: Choose, check: Check | None = None) -> Snapshot | None:
    """The whole snapshot of `repo` on this disk, or None. Never asks the network.

    Besides what `download` fetched it accepts what another program (a Space's preload, say) put into the Hub's cache,
    if everything that `choose` wants is there and `check` does not raise.
    """
    name, revision = split(repo)
    try:
        manifest = json.loads(_manifest(repo).read_text(encoding="utf-8"))
        folder = Path(manifest["folder"])
        if all((folder / path).stat().st_size == bytes_ for path, bytes_ in manifest["files"].items()):
            return Snapshot(folder, manifest["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    storage = _storage(name)
    commit = revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (storage / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    folder = storage / "snapshots" / commit
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        wanted = choose(names)
        if check:
            check(folder)
    except ZooError:
        return None
    _write_manifest(repo, commit, folder, {name: _size(folder / name) for name in wanted})
    return Snapshot(folder, commit)


def split(repo: str) -> tuple[str, str]:
    """`owner/name@revision` as (`owner/name`, `revision`); main if none is said."""
    name, _, revision = repo.partition("@")
    return name, revision or "main"


def list_repository(repo: str, choose: Choose) -> Listing:
    """Ask the Hub what `repo` holds. Raises ZooError, with what to do, if it does not answer or refuses."""
    from huggingface_hub import HfApi

    name, revision = split(repo)
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    except Exception as error:
        raise explain(error, repo) from error
    files = {
        one.rfilename: RemoteFile(
            one.rfilename,
            one.size or 0,
            sha256=(one.lfs or {}).get("sha256", "") if one.lfs else "",
            blob_id=one.blob_id or "",
        )
        for one in info.siblings or []
    }
    try:
        wanted = choose(list(files))
    except BadChoice as error:
        raise BadChoice(f"{repo} on the Hub {error}") from error
    return Listing(name, revision, info.sha or "", tuple(files[path] for path in wanted))


def require_disk(listings: Sequence[Listing]) -> None:
    """Raise ZooError if the disk of the Hub's cache cannot take what is missing of `listings`."""
    missing = sum(listing.missing for listing in listings)
    if missing:
        what = "Downloading " + " and ".join(listing.repo for listing in listings)
        require_space(_cache(), missing + 50_000_000, what)


def download(listing: Listing, report: Report = silent, *, check: Check | None = None) -> Snapshot:
    """Fetch what is missing of `listing`, verify it and return the whole snapshot.

    `check` looks at the folder before it counts as whole. Raises ZooError with one sentence for every failure.
    """
    meter = _Meter(report, listing)
    try:
        for file in sorted(listing.files, key=lambda one: one.size):
            _fetch_file(listing, file, meter)
    except ZooError:
        raise
    except Exception as error:
        raise explain(error, listing.repo) from error
    folder = _storage(listing.repo) / "snapshots" / listing.commit
    if check:
        check(folder)
    spec = listing.repo if listing.revision == "main" else f"{listing.repo}@{listing.revision}"
    _write_manifest(spec, listing.commit, folder, {file.path: file.size for file in listing.files})
    return Snapshot(folder, listing.commit)


def explain(error: Exception, repo: str) -> ZooError:
    """The sentence for what went wrong between here and the Hub, with what to do about it."""
    import httpx
    from huggingface_hub import constants, errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return ZooError(f"{name} is not in the cache and HF_HUB_OFFLINE forbids fetching it; unset HF_HUB_OFFLINE.")
    if isinstance(error, errors.GatedRepoError):
        return ZooError(
            f"{name} is gated: ask for access at {page}, then set HF_TOKEN to a token of the account that has it."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return BadChoice(
            f"There is no model {name!r} at {constants.ENDPOINT}, or it is private; check the spelling, or set "
            "HF_TOKEN to a token that may read it."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return BadChoice(f"{name} has no revision {revision!r} any more; choose one listed at {page}/commits/main.")
    if isinstance(error, errors.EntryNotFoundError):
        return ZooError(f"A file of {name} is gone from the Hub ({page}); the repository has changed, so try again.")
    if status in (401, 403):
        return ZooError(f"The Hub refuses access to {name} ({status}); set HF_TOKEN to a token that may read it.")
    if status == 429:
        return ZooError(f"The Hub asks for patience ({name}: too many requests); try again in a few minutes.")
    if status is not None:
        return ZooError(f"The Hub failed to serve {name} (HTTP {status}); try again later.")
    if isinstance(error, errors.HFValidationError):
        return BadChoice(f"{name!r} is not the name of a Hub repository; write owner/name.")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ZooError(
            f"The disk is full in the middle of {name}; free some space in {_cache()} (or set HF_HOME) and run the "
            "same again: it goes on where it stopped."
        )
    if isinstance(error, (httpx.HTTPError, ConnectionError, TimeoutError)):
        return ZooError(
            f"{name} is not in the cache and {constants.ENDPOINT} cannot be reached or broke off "
            f"({type(error).__name__}); connect to the network and run the same again, it goes on where it stopped."
        )
    if isinstance(error, OSError):
        return ZooError(f"{name} could not be written to {_cache()}: {error.strerror or error}.")
    return ZooError(f"{name} could not be fetched from the Hub: {type(error).__name__}: {str(error)[:200]}.")


class _Meter:
    """Adds up bytes over the files of a listing and reports them at most ten times a second."""

    def __init__(self, report: Report, listing: Listing) -> None:
        self._report = report
        self._text = f"Downloading {listing.repo}"
        self._total = listing.size
        self._done = self._already = listing.size - listing.missing
        self._began = time.monotonic()
        self._last = 0.0
        self.add(0)

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last > 0.1 or self._done >= self._total:
            self._last = now
            left = estimate(self._done, self._total, now - self._began, self._already)
            self._report(Progress(self._text, self._done, self._total, left))

    def tqdm_class(self) -> type:
        """The progress bar that http_get is given: it only counts."""
        meter = self

        class Counter:
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def __enter__(self) -> Counter:
                return self

            def __exit__(self, *_: Any) -> None:
                pass

            def update(self, count: float | None = 1) -> None:
                meter.add(int(count or 0))

        return Counter


def _fetch_file(listing: Listing, file: RemoteFile, meter: _Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    pointer = _storage(listing.repo) / "snapshots" / listing.commit / file.path
    blob = _blob(listing, file)
    if pointer.exists() and _size(pointer) != file.size:  # damaged since it came
        pointer.resolve().unlink(missing_ok=True)
        pointer.unlink(missing_ok=True)
    if not pointer.exists() and blob is not None:
        make_folder(blob.parent)
        part = blob.with_name(blob.name + ".part")
        lock = _cache() / ".locks" / _storage(listing.repo).name / f"{blob.name}.lock"  # the client's own
        make_folder(lock.parent)
        with filelock.FileLock(lock):
            if not blob.exists():
                with open(part, "r+b" if part.exists() else "w+b") as out:
                    there = out.seek(0, os.SEEK_END)
                    if there > file.size:
                        there = out.truncate(0) or out.seek(0)
                    try:
                        http_get(
                            hf_hub_url(listing.repo, file.path, revision=listing.commit),
                            out,
                            resume_size=there,
                            headers=build_hf_headers(),
                            expected_size=file.size,
                            displayed_filename=file.path,
                            tqdm_class=meter.tqdm_class(),
                        )
                    except OSError as error:
                        if error.errno is not None or "size" not in str(error):
                            raise
                        # http_get's own check of the length
                        what = f"has {_size(part):,} bytes, not {file.size:,}"
                        raise _discard(part, listing, file, what) from error
                if _hash(part, file) != (file.sha256 or file.blob_id):
                    raise _discard(part, listing, file, "does not have the hash that the Hub lists")
                os.replace(part, blob)
    # With the blob in place this only asks for metadata and links it into the snapshot.
    hf_hub_download(listing.repo, file.path, revision=listing.commit)


def _discard(part: Path, listing: Listing, file: RemoteFile, what: str) -> ZooError:
    part.unlink(missing_ok=True)
    name = f"{file.path} of {listing.repo}"
    return ZooError(f"{name} arrived damaged (it {what}) and was thrown away; run the same again.")


def _hash(path: Path, file: RemoteFile) -> str:
    """SHA-256 of a large file, git's hash of a small one, as the Hub lists them."""
    with open(path, "rb") as data:
        if file.sha256:
            return hashlib.file_digest(data, "sha256").hexdigest()
        total = hashlib.sha1(f"blob {_size(path)}\0".encode(), usedforsecurity=False)
        while chunk := data.read(1 << 20):
            total.update(chunk)
        return total.hexdigest()


def _already(listing: Listing, file: RemoteFile) -> int:
    """Bytes of `file` that are on this disk, whole or begun."""
    if _size(_storage(listing.repo) / "snapshots" / listing.commit / file.path) == file.size:
        return file.size
    blob = _blob(listing, file)
    if blob is None:
        return 0
    return file.size if blob.exists() else min(file.size, _size(blob.with_name(blob.name + ".part")))


def _blob(listing: Listing, file: RemoteFile) -> Path | None:
    """Where the Hub's cache keeps the content, named by the hash that is also its ETag."""
    name = file.sha256 or file.blob_id
    return _storage(listing.repo) / "blobs" / name if name else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _storage(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"


def _write_manifest(repo: str, commit: str, folder: Path, sizes: dict[str, int]) -> None:
    path = _manifest(repo)
    make_folder(path.parent)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps({"commit": commit, "folder": str(folder), "files": sizes}), encoding="utf-8")
    os.replace(scratch, path)


def _manifest(repo: str) -> Path:
    return cache_home() / "hub" / (re.sub(r"[^\w.@-]+", "--", repo) + ".json")
