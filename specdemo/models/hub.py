"""Files from the Hugging Face Hub: disk checked first, resumed after a kill, verified by hash.

The files are kept in huggingface_hub's own cache, where other programs find them; a manifest in
this program's cache records that a snapshot is whole. The Hub's own client starts a file anew after
a kill, so the bytes are fetched here, with its `http_get`, and put into its cache when they are
whole and their hash is right.
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

from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.models.machine import cache_home, file_size, make_folder, require_space
from specdemo.models.progress import Progress, Report, estimate, silent

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

Choose = Callable[[Sequence[str]], list[str]]
"""From the names in a repository, those that are needed. Raises BadInput if one is missing."""

Check = Callable[[Path], None]
"""Raises a SpecdemoError if a snapshot's folder cannot be used."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `size` is in bytes.

    `digest` is SHA-256 for large files, git's SHA-1 for small ones. `link` is the file's place in
    the snapshot, `blob` that of its content in the Hub's cache.
    """

    name: str
    size: int
    digest: str
    link: Path
    blob: Path

    @property
    def part(self) -> Path:
        """What has been downloaded so far."""
        return self.blob.with_name(self.blob.name + ".part")

    @property
    def present(self) -> int:
        """Bytes on this disk, whole or in part."""
        if self.size in (file_size(self.link), file_size(self.blob)):
            return self.size
        return min(self.size, file_size(self.part))


@dataclass(frozen=True, slots=True)
class Listing:
    """What is needed of a repository at one commit. `spec` is its name as it was asked for."""

    spec: str
    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing(self) -> int:
        """Bytes that are not on this disk yet."""
        return sum(file.size - file.present for file in self.files)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole copy of what is needed of a repository, at a commit."""

    folder: Path
    commit: str


def answers(timeout: float = 2.0) -> bool:
    """Whether the Hub answers within `timeout` seconds; False at once with HF_HUB_OFFLINE."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.is_offline_mode():
        return False
    answered = threading.Event()

    def ask() -> None:
        with suppress(httpx.HTTPError, OSError):
            if get_session().head(constants.ENDPOINT, timeout=timeout).status_code < 500:
                answered.set()

    # A thread, because the lookup of a host name obeys no timeout.
    asking = threading.Thread(target=ask, name="is-the-hub-there", daemon=True)
    asking.start()
    asking.join(timeout)
    return answered.is_set()


def cached(repo: str, choose: Choose, check: Check) -> Snapshot | None:
    """The whole snapshot of `repo` on this disk, or None. Never asks the network.

    A snapshot that another program put into the Hub's cache (a Space's preload, say) is accepted if
    it holds everything that `choose` needs and passes `check`.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads(_manifest(repo).read_text(encoding="utf-8"))
        folder = Path(manifest["folder"])
        if all(file_size(folder / path) == size for path, size in manifest["files"].items()):
            return Snapshot(folder, manifest["commit"])
    name, commit = split(repo)
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (_storage(name) / "refs" / commit).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    folder = _storage(name) / "snapshots" / commit
    present = [path for path in folder.rglob("*") if path.is_file()]
    try:
        wanted = choose([path.relative_to(folder).as_posix() for path in present])
        check(folder)
    except SpecdemoError:
        return None
    _write_manifest(repo, commit, folder, {path: file_size(folder / path) for path in wanted})
    return Snapshot(folder, commit)


def split(repo: str) -> tuple[str, str]:
    """`owner/name@revision` as (`owner/name`, `revision`); main if none is named."""
    name, _, revision = repo.partition("@")
    return name, revision or "main"


def list_repository(repo: str, choose: Choose) -> Listing:
    """Ask the Hub what `repo` holds. Raises FetchError, or BadInput for a wrong name or content."""
    from huggingface_hub import HfApi

    name, revision = split(repo)
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    except Exception as error:
        raise explain(error, repo) from error
    siblings = {one.rfilename: one for one in info.siblings or []}
    try:
        wanted = choose(list(siblings))
    except BadInput as error:
        raise BadInput(f"{repo} on the Hub {error}") from error
    storage = _storage(name)
    files = []
    for path in wanted:
        one = siblings[path]
        digest = one.lfs["sha256"] if one.lfs else one.blob_id
        snapshot = storage / "snapshots" / info.sha
        files.append(
            RemoteFile(path, one.size, digest, snapshot / path, storage / "blobs" / digest)
        )
    return Listing(repo, name, info.sha, tuple(files))


def require_disk(listings: Sequence[Listing]) -> None:
    """Raise FetchError if the disk of the Hub's cache cannot hold what is missing of `listings`."""
    missing = sum(listing.missing for listing in listings)
    if missing:
        what = "Downloading " + " and ".join(listing.repo for listing in listings)
        require_space(_cache(), missing + 50_000_000, what)


