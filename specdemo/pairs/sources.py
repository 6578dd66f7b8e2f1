"""Finds, fetches or exports the IR of a model, given a Hub repository or a folder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdemo.convert import ir
from specdemo.convert.exporting import export, require_checkpoint
from specdemo.errors import BadInput
from specdemo.host import disk, hardware
from specdemo.host.progress import Report, silent
from specdemo.pairs import embedded, hub, integrity
from specdemo.pairs.hub import Snapshot

AS_IT_IS = "checkpoint"
_EXPORT_VERSION = 7  # changes with the exporters, so that older exports are not used


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: `repo` is a Hub repository, a folder, or "" for an embedded model.
    `export` is the weight format that a PyTorch checkpoint is exported to, "" for OpenVINO IR,
    AS_IT_IS for a checkpoint that is not exported: torch runs it. `ir_bytes`: of the weights that
    run, where they are not what is downloaded."""

    repo: str
    name: str
    download_bytes: int = 0
    export: str = ""
    ir_bytes: int = 0


EMBEDDED_TARGET = Source("", "SmolLM2-135M-Instruct")
EMBEDDED_DRAFT = Source("", "embedded draft")


def source_of(text: str, option: str, weight_format: str) -> Source:
    """The folder or Hub repository that the user named with `option`. Raises BadInput."""
    path = Path(text).expanduser().absolute()
    if path.is_dir() or path.is_file() and path.suffix == ".gguf":
        name = path.resolve().name.removesuffix(".gguf")
        return Source(str(path), name, export=weight_format)
    if not hub.REPOSITORY.fullmatch(text) or text.startswith((".", "/")):
        raise BadInput(f"{option} {text!r} is no folder or GGUF file here, and no Hub repository.")
    name, _, gguf = hub.split(text)
    return Source(text, f"{name}:{gguf}" if gguf else name, export=weight_format)


def here(source: Source) -> bool:
    """Whether the model's files are on this disk. Its IR may have to be exported from them."""
    return _local(source) is not None


def prepare(sources: Sequence[Source], report: Report = silent) -> list[Snapshot]:
    """IR (with AS_IT_IS the checkpoint) of each of `sources`, fetched and exported if missing.
    Checks disk and memory first. Raises FetchError, BadInput or MissingPackage."""
    snapshots = fetch(sources, report)
    pairs = zip(sources, snapshots, strict=True)
    return [_ready(source, snapshot, report) for source, snapshot in pairs]


def fetch(
    sources: Sequence[Source], report: Report = silent, *, to_run: bool = True
) -> list[Snapshot]:
    """The files of each of `sources` as they come. Checks disk and, with `to_run`, memory first.
    Raises FetchError or BadInput."""
    snapshots = {source: _local(source) for source in sources}
    absent = [source for source in sources if source.repo and snapshots[source] is None]
    if absent:
        repos = [source.repo for source in absent]
        fetched = hardware.in_background(lambda: hub.download(repos, report, to_run=to_run))
        snapshots |= zip(absent, fetched.result(), strict=True)
    return [snapshots[source] or _embedded(source, embedded.fetch(report)) for source in sources]


def _ready(source: Source, snapshot: Snapshot, report: Report) -> Snapshot:
    """The folder that runs: `snapshot` itself, or its export, made first if it is missing."""
    if not source.repo:
        return snapshot
    if source.export == AS_IT_IS and snapshot.folder.is_dir():
        require_checkpoint(snapshot.folder)
    elif not any((snapshot.folder / name).is_file() for name in (ir.MODEL, ir.HEAD)):
        # Torch reads a GGUF file itself, but the tokenizer comes from its export.
        weight_format = "auto" if source.export in ("", AS_IT_IS) else source.export
        parts = f"{source.name}\0{snapshot.revision}\0{_EXPORT_VERSION}"
        key = hashlib.sha256(parts.encode()).hexdigest()[:10]
        name = f"{Path(source.name).name.replace(':', '-')}-{weight_format}-{key}"
        folder = disk.cache_home() / "exported" / name
        with disk.exclusive_scratch(folder.parent) as scratch:
            if not integrity.whole(folder):
                export(snapshot.folder, scratch / "ir", weight_format, report, name=source.name)
                integrity.put(scratch / "ir", folder)
        return Snapshot(folder, snapshot.revision)
    return snapshot


def _local(source: Source) -> Snapshot | None:
    """The model's folder or GGUF file on this disk, or None."""
    if not source.repo:
        pair = embedded.here()
        return pair and _embedded(source, pair)
    path = Path(source.repo)
    return Snapshot(path, ir.fingerprint(path)) if path.exists() else hub.cached(source.repo)


def _embedded(source: Source, pair: tuple[Snapshot, Snapshot]) -> Snapshot:
    target, draft = pair
    return draft if source.name == EMBEDDED_DRAFT.name else target
