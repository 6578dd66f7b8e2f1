"""Files from the Hugging Face Hub: disk checked first, resumed after a kill, verified by hash.

The files are kept in huggingface_hub's own cache, where other programs find them. Its client starts
a file anew after a kill, so the bytes are fetched here, and put into its cache when they are whole
and their hash is right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.models import integrity, ir
from specdemo.models.machine import file_size, make_folder, require_space
from specdemo.models.progress import Meter, Report, silent

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")

_SMALL = re.compile(r"[^/]+\.(json|jinja|model|txt|py)|openvino_(de)?tokenizer\.(xml|bin)")
"""Files of configuration, tokenizer and template, and code, which runs only if it is trusted."""

PIECE = 1 << 18
TRIES, RETRY_SECONDS = 5, 1.0
"""Bytes of one write, and how a connection that broke off is taken up again."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `size` is in bytes. `blob` is the place of its content in the cache,
    named by its digest, `part` of what has come of it."""

    name: str
    size: int
    blob: Path

    @property
    def part(self) -> Path:
        return self.blob.with_name(self.blob.name + ".part")

    @property
    def missing(self) -> int:
        """Bytes that are not on this disk yet."""
        there = file_size(self.blob) == self.size
        return 0 if there else max(0, self.size - file_size(self.part))


@dataclass(frozen=True, slots=True)
class Listing:
    """What is needed of a repository at one commit, which `revision` names."""

    repo: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's whole folder; `revision` is its commit, or a fingerprint for a folder of one's
    own."""

    folder: Path
    revision: str


def cached(repo: str) -> Snapshot | None:
    """The whole snapshot of `repo` on this disk, or None. Never asks the network.

    Whoever put it into the Hub's cache (a Space's preload, say), it is accepted if it is complete.
    """
    name, commit = split(repo)
    with suppress(OSError, SpecdemoError):
        if not re.fullmatch("[0-9a-f]{40}", commit):
            commit = (_storage(name) / "refs" / commit).read_text(encoding="utf-8").strip()
        folder = _storage(name) / "snapshots" / commit
        names = {path.name for path in folder.iterdir() if path.is_file()}
        _choose(names)
        safe = any(name.endswith(".safetensors") for name in names)
        index = "model.safetensors.index.json" if safe else "pytorch_model.bin.index.json"
        shards = ir.read_json(folder / index).get("weight_map", {})
        return Snapshot(folder, commit) if names.issuperset(shards.values()) else None
    return None


def split(repo: str) -> tuple[str, str]:
    """`owner/name@revision` as (`owner/name`, `revision`); main if none is named."""
    name, _, revision = repo.partition("@")
    return name, revision or "main"


def list_repository(repo: str) -> Listing:
    """Ask the Hub what `repo` holds. Raises FetchError, or BadInput for a wrong name or content."""
    from huggingface_hub import HfApi

    name, revision = split(repo)
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    except Exception as error:
        raise explain(error, repo) from error
    siblings = {one.rfilename: one for one in info.siblings or []}
    try:
        wanted = [siblings[path] for path in _choose(list(siblings))]
    except BadInput as error:
        raise BadInput(f"{repo} on the Hub {error}") from error
    blobs = _storage(name) / "blobs"
    files = [
        RemoteFile(one.rfilename, one.size, blobs / (one.lfs["sha256"] if one.lfs else one.blob_id))
        for one in wanted
    ]
    return Listing(name, revision, info.sha, tuple(files))


def download(listings: Sequence[Listing], report: Report = silent) -> list[Snapshot]:
    """Fetch what is missing of `listings`, verify it and return the whole snapshots. Too small a
    disk is found before the first byte. What `report` raises ends it; what came is kept.

    Raises FetchError or BadInput.
    """
    missing = sum(file.missing for listing in listings for file in listing.files)
    size = sum(listing.size for listing in listings)
    what = "Downloading " + " and ".join(one.repo for one in listings)
    if missing:
        require_space(_cache(), missing + 50_000_000, what)
    meter = Meter(report, what, size, size - missing)
    snapshots = []
    for listing in listings:
        try:
            for file in sorted(listing.files, key=lambda one: one.size):
                _fetch(listing, file, meter)
        except SpecdemoError:
            raise
        except Exception as error:
            raise explain(error, f"{listing.repo}@{listing.commit}") from error
        folder = _storage(listing.repo) / "snapshots" / listing.commit
        if listing.revision != listing.commit:
            reference = _storage(listing.repo) / "refs" / listing.revision
            make_folder(reference.parent)
            reference.write_text(listing.commit, encoding="utf-8")
        snapshots.append(Snapshot(folder, listing.commit))
    return snapshots


