"""From a model's name (Hub repository or folder) to IR on this disk: found, fetched or exported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput
from specdemo.models import hub, ir, machine
from specdemo.models.export import (
    ExportSettings,
    cached_export,
    export_cached,
    fingerprint,
    require_checkpoint,
)
from specdemo.models.progress import Report, silent

WORKING_BYTES = 1_000_000_000
_SMALL = re.compile(r"[^/]+\.(json|jinja|model|txt)|openvino_(de)?tokenizer\.(xml|bin)")
"""Files of configuration, tokenizer and template."""


@dataclass(frozen=True, slots=True)
class Source:
    """One model and where it comes from.

    `repo` is a Hub repository, a folder, or "" for the models of the embedded pair. `export` is the
    weight format that a PyTorch checkpoint is exported to, "" for OpenVINO IR.
    """

    repo: str
    name: str
    download_bytes: int
    export: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """IR in `folder`, with tokenizer and configuration; `revision` is a commit or a fingerprint."""

    folder: Path
    revision: str


def source_of(text: str, option: str, weight_format: str) -> Source:
    """The folder or Hub repository that the user named with `option`. Raises BadInput."""
    path = Path(text).expanduser()
    if path.is_dir():
        return Source(str(path), path.resolve().name, 0, export=weight_format)
    if not hub.REPOSITORY.fullmatch(text) or text.startswith((".", "/")):
        raise BadInput(
            f"{option} {text!r} is neither a folder here nor a Hub repository (owner/name)."
        )
    return Source(text, hub.split(text)[0], 0, export=weight_format)


def choose_files(names: Sequence[str]) -> list[str]:
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


def is_ready(sources: Sequence[Source]) -> bool:
    """Whether all of `sources` can be opened without network and export. Cheap; never raises."""
    return all(_is_ready(source) for source in sources)


def prepare(sources: Sequence[Source], report: Report = silent) -> list[Model]:
    """IR for each of `sources`, fetching and exporting what is missing.

    Disk and memory are checked, with the Hub's own sizes, before the first byte is fetched. Raises
    FetchError or BadInput.
    """
    contents = _download(sources, report, check_memory=True)
    models = []
    for source, (folder, revision) in zip(sources, contents, strict=True):
        if (folder / ir.MODEL).is_file():
            if Path(source.repo).is_dir():
                ir.check_decoder(folder)
                revision = str(ir.read_json(folder / "config.json").get("_commit_hash") or "")
        else:
            require_checkpoint(folder)
            settings = ExportSettings(source.export or "int8")
            folder = export_cached(folder, _export_name(source), revision, settings, report)
        models.append(Model(folder, revision))
    return models


def checkpoint(source: Source, report: Report = silent) -> Path:
    """The folder of a PyTorch checkpoint, downloaded if it is missing. Raises BadInput for IR."""
    [(folder, _)] = _download([source], report, check_memory=False)
    if (folder / ir.MODEL).is_file():
        raise BadInput(f"{source.repo} is OpenVINO IR already; use it as it is.")
    require_checkpoint(folder)
    return folder


def _download(
    sources: Sequence[Source], report: Report, *, check_memory: bool
) -> list[tuple[Path, str]]:
    """The folder and revision of each source, as it is on the Hub or in the user's folder."""
    found = [_local(source) for source in sources]
    listings = [
        None if here else hub.list_repository(source.repo, choose_files)
        for source, here in zip(sources, found, strict=True)
    ]
    missing = [listing for listing in listings if listing]
    if check_memory and missing:
        # Weights must fit into memory at least once, or each token would read them from disk.
        needed = sum(listing.size for listing in missing) + WORKING_BYTES
        names = " and ".join(listing.repo for listing in missing)
        machine.require_memory(needed, f"Running {names}")
    hub.require_disk(missing)
    contents = []
    for here, listing in zip(found, listings, strict=True):
        if listing:
            snapshot = hub.download(listing, _check_snapshot, report)
            here = snapshot.folder, snapshot.commit
        contents.append(here)
    return contents


def _local(source: Source) -> tuple[Path, str] | None:
    """The folder and revision of a source that is on this disk, None if it is not."""
    folder = Path(source.repo)
    if folder.is_dir():
        return folder, fingerprint(folder)
    snapshot = hub.cached(source.repo, choose_files, _check_snapshot)
    return (snapshot.folder, snapshot.commit) if snapshot else None


def _is_ready(source: Source) -> bool:
    here = _local(source)
    if here is None:
        return False
    folder, revision = here
    settings = ExportSettings(source.export or "int8")
    exported = cached_export(_export_name(source), revision, settings)
    return (folder / ir.MODEL).is_file() or exported is not None


def _export_name(source: Source) -> str:
    return source.name if Path(source.repo).is_dir() else source.repo


def _check_snapshot(folder: Path) -> None:
    if (folder / ir.MODEL).exists():
        ir.check_decoder(folder)
