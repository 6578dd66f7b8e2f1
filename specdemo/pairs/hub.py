"""Downloads from the Hugging Face Hub, and the check of a model's files by their SHA-256.

Downloads go to huggingface_hub's cache, where other programs find them. After a kill its client
starts a file again, so this module keeps partial files and renames them when the hash is right.
Folders that this program wrote have a manifest of hashes; the Hub's cache names large files by
their hash; in any other folder a manifest is data like all else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants

from specdemo.convert import configuration, model_files
from specdemo.convert.configuration import ShardIndex
from specdemo.errors import BadInput, DamagedModel, FetchError, SpecdemoError
from specdemo.machine import disk, measured
from specdemo.machine.hardware import require_memory
from specdemo.machine.terminal import Meter, Report, silent
from specdemo.machine.threads import in_background

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

WORKING_BYTES = 1_000_000_000  # memory beside a model's weights
PRELOADED = Path(os.path.expanduser("~/.cache/huggingface/hub"))  # wherever HF_HOME points to
REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?(?::[\w./-]+)?")
_SMALL = re.compile(
    rf"(?!{re.escape(model_files.MANIFEST)})[^/]+\.(json|jinja|model|txt|py)"
    rf"|openvino_(de)?tokenizer\.(xml|bin)|{model_files.FURTHER_TEMPLATES}/[^/]+\.jinja"
)
"""Configuration, tokenizer, template, and code, which runs only if the operator trusts it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's files on this disk."""

    folder: Path  # or a (first) GGUF file
    revision: str  # a commit or a fingerprint


def cached(repo: str) -> Snapshot | None:
    """The snapshot of `repo` in the Hub's cache or in a Space's preload, None if it is absent or
    incomplete. Uses no network."""
    name, revision, gguf = split(repo)
    for cache in (constants.HF_HUB_CACHE, PRELOADED):
        storage, commit = _storage(name, cache), revision
        with suppress(OSError, SpecdemoError):
            if not re.fullmatch("[0-9a-f]{40}", commit):
                commit = (storage / "refs" / commit).read_text(encoding="utf-8").strip()
            folder = storage / "snapshots" / commit
            files = (path for path in folder.rglob("*") if path.is_file())
            names = {path.relative_to(folder).as_posix() for path in files}
            config = configuration.read_json(folder / "config.json")
            first = _choose(names, repo, configuration.is_eagle_head(config))[0]
            if gguf:
                return Snapshot(model_files.gguf_parts(folder / first)[0], commit)
            index = folder / "model.safetensors.index.json"
            shards = ShardIndex.of(configuration.read_json(index), index).weight_map
            if names.issuperset(shards.values()):
                return Snapshot(folder, commit)
    return None


def split(repo: str) -> tuple[str, str, str]:
    """`owner/name@revision:gguf` as its three parts; the last two are "main" and "" by default."""
    place, _, gguf = repo.partition(":")
    name, _, revision = place.partition("@")
    return name, revision or "main", gguf


def download(
    repos: Sequence[str], report: Report = silent, *, to_run: bool = True
) -> list[Snapshot]:
    """Fetch and verify the missing files of `repos`. Checks disk space and, with `to_run`, memory
    before the first byte. An exception in `report` stops the download; a later call resumes it.
    Raises FetchError or BadInput."""
    listings = {repo: read_listing(repo) for repo in repos}
    size = missing = 0
    for repo, listing in listings.items():
        for file in listing.siblings:
            blob, part = _places(split(repo)[0], file)
            size += file.size
            missing += 0 if disk.file_size(blob) == file.size else file.size - disk.file_size(part)
    names = " and ".join(repos)
    downloading = f"Downloading {names}"
    if to_run:  # weights must fit into memory once, or each token would read them from disk
        require_memory(size + WORKING_BYTES, f"Running {names}")
    if missing:
        disk.require_space(Path(constants.HF_HUB_CACHE), missing + 50_000_000, downloading)
    meter = Meter(report, downloading, size, size - missing)
    return [_fetched(repo, listing, meter) for repo, listing in listings.items()]


