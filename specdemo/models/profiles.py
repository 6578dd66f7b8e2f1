"""Keeps what was measured of pairs on this machine: one small JSON file a pair and setting.

A file that is broken, foreign or of another version counts as none: it is measured anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import openvino as ov
from pydantic import TypeAdapter

from specdemo.engine.checkpoint import Checkpoint, weights_size
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Profile
from specdemo.models import ir, machine
from specdemo.settings import ModelChoice

KIND = 3
"""Changes when figures get another meaning, such as the confidence of a source: profiles of another
kind count as foreign."""


@dataclass(frozen=True, slots=True)
class About:
    """What a profile holds for: the processor, the number of threads (0: as many as there are
    processors), OpenVINO's version, the names of the models with a hash of their graphs, and where
    and in which cache precision they run."""

    processor: str
    threads: int
    openvino: str
    target: str
    draft: str
    devices: str
    kv_cache: str
    kind: int = KIND


@dataclass(frozen=True, slots=True)
class Stored:
    """A profile in its file."""

    about: About
    profile: Profile


_STORED = TypeAdapter(Stored)


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """Where the profile of a pair is kept, or would be; `typical` stands for one that is not
    there."""

    path: Path
    about: About
    typical: Profile

    def read(self) -> Profile:
        found = _read(self.path)
        return found.profile if found and found.about == self.about else self.typical

    def write(self, profile: Profile) -> None:
        stored = Stored(self.about, profile)
        machine.replace_file(self.path, _STORED.dump_json(stored, indent=1))


def find(files: PairFiles, threads: int | None, typical: Profile | None = None) -> ProfileFile:
    """The profile file of these models on this machine."""
    core, draft = ov.Core(), files.head or files.draft
    about = About(
        core.get_property("CPU", "FULL_DEVICE_NAME").strip(),
        threads or machine.processors(),
        ov.get_version(),
        _graph(files.target),
        _graph(draft) if draft else "",
        f"{files.device}, {files.draft_device}",
        files.kv_cache,
    )
    key = hashlib.sha256(json.dumps(asdict(about)).encode()).hexdigest()[:16]
    return ProfileFile(machine.measured_folder() / f"{key}.json", about, typical or Profile())


def of_pair(target: Path, draft: Path, choice: ModelChoice) -> Profile:
    """The profile of the IR in these folders, with as many threads as there are processors."""
    files = [folder / ir.MODEL for folder in (target, draft)]
    return find(PairFiles(*files, choice.device, choice.draft_device, choice.kv_cache), None).read()


def stored() -> Iterator[Stored]:
    """All profiles that are kept here."""
    found = (_read(path) for path in sorted(machine.measured_folder().glob("*.json")))
    return (one for one in found if one)


def forget() -> int:
    """Drop all that was measured and counted here; gives how many files."""
    paths = list(machine.measured_folder().glob("*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _read(path: Path) -> Stored | None:
    try:
        return _STORED.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _graph(xml: Path | Checkpoint) -> str:
    """The folder's name with a hash of the graph (of a checkpoint, its configuration): weights
    matter little to what is measured."""
    if isinstance(xml, Checkpoint):
        config = xml.path / "config.json"
        content = config.read_bytes() if config.is_file() else b""
        versions = ", ".join(f"{one} {version(one)}" for one in ("torch", "transformers"))
        return (
            f"{xml.name} {hashlib.sha256(content).hexdigest()[:12]}-{weights_size(xml)}, {versions}"
        )
    digest = hashlib.sha256(xml.read_bytes()).hexdigest()[:12]
    return f"{xml.parent.name} {digest}-{machine.file_size(xml.with_suffix('.bin'))}"
