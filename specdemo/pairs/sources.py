"""Where a model comes from: finds, fetches or exports its IR."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.convert import configuration
from specdemo.convert.exporting import export, require_checkpoint
from specdemo.convert.model_files import GGUF_END, HEAD, MODEL, fingerprint, is_gguf
from specdemo.errors import BadInput, InvalidOption
from specdemo.machine import disk
from specdemo.machine.terminal import Report, silent
from specdemo.machine.threads import in_background
from specdemo.pairs import embedded, hub
from specdemo.pairs.hub import Snapshot

AS_IT_IS = "checkpoint"
_EXPORT_VERSION = 11  # changes with the exporters, so that older exports are not used


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from."""

    repo: str  # a Hub repository, folder or GGUF file; "": an embedded model
    name: str
    download_bytes: int = 0
    export: str = ""  # weight format of a checkpoint's export; "" for IR, AS_IT_IS for torch
    ir_bytes: int = 0  # of the exported weights
    experts: bool = False  # of which a token reads a part


EMBEDDED_TARGET = Source("", "SmolLM2-135M-Instruct")
EMBEDDED_DRAFT = Source("", "embedded draft")


def source_of(text: str, field: str, weight_format: str) -> Source:
    """The folder, GGUF file or Hub repository that a `field` names. Raises InvalidOption."""
    path = Path(os.path.expanduser(text)).absolute()
    kinds = {file.suffix for file in path.glob("*")}
    if path.is_dir() and not kinds & {".xml", ".safetensors"}:
        files = sorted(filter(is_gguf, path.glob("*")), reverse=True)
        models = {GGUF_END.sub("", file.name): file for file in files}
        if len(models) > 1:
            names = ", ".join(file.name for file in models.values())
            wrong = "{} {text!r} holds several models; name one of {names:.300}."
            raise InvalidOption(wrong, field, text=text, names=names)
        path = next(iter(models.values()), path)
    if path.is_dir() or is_gguf(path):
        name = GGUF_END.sub("", path.resolve().name)
        return Source(str(path), name, export=weight_format)
    name, _, gguf = hub.split(text)
    absent = not gguf and GGUF_END.search(name)  # a repository that ends so needs a file, too
    if absent or not hub.REPOSITORY.fullmatch(text) or text.startswith((".", "/")):
        wrong = "{} {text!r} is no folder or GGUF file here, and no Hub repository."
        raise InvalidOption(wrong, field, text=text)
    return Source(text, f"{name}:{gguf}" if gguf else name, export=weight_format)


def here(source: Source) -> bool:
    """Whether the model's files, of which IR may have to be made, are on this disk."""
    return _local(source) is not None


def require(source: Source) -> None:
    """Raise FetchError or BadInput unless the model is on this disk or the Hub has it."""
    if source.repo and not here(source):
        hub.read_listing(source.repo)


def prepare(sources: Sequence[Source], report: Report = silent) -> list[Snapshot]:
    """IR (with AS_IT_IS the checkpoint) of each of `sources`, fetched and exported if missing.
    Checks disk and memory first. Raises FetchError, BadInput or MissingPackage."""
    fetched = zip(sources, fetch(sources, report), strict=True)
    return [_exported(source, snapshot, report) for source, snapshot in fetched]


def fetch(
    sources: Sequence[Source], report: Report = silent, *, to_run: bool = True
) -> list[Snapshot]:
    """The files of each of `sources`, fetched if missing, not exported. Checks disk and, with
    `to_run`, memory first. Raises FetchError or BadInput."""
    snapshots = {source: _local(source) for source in sources}
    absent = [source for source in sources if source.repo and snapshots[source] is None]
    if absent:
        repos = [source.repo for source in absent]
        fetched = in_background(lambda: hub.download(repos, report, to_run=to_run))
        snapshots |= zip(absent, fetched.result(), strict=True)
    return [snapshots[source] or _embedded(source, embedded.fetch(report)) for source in sources]


def _exported(source: Source, snapshot: Snapshot, report: Report) -> Snapshot:
    """The folder that runs: `snapshot` itself, or its export, made if it is missing."""
    if not source.repo:
        return snapshot
    if source.export == AS_IT_IS and snapshot.folder.is_dir():
        require_checkpoint(snapshot.folder)
    elif not any((snapshot.folder / name).is_file() for name in (MODEL, HEAD)):
        # Torch reads a GGUF file itself, but the tokenizer comes from its export.
        weight_format = "auto" if source.export in ("", AS_IT_IS) else source.export
        parts = f"{source.name}\0{snapshot.revision}\0{_EXPORT_VERSION}"
        key = hashlib.sha256(parts.encode()).hexdigest()[:10]
        name = f"{Path(source.name).name.replace(':', '-')}-{weight_format}-{key}"
        folder = disk.cache_home() / "exported" / name
        if hub.is_complete(folder):  # also where nothing can be written
            return Snapshot(folder, snapshot.revision)
        config = configuration.read_json(snapshot.folder / "config.json")
        if config and not configuration.is_eagle_head(config):
            _require_tokenizer(snapshot.folder, config)
        with disk.exclusive_scratch(folder.parent) as scratch:
            if not hub.is_complete(folder):
                export(snapshot.folder, scratch / "ir", weight_format, report, name=source.name)
                hub.put(scratch / "ir", folder)
        return Snapshot(folder, snapshot.revision)
    return snapshot


def _require_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Raise BadInput if a checkpoint has no tokenizer.json, unless optimum-intel, which is to
    export it, makes one of another file."""
    from specdemo.convert import checkpoints  # imports OpenVINO

    names = {path.name for path in folder.glob("tokenizer.*")}
    exported = names and checkpoints.shape_of(config, folder / "config.json") is None
    if "tokenizer.json" not in names and not exported:
        raise BadInput(
            f"{folder} has no tokenizer.json; `AutoTokenizer.from_pretrained(...)."
            "save_pretrained(...)` of transformers writes one."
        )


def _local(source: Source) -> Snapshot | None:
    if not source.repo:
        pair = embedded.here()
        return pair and _embedded(source, pair)
    path = Path(source.repo)
    return Snapshot(path, fingerprint(path)) if path.exists() else hub.cached(source.repo)


def _embedded(source: Source, pair: tuple[Snapshot, Snapshot]) -> Snapshot:
    target, draft = pair
    return draft if source.name == EMBEDDED_DRAFT.name else target