def read_listing(repo: str) -> ModelInfo:
    """The Hub's metadata of `repo`, with the needed files only, sorted by size. Raises BadInput or
    FetchError."""
    from huggingface_hub import HfApi

    name, revision, _ = split(repo)
    with _explaining(repo):
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=15)
    names = [sibling.rfilename for sibling in info.siblings or []]
    needed = _choose(names, repo, configuration.is_eagle_head(info.config or {}))
    files = (sibling for sibling in info.siblings if sibling.rfilename in needed)
    info.siblings = sorted(files, key=lambda file: file.size)
    return info


def _fetched(repo: str, listing: ModelInfo, meter: Meter) -> Snapshot:
    from huggingface_hub import hf_hub_download

    name, revision, gguf = split(repo)
    storage = _storage(name)
    with _explaining(f"{name}@{listing.sha}"):
        for file in listing.siblings:
            _receive(name, listing.sha, file, meter)
            # The blob is there: this only fetches metadata and links the blob into the snapshot.
            hf_hub_download(name, file.rfilename, revision=listing.sha)
        reference = storage / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(listing.sha, encoding="utf-8")
    folder = storage / "snapshots" / listing.sha
    first = min(file.rfilename for file in listing.siblings)
    return Snapshot(folder / first if gguf else folder, listing.sha)


def _choose(names: Collection[str], repo: str, head: bool = False) -> list[str]:
    """The files that are needed: the GGUF files that `repo` names, else the IR with its tokenizer,
    else the PyTorch checkpoint. A draft `head` needs no tokenizer. Raises BadInput if one is
    missing."""
    if kind := split(repo)[2]:
        return _choose_gguf(names, kind, repo)
    weights = [model_files.MODEL, model_files.WEIGHTS]
    if model_files.MODEL not in names:
        weights = [name for name in names if re.fullmatch(r"[^/]+\.safetensors", name)]
    if not weights:
        has_gguf = any(map(model_files.GGUF_END.search, names))
        gguf = f"; its GGUF files are named as {repo}:FILE.gguf" if has_gguf else ""
        raise BadInput(f"{repo} has neither {model_files.MODEL} nor weights in safetensors{gguf}.")
    required = [*weights, "config.json", *([] if head else ["tokenizer.json"])]
    if lacking := [name for name in required if name not in names]:
        raise BadInput(f"{repo} on the Hub has no {' and no '.join(lacking)}.")
    return [*weights, *(name for name in names if _SMALL.fullmatch(name))]


def _choose_gguf(names: Collection[str], kind: str, repo: str) -> list[str]:
    """The parts of the GGUF file `kind` (FILE.gguf, or what its name ends with, such as Q4_K_M).
    Raises BadInput unless there is exactly one."""
    models: dict[str, list[str]] = {}
    for name in sorted(filter(model_files.GGUF_END.search, names)):
        models.setdefault(model_files.GGUF_END.sub("", name), []).append(name)
    if (named := model_files.GGUF_END.sub("", kind)) in models:
        return models[named]
    ending = re.compile(rf"(.*[-._/])?{re.escape(kind)}", re.I)
    matching = list(filter(ending.fullmatch, models))
    if len(matching) != 1:
        raise BadInput(
            f"{repo} names {len(matching) or 'none'} of the GGUF files of this repository on the "
            f"Hub: {', '.join(models) or 'there are none'}."
        )
    return models[matching[0]]


@contextmanager
def _explaining(repo: str) -> Iterator[None]:
    """Turn errors of the Hub's client into FetchError or BadInput."""
    from huggingface_hub import errors

    name, revision, _ = split(repo)
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
        again = "run the same again, it goes on where it stopped"
        raise FetchError(f"{name} is not in the cache, and {_cause(error)}; {again}.") from error


