"""From a model's name (a Hub repository or a folder) to IR on this disk: as it is, downloaded, or exported here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdemo.models import hub, ir, machine
from specdemo.models.errors import BadChoice, ZooError
from specdemo.models.export import ExportSettings, cached_export, export_cached, fingerprint, require_checkpoint
from specdemo.models.pairs import Source
from specdemo.models.progress import Report, silent

WORKING_BYTES = 1_000_000_000
_CONFIGURATION = ("config.json", "tokenizer.json")
_EXTRA = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
          "tokenizer.model", "vocab.json", "merges.txt")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """IR in `folder`, with tokenizer and configuration; `revision` is what was loaded (a commit, or a fingerprint)."""

    folder: Path
    revision: str


def choose_files(names: Sequence[str]) -> list[str]:
    """What to take from a repository: IR with its tokenizer if it has IR, else a PyTorch checkpoint.

    Raises BadChoice if it has neither whole.
    """
    there = set(names)
    if ir.MODEL in there:
        if lacking := [name for name in ir.REQUIRED if name not in there]:
            raise BadChoice(f"has no {' and no '.join(lacking)}; choose a repository with IR and its tokenizer.")
        return [*ir.REQUIRED, *(name for name in ir.OPTIONAL if name in there)]
    weights = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    index = "model.safetensors.index.json"
    if not weights:
        weights = [name for name in names if name.startswith("pytorch_model") and name.endswith(".bin")]
        index = "pytorch_model.bin.index.json"
    if not weights or any(name not in there for name in _CONFIGURATION):
        raise BadChoice(
            f"holds neither OpenVINO IR ({ir.MODEL}) nor a PyTorch checkpoint with config.json and tokenizer.json."
        )
    extra = [name for name in (*_EXTRA, index) if name in there]
    return [*_CONFIGURATION, *extra, *weights]


def is_ready(sources: Sequence[Source]) -> bool:
    """Whether all of `sources` can be opened without the network and without exporting. Cheap; never raises."""
    return all(_ready(source) for source in sources)


def prepare(sources: Sequence[Source], report: Report = silent) -> list[Model]:
    """IR for each of `sources`, fetching and exporting what is missing.

    Disk and memory are checked against the Hub's own sizes for all of them before the first byte is fetched. Raises
    ZooError or BadChoice, one sentence for the user.
    """
    here = [_cached(source) for source in sources]
    listings = [
        None if found or Path(source.repo).is_dir() else hub.list_repository(source.repo, choose_files)
        for source, found in zip(sources, here, strict=True)
    ]
    wanted = [listing for listing in listings if listing]
    if wanted:
        _require_memory(wanted)
        hub.require_disk(wanted)
    models = []
    for source, found, listing in zip(sources, here, listings, strict=True):
        if listing:
            found = hub.download(listing, report, check=_check_snapshot)
        models.append(_from_snapshot(source, found, report) if found else _from_folder(source, report))
    return models


def checkpoint(source: Source, report: Report = silent) -> Path:
    """The folder of a PyTorch checkpoint, downloaded if it is not here. Raises BadChoice if it is IR already."""
    folder = Path(source.repo)
    if not folder.is_dir():
        found = hub.cached(source.repo, choose_files, _check_snapshot)
        if found is None:
            listing = hub.list_repository(source.repo, choose_files)
            hub.require_disk([listing])
            found = hub.download(listing, report, check=_check_snapshot)
        folder = found.folder
    if (folder / ir.MODEL).is_file():
        raise BadChoice(f"{source.repo} is OpenVINO IR already; use it as it is.")
    require_checkpoint(folder)
    return folder


def source_of(text: str, option: str, weight_format: str) -> Source:
    """What the user named with `option`: an existing folder, or a Hub repository. Raises BadChoice for neither."""
    path = Path(text).expanduser()
    if path.is_dir():
        return Source(str(path), path.resolve().name, 0, export=weight_format)
    if not hub.REPOSITORY.fullmatch(text) or text.startswith((".", "/")):
        raise BadChoice(f"{option} {text!r} is neither a folder here nor a Hub repository (owner/name).")
    return Source(text, text.partition("@")[0], 0, export=weight_format)


def _cached(source: Source) -> hub.Snapshot | None:
    """The repository's snapshot on this disk; None if there is none, or if the source is a folder."""
    return None if Path(source.repo).is_dir() else hub.cached(source.repo, choose_files, _check_snapshot)


def _check_snapshot(folder: Path) -> None:
    if (folder / ir.MODEL).exists():
        ir.check_decoder(folder)


def _require_memory(listings: Sequence[hub.Listing]) -> None:
    """Weights must fit into memory at least once; else this machine would page for every token."""
    weights = sum(file.size for listing in listings for file in listing.files)
    memory = machine.memory_bytes()
    if weights + WORKING_BYTES > memory:
        names = " and ".join(listing.repo for listing in listings)
        raise ZooError(
            f"{names} need at least {(weights + WORKING_BYTES) / 1e9:.1f} GB of memory and this machine has "
            f"{memory / 1e9:.1f} GB; choose a smaller pair (`specdemo pairs` lists them)."
        )


def _from_snapshot(source: Source, snapshot: hub.Snapshot, report: Report) -> Model:
    if (snapshot.folder / ir.MODEL).exists():
        return Model(snapshot.folder, snapshot.commit)
    settings = ExportSettings(source.export or "int8")
    folder = export_cached(snapshot.folder, source.repo, snapshot.commit, settings, report)
    return Model(folder, snapshot.commit)


def _from_folder(source: Source, report: Report) -> Model:
    folder = Path(source.repo)
    if (folder / ir.MODEL).is_file():
        ir.check_decoder(folder)
        return Model(folder, _recorded_revision(folder))
    require_checkpoint(folder)
    revision = fingerprint(folder)
    settings = ExportSettings(source.export or "int8")
    return Model(export_cached(folder, source.name, revision, settings, report), revision)


def _recorded_revision(folder: Path) -> str:
    """The commit that a folder was made from, where its configuration says so; "" otherwise."""
    try:
        recorded = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("_commit_hash")
    except (OSError, ValueError, AttributeError):
        return ""
    return recorded if isinstance(recorded, str) else ""


def _ready(source: Source) -> bool:
    found = _cached(source)
    folder = found.folder if found else Path(source.repo)
    if not folder.is_dir():
        return False
    if (folder / ir.MODEL).exists():
        return True
    revision = found.commit if found else fingerprint(folder)
    return cached_export(source.repo if found else source.name, revision, ExportSettings(source.export)) is not None