def download(listing: Listing, check: Check, report: Report = silent) -> Snapshot:
    """Fetch what is missing of `listing`, verify it and return the whole snapshot.

    `check` looks at the folder before it counts as whole. Raises FetchError or BadInput.
    """
    meter = _Meter(report, listing)
    try:
        for file in sorted(listing.files, key=lambda one: one.size):
            _fetch(listing, file, meter)
    except SpecdemoError:
        raise
    except Exception as error:
        raise explain(error, listing.spec) from error
    folder = _storage(listing.repo) / "snapshots" / listing.commit
    check(folder)
    sizes = {file.name: file.size for file in listing.files}
    _write_manifest(listing.spec, listing.commit, folder, sizes)
    return Snapshot(folder, listing.commit)


def explain(error: Exception, repo: str) -> SpecdemoError:
    """One sentence for an error between here and the Hub, with what to do about it."""
    import httpx
    from huggingface_hub import constants, errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    messages = {  # a gated repository's error is also a RepositoryNotFoundError
        errors.OfflineModeIsEnabled: f"{name} is not in the cache and HF_HUB_OFFLINE forbids "
        "fetching it; unset HF_HUB_OFFLINE.",
        errors.GatedRepoError: f"{name} is gated: ask for access at {page}, then set HF_TOKEN to a "
        "token of the account that has it.",
        errors.RevisionNotFoundError: f"{name} has no revision {revision!r} any more; choose one "
        f"listed at {page}/commits/main.",
        errors.RepositoryNotFoundError: f"There is no model {name!r} at {constants.ENDPOINT}, or "
        "it is private; check the spelling, or set HF_TOKEN to a token that may read it.",
    }
    users = (errors.RevisionNotFoundError, errors.RepositoryNotFoundError)
    for cause, message in messages.items():
        if isinstance(error, cause):
            return BadInput(message) if cause in users else FetchError(message)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        advice = "try again later"
        if status in (401, 403):
            advice = "set HF_TOKEN to a token that may read it"
        return FetchError(f"The Hub refuses to serve {name} (HTTP {status}); {advice}.")
    if isinstance(error, (httpx.HTTPError, ConnectionError, TimeoutError)):
        return FetchError(
            f"{name} is not in the cache and {constants.ENDPOINT} cannot be reached or broke off "
            f"({type(error).__name__}); connect to the network and run the same again, it goes on "
            "where it stopped."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(
            f"The disk is full in the middle of {name}; free some space in {_cache()} (or set "
            "HF_HOME) and run the same again: it goes on where it stopped."
        )
    return FetchError(
        f"{name} could not be fetched from the Hub into {_cache()}: {type(error).__name__}: "
        f"{str(error)[:200]}."
    )


class _Meter:
    """Adds up the bytes of a listing and reports them at most ten times a second.

    Stands in for the progress bar of `http_get`.
    """

    def __init__(self, report: Report, listing: Listing) -> None:
        self._report = report
        self._text = f"Downloading {listing.repo}"
        self._total = listing.size
        self._done = self._already = listing.size - listing.missing
        self._began = time.monotonic()
        self._last = 0.0
        self.update(0)

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last > 0.1 or self._done >= self._total:
            self._last = now
            left = estimate(self._done, self._total, now - self._began, self._already)
            self._report(Progress(self._text, self._done, self._total, left))


def _fetch(listing: Listing, file: RemoteFile, meter: _Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if file_size(file.link) != file.size:
        file.link.unlink(missing_ok=True)
        make_folder(file.blob.parent)
        locks = make_folder(_cache() / ".locks" / _storage(listing.repo).name)  # the client's own
        with filelock.FileLock(locks / f"{file.blob.name}.lock"):
            if file_size(file.blob) != file.size:
                with open(file.part, "ab") as part:
                    there = part.tell() if part.tell() <= file.size else part.truncate(0)
                    if there < file.size:
                        http_get(
                            hf_hub_url(listing.repo, file.name, revision=listing.commit),
                            part,
                            resume_size=there,
                            headers=build_hf_headers(),
                            displayed_filename=file.name,
                            tqdm_class=lambda **_: meter,
                        )
                if _digest(file.part, file) != file.digest:
                    file.part.unlink()
                    raise FetchError(
                        f"{file.name} of {listing.repo} arrived damaged (its size or hash is not "
                        "the one that the Hub lists) and was deleted; run the same again."
                    )
                os.replace(file.part, file.blob)
    # With the blob in place this only asks for metadata and links it into the snapshot.
    hf_hub_download(listing.repo, file.name, revision=listing.commit)


def _digest(path: Path, file: RemoteFile) -> str:
    """SHA-256 of a large file, git's SHA-1 of a small one, as the Hub lists them."""
    with open(path, "rb") as data:
        if len(file.digest) == 64:
            return hashlib.file_digest(data, "sha256").hexdigest()
        content = data.read()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _storage(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"


def _manifest(repo: str) -> Path:
    name = repo.removesuffix("@main")
    return cache_home() / "hub" / (re.sub(r"[^\w.@-]+", "--", name) + ".json")


def _write_manifest(repo: str, commit: str, folder: Path, sizes: dict[str, int]) -> None:
    path = _manifest(repo)
    make_folder(path.parent)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    content = {"commit": commit, "folder": str(folder), "files": sizes}
    scratch.write_text(json.dumps(content), encoding="utf-8")
    os.replace(scratch, path)
