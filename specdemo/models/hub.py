"""Files from the Hugging Face Hub: disk checked first, resumed after a kill, verified by hash.

The files are kept in huggingface_hub's own cache, where other programs find them. Its client starts
a file anew after a kill, so a part is kept here, and put into its cache when it is whole and its
hash is right.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.models import integrity, ir
from specdemo.models.machine import file_size, require_memory, require_space
from specdemo.models.progress import Meter, Report, silent

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

WORKING_BYTES = 1_000_000_000
"""Of memory, beside a model's weights."""

REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")

_SMALL = re.compile(r"[^/]+\.(json|jinja|model|txt|py)|openvino_(de)?tokenizer\.(xml|bin)")
"""Files of configuration, tokenizer and template, and code, which runs only if it is trusted."""


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
        _choose(names, repo)
        shards = ir.read_json(folder / "model.safetensors.index.json").get("weight_map", {})
        return Snapshot(folder, commit) if names.issuperset(shards.values()) else None
    return None


def split(repo: str) -> tuple[str, str]:
    """`owner/name@revision` as (`owner/name`, `revision`); main if none is named."""
    name, _, revision = repo.partition("@")
    return name, revision or "main"


def download(
    repos: Sequence[str], report: Report = silent, *, to_run: bool = True
) -> list[Snapshot]:
    """Fetch what is missing of `repos`, verify it and return the whole snapshots. Too small a disk
    or, for what is `to_run` here, too little memory is found before the first byte. What `report`
    raises ends it; what came is kept. Raises FetchError or BadInput."""
    listings = {repo: _listing(repo) for repo in repos}
    files = [(file, _blob(repo, file)) for repo in repos for file in listings[repo].siblings]
    size = sum(file.size for file, _ in files)
    absent = [(file, blob) for file, blob in files if file_size(blob) != file.size]
    missing = sum(file.size - file_size(_part(blob)) for file, blob in absent)
    names = " and ".join(repos)
    if to_run:  # weights must fit into memory once, or each token would read them from disk
        require_memory(size + WORKING_BYTES, f"Running {names}")
    if missing:
        require_space(_cache(), missing + 50_000_000, f"Downloading {names}")
    meter = Meter(report, f"Downloading {names}", size, size - missing)
    return [_fetched(repo, listing, meter) for repo, listing in listings.items()]


def _listing(repo: str) -> ModelInfo:
    """What the Hub says of `repo`, with no more files than are needed, the small ones first."""
    from huggingface_hub import HfApi

    name, revision = split(repo)
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    except Exception as error:
        raise _explained(error, repo) from error
    wanted = _choose([one.rfilename for one in info.siblings or []], repo)
    info.siblings = [one for one in info.siblings if one.rfilename in wanted]
    info.siblings.sort(key=lambda one: one.size)
    return info


def _fetched(repo: str, listing: ModelInfo, meter: Meter) -> Snapshot:
    name, revision = split(repo)
    storage = _storage(name)
    try:
        for file in listing.siblings:
            _fetch(repo, listing.sha, file, meter)
        if revision != listing.sha:
            reference = storage / "refs" / revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(listing.sha, encoding="utf-8")
    except SpecdemoError:
        raise
    except Exception as error:
        raise _explained(error, f"{name}@{listing.sha}") from error
    return Snapshot(storage / "snapshots" / listing.sha, listing.sha)


def _choose(names: Collection[str], repo: str) -> list[str]:
    """What to take from a repository with files of these names: its IR with tokenizer, else its
    PyTorch checkpoint. Raises BadInput if it has neither whole."""
    weights = [ir.MODEL, ir.WEIGHTS]
    if ir.MODEL not in names:
        weights = [name for name in names if re.fullmatch(r"[^/]+\.safetensors", name)]
    if not weights:
        raise BadInput(
            f"{repo} on the Hub holds neither OpenVINO IR ({ir.MODEL}) nor a checkpoint in "
            "safetensors."
        )
    required = [*weights, "config.json", "tokenizer.json"]
    if lacking := [name for name in required if name not in names]:
        raise BadInput(f"{repo} on the Hub has no {' and no '.join(lacking)}.")
    return [*weights, *(name for name in names if _SMALL.fullmatch(name))]


def _explained(error: Exception, repo: str) -> SpecdemoError:
    """An error between here and the Hub in one sentence, with what to do about it."""
    from huggingface_hub import constants, errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, errors.RevisionNotFoundError):
        return BadInput(f"{name} has no revision {revision!r} any more; see {page}/commits/main.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return BadInput(
            f"There is no model {name!r} at {constants.ENDPOINT} (check the spelling), or it is "
            f"private or is gated: ask for access at {page}, then set HF_TOKEN to a token that may "
            "read it."
        )
    why = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    return FetchError(
        f"{name} is not in the cache and could not be fetched from {constants.ENDPOINT} ({why}); "
        "when that is mended run the same again, it goes on where it stopped."
    )


def _fetch(repo: str, commit: str, file: RepoSibling, meter: Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    name, blob = split(repo)[0], _blob(repo, file)
    lock = _cache() / ".locks" / _storage(name).name / f"{blob.name}.lock"  # the client's own
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        if not _holds(blob, file.size, blob.name):
            with open(_part(blob), "ab") as part:
                http_get(
                    hf_hub_url(name, file.rfilename, revision=commit),
                    part,
                    resume_size=part.tell(),
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    tqdm_class=lambda **_: nullcontext(meter),
                )
            if not _holds(_part(blob), file.size, blob.name):
                _part(blob).unlink()
                raise FetchError(
                    f"{file.rfilename} of {name} arrived damaged (its size or hash is not the one "
                    "that the Hub lists) and was deleted; run the same again."
                )
            _part(blob).replace(blob)
    # With the blob in place this only asks for metadata and links it into the snapshot.
    hf_hub_download(name, file.rfilename, revision=commit)


def _holds(path: Path, size: int, digest: str) -> bool:
    """Whether `path` has the size and the hash that the Hub lists: SHA-256 of a large file, git's
    SHA-1 of a small one."""
    if file_size(path) != size:
        return False
    if len(digest) == 64:
        return integrity.sha256(path) == digest
    content = path.read_bytes()
    return hashlib.sha1(f"blob {size}\0".encode() + content).hexdigest() == digest


def _blob(repo: str, file: RepoSibling) -> Path:
    """The place of a file's content in the cache, named by its digest."""
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    return _storage(split(repo)[0]) / "blobs" / digest


def _part(blob: Path) -> Path:
    """The place of what has come of a file."""
    return blob.with_name(f"{blob.name}.part")


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _storage(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"
