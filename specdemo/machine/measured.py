"""Keeps measurements of this machine, one small JSON file per kind and subject, and the compiled
kernels. A file that is broken or changed, or of another machine or version of OpenVINO, counts as
missing."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from specdemo.engine.backends import kernels
from specdemo.engine.pair_files import Checkpoint, PairFiles, weights_size
from specdemo.engine.profile import Profile
from specdemo.errors import FetchError
from specdemo.machine import disk, hardware

Subject = Mapping[str, str | int]
"""What was measured: {"pair": NAME}, {"target": PATH_OR_REPO, "weight_format": FORMAT},
{"model": NAME}, {"folder": PATH}, or the `subject_of` files."""
Value = TypeVar("Value")
_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(TypeAdapter)
SHA256_BYTES = 32
VERSION = 17  # changes when figures get another meaning, such as the confidence of a source


@dataclass(frozen=True, slots=True)
class DraftResult:
    """Figures of a pair with one draft."""

    draft: str  # "none": n-grams only
    speedup: float
    tokens_per_second: float
    acceptance_rate: float | None
    target_seconds: float  # of a token of autoregressive decoding
    draft_seconds: float  # of a step of the draft model
    verdict: str = ""  # on its speed-up, as a sentence
    counted: int = 0  # prompts that count


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The figures of all drafts of a pair, and their date (ISO 8601)."""

    date: str
    rows: tuple[DraftResult, ...]

    @property
    def winner(self) -> str:
        return max(self.rows, key=lambda row: row.speedup).draft


def read(name: str, subject: Subject, kind: type[Value]) -> Value | None:
    """The stored measurement `name` of a subject, None if there is none: "profile" (Profile),
    "tuned" (TuningResult), "steps" (seconds of forwards of 1, 2, ... tokens of a model),
    "agreement" (another pair, and the share of equal choices) or "hashed" (when a file
    had its known hash, in seconds since 1970, by `hub._state`)."""
    stored = _read(name, _path(name, subject), kind)
    return stored[1] if stored else None


def write(name: str, subject: Subject, value: object) -> None:
    content = {"about": subject, name: to_jsonable_python(value)}
    content["sha256"] = _checksum(content)
    disk.replace_file(_path(name, subject), json.dumps(content, indent=1).encode())


def kept_code(key: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """The object file of a `key`, which `make` makes if none is kept. One that is damaged, or that
    another user could have written, counts as missing, since a process runs it."""
    digest = hashlib.sha256(repr(key).encode())
    path = disk.measured_folder() / f"{digest.hexdigest()[:16]}.o"

    def sealed(code: bytes) -> bytes:
        return hashlib.sha256(digest.digest() + code).digest() + code

    with suppress(OSError), open(path, "rb") as file:
        status, content = os.fstat(file.fileno()), file.read()
        private = status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
        if private and content == sealed(content[SHA256_BYTES:]):
            return content[SHA256_BYTES:]
    code = make()
    with suppress(OSError), disk.replacing(path) as partial:
        partial.write_bytes(sealed(code))
        partial.chmod(0o644)  # whatever others may write by default
    return code


def profiles() -> Iterator[tuple[Subject, Profile]]:
    """All stored profiles, each with its subject."""
    paths = sorted(disk.measured_folder().glob("*.json"))
    return filter(None, (_read("profile", path, Profile) for path in paths))


def forget() -> int:
    """Delete all measurements of this machine; returns their number. Raises FetchError."""
    paths = list(disk.measured_folder().glob("*.*"))
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FetchError(f"{path} cannot be deleted: {error.strerror}.") from error
    return len(paths)


def subject_of(files: PairFiles, threads: int | None) -> Subject:
    """The subject of the profile of `files` on `threads` threads (None: one per processor)."""
    draft = files.head or files.draft
    return {
        "machine": hardware.describe(),
        "threads": threads or hardware.processors(),
        "target": _graph(files.target),
        "draft": _graph(draft) if draft else "",
        "devices": f"{files.device}, {files.draft_device}",
        "kv_cache": files.kv_cache,
        "kernels": kernels.instructions(),
    }


def _path(name: str, subject: Subject) -> Path:
    machine = hardware.describe(), version("openvino"), VERSION
    key = hashlib.sha256(json.dumps([name, machine, subject]).encode()).hexdigest()[:16]
    return disk.measured_folder() / f"{key}.json"


def _read(name: str, path: Path, kind: type[Value]) -> tuple[Subject, Value] | None:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("sha256") != _checksum(content):
            return None
        return content["about"], _adapter(kind).validate_python(content[name])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _checksum(content: dict[str, Any]) -> str:
    """A file that was changed by hand or by a fault of the disk could make answers differ."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


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