def _cause(error: BaseException) -> str:
    """What went wrong, and what to do: the innermost error that says it."""
    import httpx
    from huggingface_hub import errors

    chain = [error]
    while wrapped := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(wrapped)
    host, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    unreachable = httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError
    for error in reversed(chain):
        why = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        if isinstance(error, errors.OfflineModeIsEnabled):
            return f"HF_HUB_OFFLINE forbids to ask {host}; unset it"
        if isinstance(error, unreachable):
            return f"{host} cannot be reached ({why}); check the network, or the proxy's settings"
        if isinstance(error, errors.HfHubHTTPError):
            return f"{host} refused ({why})"
        if isinstance(error, httpx.TransportError):
            return f"{host} broke off ({why})"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk of {cache} is full; free some space, or set HF_HOME to a larger disk"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"{cache} cannot be written ({error.strerror}); set HF_HOME to another folder"
    return f"it could not be fetched ({why})"


def _receive(name: str, commit: str, file: RepoSibling, meter: Meter) -> None:
    """Download one file into the Hub's cache, after the bytes of an earlier partial file."""
    import filelock
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers
    from huggingface_hub.utils.sha import git_hash

    blob, part = _places(name, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(part.with_suffix(".lock")):
        if disk.file_size(blob) == file.size:
            return
        # A part that is too long can never become the file: it starts anew.
        with open(part, "ab" if disk.file_size(part) <= file.size else "wb") as output:
            http_get(
                hf_hub_url(name, file.rfilename, revision=commit),
                output,
                resume_size=output.tell(),
                headers=build_hf_headers(),
                expected_size=file.size,
                tqdm_class=lambda **_: nullcontext(meter),
            )
        digest = disk.sha256(part) if file.lfs else git_hash(part.read_bytes())
        if digest != blob.name:
            part.unlink()
            raise FetchError(
                f"{file.rfilename} of {name} arrived damaged (its hash is not the one that the Hub "
                "lists) and was deleted; run the same again."
            )
        part.replace(blob)


def _places(name: str, file: RepoSibling) -> tuple[Path, Path]:
    """Paths in the cache of a file's content, named by its hash, and of its partial download."""
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    blobs = _storage(name) / "blobs"
    return blobs / digest, blobs / f"{digest}.part"


def _storage(repo: str, cache: str | Path = "") -> Path:
    return Path(cache or constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


HASHED_SECONDS = 7 * 86_400.0  # after which a file that seems unchanged is hashed again
CLOCK_SECONDS = 3.0  # in which two changes of a file may have the same time on some disks
MODEL_SUFFIXES = {".xml", ".bin", ".npy", ".json"}  # of files that a manifest must name


def put(scratch: Path, folder: Path) -> None:
    """Write MANIFEST, the hashes of the files in `scratch`, then rename `scratch` to `folder`, in
    place of what was left there."""
    (scratch / model_files.MANIFEST).unlink(missing_ok=True)
    files = [path for path in sorted(scratch.iterdir()) if path.is_file() and not path.is_symlink()]
    hashes = {path.name: disk.sha256(path) for path in files}
    (scratch / model_files.MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    _link_equal(scratch, hashes, folder.parent)
    scratch.rename(folder)


def _link_equal(scratch: Path, hashes: dict[str, str], models: Path) -> None:
    """Make files in `scratch` that a folder in `models` has too hard links to that folder's: the
    same weights, converted from another place or under another name, take disk space once."""
    for other in filter(is_complete, models.iterdir()):
        with suppress(OSError, FetchError):  # no hard links on this disk, or a damaged manifest
            names = {digest: name for name, digest in _known_hashes(other).items()}
            for name, digest in hashes.items():
                same = other / names.get(digest, "")
                if same.is_file() and disk.sha256(same) == digest:
                    (scratch / "link").hardlink_to(same)
                    (scratch / "link").replace(scratch / name)


def is_complete(folder: Path) -> bool:
    """Whether `put` wrote the folder and it was not removed since. On Windows, files that are in
    use remain of a removed folder."""
    return (folder / model_files.MANIFEST).is_file()


def damaged(folder: Path) -> list[str]:
    """Names of the files in `folder` that are missing or do not have their known hash."""
    try:
        hashes = _known_hashes(folder)
    except FetchError:
        return [model_files.MANIFEST]
    subject = {"folder": str(folder)}
    before = measured.read("hashed", subject, dict[str, float]) or {}
    names, after = [], dict[str, float]()
    for name, digest in hashes.items():
        now = time.time()
        state = _state(folder / name, digest, now)
        hashed = before.get(state, -HASHED_SECONDS)
        if not 0 <= now - hashed < HASHED_SECONDS:
            if _differs(folder / name, digest):
                names.append(name)
                continue
            hashed = now
        if state:
            after[state] = hashed
    if after != before:
        measured.write("hashed", subject, after)
    return names


def _state(path: Path, digest: str, now: float) -> str:
    """What changes with the content of a file, or with its expected digest; "" if a further change
    might not be seen, since the last one came just now."""
    try:
        stat = path.stat()
    except OSError:
        return ""
    if now - max(stat.st_mtime, stat.st_ctime) < CLOCK_SECONDS:
        return ""
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
    return f"{digest} {stat.st_dev} {stat.st_ino} {stat.st_size} {times}"


def _differs(path: Path, digest: str) -> bool:
    try:
        return disk.sha256(path) != digest
    except FileNotFoundError:
        return True
    except OSError:  # it cannot be read for a moment: the next start checks it again
        return False


def _known_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file name. Raises FetchError for a damaged manifest."""
    if _written_here(folder):
        hashes = configuration.read_json(folder / model_files.MANIFEST)
        written = [path for path in folder.iterdir() if not path.is_symlink()]
        files = {path.name for path in written if path.suffix in MODEL_SUFFIXES}
        if unnamed := files - {model_files.MANIFEST} - hashes.keys():
            raise FetchError(f"{folder / model_files.MANIFEST} does not name {min(unnamed)}.")
        return {name: digest for name, digest in hashes.items() if re.fullmatch(r"\w[\w.-]*", name)}
    storage, caches = folder.parent.parent, (Path(constants.HF_HUB_CACHE), PRELOADED)
    if folder.parent.name != "snapshots" or storage.parent not in caches:
        return {}
    blobs = (storage / "blobs").resolve()
    paths = {file.name: file.resolve() for file in folder.iterdir()}
    return {
        name: path.name
        for name, path in paths.items()
        if path.parent == blobs and re.fullmatch("[0-9a-f]{64}", path.name)
    }


def _written_here(folder: Path) -> bool:
    return folder.parent.parent == disk.cache_home()


class Check:
    """Hashes the files of `folders` in the background. Removes damaged files from the caches, so
    that the next start makes or fetches them again."""

    def __init__(self, folders: Sequence[Path] = ()):
        key = hashlib.sha256(repr(folders).encode()).hexdigest()[:16]
        self._unfinished = disk.measured_folder() / f"{key}.unfinished"
        self._damage = in_background(lambda: list(filter(None, map(_discard_damaged, folders))))

    def require(self, seconds: float | None = None) -> None:
        """Raise DamagedModel if the check found damage. Waits at most `seconds` for its result
        (None: without limit, as after a process that could not wait for it), and raises nothing if
        it is not there by then."""
        if seconds and self._unfinished.exists():
            seconds = None
        try:
            damage = self._damage.result(seconds)
        except TimeoutError:
            if seconds:
                disk.replace_file(self._unfinished, b"")
            return
        if seconds is None:
            with suppress(OSError):
                self._unfinished.unlink(missing_ok=True)
        if damage:
            raise DamagedModel(
                f"{' and '.join(damage)} changed after it was made or fetched (its SHA-256 "
                "differs), so answers cannot be trusted; start again: it is replaced then."
            )


def _discard_damaged(folder: Path) -> str:
    """Remove damaged files of `folder` from the caches; returns their names in words, or "".
    Deletes only whole folders made here, and contents in the Hub's cache."""
    names = damaged(folder)
    with suppress(OSError):  # the cache may be read-only
        if names and _written_here(folder):
            shutil.rmtree(folder, ignore_errors=True)
        elif names:
            for name in names:
                (folder / name).resolve().unlink(missing_ok=True)
    return f"{' and '.join(names)} in {folder.name}" if names else ""
