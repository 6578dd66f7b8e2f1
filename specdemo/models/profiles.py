"""Keeps what was measured of pairs on this machine: one small JSON file a pair and setting.

A file that is broken, foreign or of another version counts as none: it is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import openvino as ov
from pydantic import TypeAdapter

from specdemo.engine.checkpoint import Checkpoint
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Profile
from specdemo.models import machine

log = logging.getLogger(__name__)

KIND = 2
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
        """Replace the file in one step: whoever reads it, or is killed meanwhile, finds the old one
        or the new one. A disk that is full or read only is left alone."""
        content = _STORED.dump_json(Stored(self.about, profile), indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                file.write(content)
            os.replace(file.name, self.path)
        except OSError as error:
            log.info("The machine profile is not kept: %s", error)
            with suppress(OSError, UnboundLocalError):
                os.unlink(file.name)


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
    return ProfileFile(_folder() / f"{key}.json", about, typical or Profile())


def stored() -> Iterator[Stored]:
    """All profiles that are kept here."""
    found = (_read(path) for path in sorted(_folder().glob("*.json")))
    return (one for one in found if one)


def forget() -> int:
    """Drop all profiles; gives how many."""
    paths = list(_folder().glob("*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _folder() -> Path:
    return machine.cache_home() / "profiles"


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
        return f"{xml.name} {hashlib.sha256(content).hexdigest()[:12]}-{xml.size}, {versions}"
    digest = hashlib.sha256(xml.read_bytes()).hexdigest()[:12]
    return f"{xml.parent.name} {digest}-{machine.file_size(xml.with_suffix('.bin'))}"