def _choose(names: Collection[str]) -> list[str]:
    """What to take from a repository: its IR with tokenizer, else its PyTorch checkpoint.

    Raises BadInput, a sentence without its subject, if it has neither whole.
    """
    weights = [ir.MODEL, ir.WEIGHTS]
    if ir.MODEL not in names:
        weights = [name for name in names if re.fullmatch(r"[^/]+\.safetensors", name)]
        weights = weights or [one for one in names if re.fullmatch(r"pytorch_model[^/]*\.bin", one)]
    if not weights:
        raise BadInput(f"holds neither OpenVINO IR ({ir.MODEL}) nor a PyTorch checkpoint.")
    required = [*weights, "config.json", "tokenizer.json"]
    if lacking := [name for name in required if name not in names]:
        raise BadInput(f"has no {' and no '.join(lacking)}; choose a repository that has.")
    return [*weights, *(name for name in names if _SMALL.fullmatch(name))]


def explain(error: Exception, repo: str) -> SpecdemoError:
    """One sentence for an error between here and the Hub, with what to do about it."""
    import httpx
    from huggingface_hub import constants, errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    response = getattr(error, "response", None)
    match error:
        case errors.OfflineModeIsEnabled():
            said = f"{name} is not in the cache and HF_HUB_OFFLINE forbids fetching it; unset it."
        case errors.GatedRepoError():  # also a RepositoryNotFoundError
            said = f"{name} is gated: ask for access at {page}, then set HF_TOKEN to a token of it."
        case errors.RevisionNotFoundError():
            return BadInput(
                f"{name} has no revision {revision!r} any more; see {page}/commits/main."
            )
        case errors.RepositoryNotFoundError():
            return BadInput(
                f"There is no model {name!r} at {constants.ENDPOINT}, or it is private; check the "
                "spelling, or set HF_TOKEN to a token that may read it."
            )
        case _ if response is not None:
            said = (
                f"The Hub refuses to serve {name} (HTTP {response.status_code}); try again later, "
                "or set HF_TOKEN to a token that may read it."
            )
        case httpx.HTTPError() | ConnectionError() | TimeoutError():
            said = (
                f"{name} is not in the cache and {constants.ENDPOINT} cannot be reached or broke "
                f"off ({type(error).__name__}); connect to the network and run the same again, it "
                "goes on where it stopped."
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            said = (
                f"The disk is full in the middle of {name}; free some space in {_cache()} (or set "
                "HF_HOME) and run the same again: it goes on where it stopped."
            )
        case _:
            said = f"{name} could not be fetched into {_cache()}: {error!r:.200}."
    return FetchError(said)


def _fetch(listing: Listing, file: RemoteFile, meter: Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_download, hf_hub_url

    make_folder(file.blob.parent)
    locks = make_folder(_cache() / ".locks" / _storage(listing.repo).name)  # the client's own
    with filelock.FileLock(locks / f"{file.blob.name}.lock"):
        if not _holds(file.blob, file):
            _receive(hf_hub_url(listing.repo, file.name, revision=listing.commit), file, meter)
            if not _holds(file.part, file):
                file.part.unlink()
                raise FetchError(
                    f"{file.name} of {listing.repo} arrived damaged (its size or hash is not "
                    "the one that the Hub lists) and was deleted; run the same again."
                )
            os.replace(file.part, file.blob)
    # With the blob in place this only asks for metadata and links it into the snapshot.
    hf_hub_download(listing.repo, file.name, revision=listing.commit)


def _receive(url: str, file: RemoteFile, meter: Meter) -> None:
    """Append to the part of `file` what it lacks. A connection that breaks off is taken up again,
    TRIES times without a byte. Raises what httpx and the Hub's client raise."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    failures = 0
    with open(file.part, "ab") as part:
        while (there := part.tell()) < file.size:
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            headers["Range"] = f"bytes={there}-"
            asked = {"headers": headers, "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT}
            try:
                with get_session().stream("GET", url, **asked) as response:
                    hf_raise_for_status(response)
                    if response.status_code != 206:  # the server knows no ranges
                        part.truncate(0)
                        part.seek(0)
                        meter.update(-there)
                    for piece in response.iter_bytes(PIECE):
                        part.write(piece)
                        meter.update(len(piece))
            except httpx.TransportError:
                failures = 0 if part.tell() > there else failures + 1
                if failures == TRIES:
                    raise
                time.sleep(RETRY_SECONDS)


def _holds(path: Path, file: RemoteFile) -> bool:
    """Whether `path` has the size and the hash that the Hub lists: SHA-256 of a large file, git's
    SHA-1 of a small one."""
    if file_size(path) != file.size or not path.is_file():
        return False
    if len(file.blob.name) == 64:
        return integrity.sha256(path) == file.blob.name
    content = path.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest() == file.blob.name


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _storage(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"
