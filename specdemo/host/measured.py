"""Keeps measurements of this machine, one small JSON file per kind and subject. A file that is
broken, or of another machine or version of OpenVINO, counts as missing."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from specdemo.engine.checkpoint import Checkpoint, PairFiles, weights_size
from specdemo.engine.profile import Profile
from specdemo.host import disk, hardware

# {"pair": NAME}, {"target": PATH_OR_REPO, "weight_format": FORMAT}, {"model": NAME}, or of
# `about_files`
About = Mapping[str, str | int]
VERSION = 12  # changes when figures get another meaning, such as the confidence of a source


@dataclass(frozen=True, slots=True)
class DraftResult:
    """Figures of a pair with one draft ("none": n-grams only). `target_seconds`: of a token of
    autoregressive decoding. `draft_seconds`: of a step of the draft model."""

    draft: str
    speedup: float
    tokens_per_second: float
    acceptance_rate: float | None
    target_seconds: float
    draft_seconds: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The figures of all drafts of a pair, and their date (ISO 8601)."""

    date: str
    rows: tuple[DraftResult, ...]

    @property
    def winner(self) -> str:
        return max(self.rows, key=lambda row: row.speedup).draft


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Measurement(Generic[Value]):
    """A kind of measurement: its name in files, and what reads its values."""

    name: str
    values: TypeAdapter[Value]


PROFILE = Measurement("profile", TypeAdapter(Profile))
TUNED = Measurement("tuned", TypeAdapter(TuningResult))  # of a pair
STEPS = Measurement("steps", TypeAdapter(tuple[float, ...]))
"""Of a model: seconds of forwards of 1, 2, ... tokens."""
AGREEMENT = Measurement("agreement", TypeAdapter(tuple[str, float]))
"""Of a pair: another pair, and the share of equal choices."""


def read(kind: Measurement[Value], about: About) -> Value | None:
    """The stored value of this kind about this subject; None without one."""
    stored = _read(kind, _path(kind, about))
    return stored[1] if stored else None


def keep(kind: Measurement[Value], about: About, value: Value) -> None:
    content = {"about": about, kind.name: kind.values.dump_python(value, mode="json")}
    disk.replace_file(_path(kind, about), json.dumps(content, indent=1).encode())


def profiles() -> Iterator[tuple[About, Profile]]:
    """All stored profiles, each with its subject."""
    paths = sorted(disk.measured_folder().glob("*.json"))
    return filter(None, (_read(PROFILE, path) for path in paths))


def forget() -> int:
    """Delete all measurements of this machine; gives their number."""
    paths = list(disk.measured_folder().glob("*.*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def about_files(files: PairFiles, threads: int | None) -> About:
    """The subject of the profile of `files` on `threads` threads (None: one per processor)."""
    draft = files.head or files.draft
    return {
        "machine": hardware.describe(),
        "threads": threads or hardware.processors(),
        "target": _graph(files.target),
        "draft": _graph(draft) if draft else "",
        "devices": f"{files.device}, {files.draft_device}",
        "kv_cache": files.kv_cache,
    }


def _path(kind: Measurement[Value], about: About) -> Path:
    machine = hardware.describe(), version("openvino"), VERSION
    key = hashlib.sha256(json.dumps([kind.name, machine, about]).encode()).hexdigest()[:16]
    return disk.measured_folder() / f"{key}.json"


def _read(kind: Measurement[Value], path: Path) -> tuple[About, Value] | None:
    try:
        content = json.loads(path.read_bytes())
        return content["about"], kind.values.validate_python(content[kind.name])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _graph(model: Path | Checkpoint) -> str:
    """The folder's name, a hash of the graph (for a checkpoint, of its configuration) and the size
    of the weights, whose values hardly affect measurements."""
    if isinstance(model, Checkpoint):
        file, size = model.path / "config.json", weights_size(model)
        versions = "".join(f", {name} {version(name)}" for name in ("torch", "transformers"))
    else:
        file, size, versions = model, disk.file_size(model.with_suffix(".bin")), ""
    content = file.read_bytes() if file.is_file() else b""
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{file.parent.name} {digest}-{size}{versions}"
