"""Files from the Hugging Face Hub: disk checked first, resumed after a kill, verified by hash.

They are kept in huggingface_hub's own cache, where other programs find them. Its client starts a
file anew after a kill, so parts are kept here, and take their place when their hash is right."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants

from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.models import integrity, ir
from specdemo.models.machine import file_size, require_memory, require_space
from specdemo.models.progress import Meter, Report, silent

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

WORKING_BYTES = 1_000_000_000  # of memory, beside a model's weights
REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")

_SMALL = re.compile(r"[^/]+\.(json|jinja|model|txt|py)|openvino_(de)?tokenizer\.(xml|bin)")
"""Files of configuration, tokenizer and template, and code, which runs only if it is trusted."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's whole folder; `revision` is its commit, or a fingerprint of the user's own."""

    folder: Path
    revision: str


def cached(repo: str) -> Snapshot | None:
    """The whole snapshot of `repo` on this disk, whoever put it there (a Space's preload, say), or
    None. Never asks the network."""
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
    """Fetch what is missing of `repos` and verify it. Too small a disk or, for what is `to_run`
    here, too little memory is found before the first byte. What `report` raises ends it; what came
    is kept. Raises FetchError or BadInput."""
    listings = {repo: _listing(repo) for repo in repos}
    size = missing = 0
    for repo, listing in listings.items():
        for file in listing.siblings:
            blob, part = _places(split(repo)[0], file)
            size += file.size
            missing += 0 if file_size(blob) == file.size else file.size - file_size(part)
    names = " and ".join(repos)
    if to_run:  # weights must fit into memory once, or each token would read them from disk
        require_memory(size + WORKING_BYTES, f"Running {names}")
    if missing:
        require_space(Path(constants.HF_HUB_CACHE), missing + 50_000_000, f"Downloading {names}")
    meter = Meter(report, f"Downloading {names}", size, size - missing)
    return [_fetched(repo, listing, meter) for repo, listing in listings.items()]


def _listing(repo: str) -> ModelInfo:
    """What the Hub says of `repo`, with no more files than are needed, the small ones first."""
    from huggingface_hub import HfApi

    name, revision = split(repo)
    with _explaining(repo):
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    wanted = _choose([one.rfilename for one in info.siblings or []], repo)
    info.siblings = [one for one in info.siblings if one.rfilename in wanted]
    info.siblings.sort(key=lambda one: one.size)
    return info


def _fetched(repo: str, listing: ModelInfo, meter: Meter) -> Snapshot:
    from huggingface_hub import hf_hub_download

    name, revision = split(repo)
    storage = _storage(name)
    with _explaining(f"{name}@{listing.sha}"):
        for file in listing.siblings:
            _receive(name, listing.sha, file, meter)
            # With the blob in place this only asks for metadata and links it into the snapshot.
            hf_hub_download(name, file.rfilename, revision=listing.sha)
        reference = storage / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(listing.sha, encoding="utf-8")
    return Snapshot(storage / "snapshots" / listing.sha, listing.sha)


def _choose(names: Collection[str], repo: str) -> list[str]:
    """What to take from a repository with files of these names: its IR with tokenizer, else its
    PyTorch checkpoint. Raises BadInput if it has neither whole."""
    weights = [ir.MODEL, ir.WEIGHTS]
    if ir.MODEL not in names:
        weights = [name for name in names if re.fullmatch(r"[^/]+\.safetensors", name)]
    if not weights:
        raise BadInput(f"{repo} on the Hub has neither {ir.MODEL} nor weights in safetensors.")
    required = [*weights, "config.json", "tokenizer.json"]
    if lacking := [name for name in required if name not in names]:
        raise BadInput(f"{repo} on the Hub has no {' and no '.join(lacking)}.")
    return [*weights, *(name for name in names if _SMALL.fullmatch(name))]


@contextmanager
def _explaining(repo: str) -> Iterator[None]:
    """Raises errors between here and the Hub as one sentence, with what to do about them."""
    from huggingface_hub import errors

    name, revision = split(repo)
    page = f"{constants.ENDPOINT}/{name}"
    try:
        yield
    except SpecdemoError:
        raise
    except errors.RevisionNotFoundError as error:
        raise BadInput(f"{name} has no revision {revision!r} any more; see {page}.") from error
    except errors.RepositoryNotFoundError as error:
        raise BadInput(
            f"There is no model at {page} (check the spelling), or it is private or is gated: ask "
            "for access there, then set HF_TOKEN to a token that may read it."
        ) from error
    except Exception as error:
        why = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        raise FetchError(
            f"{name} is not in the cache, and {constants.ENDPOINT} cannot be reached or broke off, "
            f"or the disk is full ({why}); run the same again, it goes on where it stopped."
        ) from error


def _receive(name: str, commit: str, file: RepoSibling, meter: Meter) -> None:
    """Put one file into the Hub's cache, resuming what an earlier run left."""
    import filelock
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers
    from huggingface_hub.utils.sha import git_hash

    blob, part = _places(name, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(part.with_suffix(".lock")):
        if file_size(blob) == file.size:
            return
        with open(part, "ab") as output:
            http_get(
                hf_hub_url(name, file.rfilename, revision=commit),
                output,
                resume_size=output.tell(),
                headers=build_hf_headers(),
                expected_size=file.size,
                tqdm_class=lambda **_: nullcontext(meter),
            )
        digest = integrity.sha256(part) if file.lfs else git_hash(part.read_bytes())
        if digest != blob.name:
            part.unlink()
            raise FetchError(
                f"{file.rfilename} of {name} arrived damaged (its hash is not the one that the Hub "
                "lists) and was deleted; run the same again."
            )
        part.replace(blob)


def _places(name: str, file: RepoSibling) -> tuple[Path, Path]:
    """Where the content of a file is in the cache, by its digest, and what has come of it."""
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    blobs = _storage(name) / "blobs"
    return blobs / digest, blobs / f"{digest}.part"


def _storage(repo: str) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
