"""Files from the Hugging Face Hub: disk checked first, resumed after a kill, verified by hash.

The files are kept in huggingface_hub's own cache, where other programs find them. Its client starts
a file anew after a kill, so the bytes are fetched here, with its `http_get`, and put into its cache
when they are whole and their hash is right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.models import integrity, ir
from specdemo.models.machine import file_size, make_folder, require_space
from specdemo.models.progress import Meter, Report, silent

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_SMALL = re.compile(r"[^/]+\.(json|jinja|model|txt|py)|openvino_(de)?tokenizer\.(xml|bin)")
"""Files of configuration, tokenizer and template, and code, which runs only if it is trusted."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `size` is in bytes; `digest` is SHA-256 for large files, git's SHA-1
    for small ones. `link` is its place in the snapshot, `blob` that of its content in the cache."""

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
    def missing(self) -> int:
        """Bytes that are not on this disk yet."""
        if self.size in (file_size(self.link), file_size(self.blob)):
            return 0
        return max(0, self.size - file_size(self.part))


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

    @property
    def missing(self) -> int:
        return sum(file.missing for file in self.files)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's whole folder; `revision` is its commit, or a fingerprint for a folder of one's
    own."""

    folder: Path
    revision: str


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


def cached(repo: str) -> Snapshot | None:
    """The whole snapshot of `repo` on this disk, or None. Never asks the network.

    Whoever put it into the Hub's cache (a Space's preload, say), it is accepted if it is complete.
    """
    name, commit = split(repo)
    with suppress(OSError, SpecdemoError):
        if not _COMMIT.fullmatch(commit):
            commit = _reference(name, commit).read_text(encoding="utf-8").strip()
        folder = _storage(name) / "snapshots" / commit
        present = [path for path in folder.rglob("*") if path.is_file()]
        _choose([path.relative_to(folder).as_posix() for path in present])
        _check(folder)
        return Snapshot(folder, commit)
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
    storage = _storage(name)
    siblings = {one.rfilename: one for one in info.siblings or []}
    try:
        wanted = _choose(list(siblings))
    except BadInput as error:
        raise BadInput(f"{repo} on the Hub {error}") from error
    files = []
    for path in wanted:
        one = siblings[path]
        digest = one.lfs["sha256"] if one.lfs else one.blob_id
        link = storage / "snapshots" / info.sha / path
        files.append(RemoteFile(path, one.size, digest, link, storage / "blobs" / digest))
    return Listing(name, revision, info.sha, tuple(files))


def require_disk(listings: Sequence[Listing]) -> None:
    """Raise FetchError if the disk of the Hub's cache cannot hold what is missing of `listings`."""
    missing = sum(listing.missing for listing in listings)
    if missing:
        what = "Downloading " + " and ".join(listing.repo for listing in listings)
        require_space(_cache(), missing + 50_000_000, what)


def download(listing: Listing, report: Report = silent) -> Snapshot:
    """Fetch what is missing of `listing`, verify it and return the whole snapshot.

    Raises FetchError or BadInput.
    """
    size = listing.size
    meter = Meter(report, f"Downloading {listing.repo}", size, size - listing.missing)
    try:
        for file in sorted(listing.files, key=lambda one: one.size):
            _fetch(listing, file, meter)
    except SpecdemoError:
        raise
    except Exception as error:
        raise explain(error, f"{listing.repo}@{listing.revision}") from error
    folder = _storage(listing.repo) / "snapshots" / listing.commit
    _check(folder)
    if listing.revision != listing.commit:
        reference = _reference(listing.repo, listing.revision)
        make_folder(reference.parent)
        reference.write_text(listing.commit, encoding="utf-8")
    return Snapshot(folder, listing.commit)


def _choose(names: Sequence[str]) -> list[str]:
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


def _check(folder: Path) -> None:
    """Raise SpecdemoError if IR cannot be used or a checkpoint lacks one of its shards."""
    if (folder / ir.MODEL).exists():
        ir.check_decoder(folder)
        return
    weights = "model.safetensors" if any(folder.glob("*.safetensors")) else "pytorch_model.bin"
    index = ir.read_json(folder / f"{weights}.index.json")
    for shard in set(index.get("weight_map", {}).values()):
        if not (folder / shard).is_file():
            raise FetchError(f"{folder} lacks {shard}; fetch the model again.")


def explain(error: Exception, repo: str) -> SpecdemoError:
    """One sentence for an error between here and the Hub, with what to do about it."""
    import httpx
    from huggingface_hub import constants, errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    known = {  # a gated repository's error is also a RepositoryNotFoundError
        errors.OfflineModeIsEnabled: f"{name} is not in the cache and HF_HUB_OFFLINE forbids "
        "fetching it; unset HF_HUB_OFFLINE.",
        errors.GatedRepoError: f"{name} is gated: ask for access at {page}, then set HF_TOKEN to a "
        "token of the account that has it.",
        errors.RevisionNotFoundError: f"{name} has no revision {revision!r} any more; choose one "
        f"listed at {page}/commits/main.",
        errors.RepositoryNotFoundError: f"There is no model {name!r} at {constants.ENDPOINT}, or "
        "it is private; check the spelling, or set HF_TOKEN to a token that may read it.",
    }
    for cause, said in known.items():
        if isinstance(error, cause):
            gone = cause in (errors.RevisionNotFoundError, errors.RepositoryNotFoundError)
            return BadInput(said) if gone else FetchError(said)
    response = getattr(error, "response", None)
    if response is not None:
        refused = response.status_code in (401, 403)
        advice = "set HF_TOKEN to a token that may read it" if refused else "try again later"
        said = f"The Hub refuses to serve {name} (HTTP {response.status_code}); {advice}."
    elif isinstance(error, (httpx.HTTPError, ConnectionError, TimeoutError)):
        said = (
            f"{name} is not in the cache and {constants.ENDPOINT} cannot be reached or broke off "
            f"({type(error).__name__}); connect to the network and run the same again, it goes on "
            "where it stopped."
        )
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        said = (
            f"The disk is full in the middle of {name}; free some space in {_cache()} (or set "
            "HF_HOME) and run the same again: it goes on where it stopped."
        )
    else:
        said = f"{name} could not be fetched into {_cache()}: {error!r:.200}."
    return FetchError(said)


def _fetch(listing: Listing, file: RemoteFile, meter: Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if not _holds(file.link, file):
        file.link.unlink(missing_ok=True)
        make_folder(file.blob.parent)
        locks = make_folder(_cache() / ".locks" / _storage(listing.repo).name)  # the client's own
        with filelock.FileLock(locks / f"{file.blob.name}.lock"):
            if not _holds(file.blob, file):
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


def _holds(path: Path, file: RemoteFile) -> bool:
    """Whether `path` is the whole file, undamaged."""
    return file_size(path) == file.size and _digest(path, file) == file.digest


def _digest(path: Path, file: RemoteFile) -> str:
    """SHA-256 of a large file, git's SHA-1 of a small one, as the Hub lists them."""
    if len(file.digest) == 64:
        return integrity.sha256(path)
    content = path.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _storage(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"


def _reference(repo: str, revision: str) -> Path:
    """The file of the Hub's cache that says which commit `revision` is."""
    return _storage(repo) / "refs" / revision
