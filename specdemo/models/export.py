"""PyTorch checkpoints become OpenVINO IR, by optimum-intel in a child process; cached by source and settings.

The child gives its memory back when it ends, and a crash in it is a sentence here. Without torch and optimum-intel
installed it says what to install.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specdemo.models import child, ir
from specdemo.models.errors import BadChoice, ZooError
from specdemo.models.home import cache_home, make_folder, only_one_in, require_space
from specdemo.models.progress import Progress, Report, silent

WEIGHT_FORMATS = ("int8", "int4", "fp16")
_FORMAT = 2
"""Raised when exports change, so that older ones in the cache are not taken for new ones."""

_NEEDED = ("torch", "transformers", "optimum.intel", "nncf")


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """`weight_format` is one of WEIGHT_FORMATS; `group_size` only for int4: weights that share a scale, 0 to choose."""

    weight_format: str = "int8"
    group_size: int = 0


def export_cached(source: Path, name: str, revision: str, settings: ExportSettings, report: Report = silent) -> Path:
    """The IR of the checkpoint in `source`, from the cache if this revision was exported with these settings before.

    `revision` says which content `source` has. Raises ZooError.
    """
    folder = _place(name, revision, settings)
    if (folder / ir.MODEL).is_file():
        return folder
    make_folder(folder.parent)
    with only_one_in(folder.parent):
        if not (folder / ir.MODEL).is_file():
            for leftover in folder.parent.glob(".*-*"):  # of an export that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            export(source, folder, settings, report, name=name)
    return folder


def cached_export(name: str, revision: str, settings: ExportSettings) -> Path | None:
    """The folder of an earlier `export_cached`, None if there was none."""
    folder = _place(name, revision, settings)
    return folder if (folder / ir.MODEL).is_file() else None


def _place(name: str, revision: str, settings: ExportSettings) -> Path:
    parts = [name, revision, settings.weight_format, settings.group_size, _FORMAT]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    plain = "".join(char if char.isalnum() or char in "._-" else "-" for char in name)[-60:]
    return cache_home() / "exported" / f"{plain}-{settings.weight_format}-{key[:10]}"


def export(source: Path, out: Path, settings: ExportSettings, report: Report = silent, *, name: str = "") -> None:
    """Make IR of the checkpoint in the folder `source` in the new folder `out`, whole or not at all.

    Raises BadChoice for a folder that holds no checkpoint or an `out` that exists, ZooError if the export fails.
    """
    require_checkpoint(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadChoice(f"{out} exists already; name a folder that is not there yet.")
    if missing := [one for one in _NEEDED if not _installed(one)]:
        raise ZooError(
            f"Exporting needs {', '.join(missing)}, which are not installed; run "
            "`pip install --retries 1 -r requirements-export.txt`."
        )
    weights = sum(path.stat().st_size for path in source.glob("*") if path.suffix in (".safetensors", ".bin"))
    make_folder(out.parent)
    # On the way to int8 or int4 there is IR of 32 bits a weight, which the checkpoint may have 16 for.
    needed = weights if settings.weight_format == "fp16" else 2.5 * weights
    require_space(out.parent, int(needed) + 100_000_000, f"Exporting {name or source}")
    report(Progress(f"Exporting {name or source} to OpenVINO IR ({settings.weight_format})"))
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        made = scratch / "ir"
        code, said = child.run_module(
            "specdemo.models.export_child",
            [str(source), str(made), settings.weight_format, str(settings.group_size)],
            log=scratch / "export.log",
            environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        if code != 0 or not (made / ir.MODEL).is_file():
            raise ZooError(f"optimum-intel could not export {name or source}: {_reason(code, said)}")
        ir.check_decoder(made)
        if out.is_dir():
            out.rmdir()
        os.replace(made, out)
    except OSError as error:
        raise ZooError(f"{out} could not be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def require_checkpoint(folder: Path) -> None:
    """Raise BadChoice if `folder` holds no PyTorch checkpoint with its configuration."""
    if not folder.is_dir():
        raise BadChoice(f"{folder} is not a folder.")
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    if not has_weights or not (folder / "config.json").is_file():
        raise BadChoice(
            f"{folder} holds neither OpenVINO IR ({ir.MODEL}) nor a PyTorch checkpoint (config.json, *.safetensors)."
        )


def fingerprint(folder: Path) -> str:
    """Stands for the content of a local checkpoint: names, sizes and times of its files."""
    total = hashlib.sha256(str(folder.resolve()).encode())
    for path in sorted(folder.glob("*")):
        if path.is_file():
            status = path.stat()
            total.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return total.hexdigest()[:16]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _reason(code: int, said: str) -> str:
    if code < 0:
        return f"the exporting process was killed (signal {-code}), which usually means that memory ran out."
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {code}."
