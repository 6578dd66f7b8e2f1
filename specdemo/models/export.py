"""OpenVINO IR of PyTorch checkpoints and GGUF files, made in child processes (see `convert`).

A child gives its memory back when it ends, and a crash in it becomes an error here. Exports of
checkpoints are cached by source and settings.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput, FetchError, MissingPackage
from specdemo.models import child, ir
from specdemo.models.machine import cache_home, exclusive_scratch, make_folder, require_space
from specdemo.models.progress import Progress, Report, silent

_FORMAT = 2
"""Raised when exports change, so that older ones in the cache are not taken for new ones."""

_NEEDED = ("torch", "transformers", "optimum", "nncf")


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """`weight_format` is int8, int4 or fp16; `group_size` is for int4: weights that share a scale,
    0 for the largest that fits."""

    weight_format: str = "int8"
    group_size: int = 0


def export_cached(
    source: Path, name: str, revision: str, settings: ExportSettings, report: Report = silent
) -> Path:
    """The IR of the checkpoint in `source`, from the cache if this revision was exported before.

    `revision` identifies the content of `source`. Raises what `export` raises.
    """
    folder = _place(name, revision, settings)
    if not (folder / ir.MODEL).is_file():
        with exclusive_scratch(folder.parent) as scratch:
            if not (folder / ir.MODEL).is_file():
                export(source, scratch / "ir", settings, report, name=name)
                os.replace(scratch / "ir", folder)
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


def export(
    source: Path, out: Path, settings: ExportSettings, report: Report = silent, *, name: str = ""
) -> None:
    """Make IR of the checkpoint in `source` in the new folder `out`, whole or not at all.

    Raises BadInput for a folder without a checkpoint or an `out` that exists, MissingPackage
    without torch and optimum-intel, FetchError if the export fails.
    """
    require_checkpoint(source)
    name = name or str(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} exists already; name a folder that is not there yet.")
    if missing := [one for one in _NEEDED if importlib.util.find_spec(one) is None]:
        raise MissingPackage(
            f"Exporting needs {', '.join(missing)}, which are not installed; run "
            "`pip install --retries 1 -r requirements-export.txt`."
        )
    weights = [path for path in source.glob("*") if path.suffix in (".safetensors", ".bin")]
    needed = sum(path.stat().st_size for path in weights)
    if settings.weight_format != "fp16":  # 32-bit IR comes first, of a checkpoint of perhaps 16
        needed = int(2.5 * needed)
    require_space(make_folder(out.parent), needed + 100_000_000, f"Exporting {name}")
    report(Progress(f"Exporting {name} to OpenVINO IR ({settings.weight_format})"))
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            made = Path(scratch) / "ir"
            code, output = child.run_module(
                "specdemo.models.convert",
                [str(source), str(made), settings.weight_format, str(settings.group_size)],
                log=Path(scratch) / "export.log",
                environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
            if code != 0 or not (made / ir.MODEL).is_file():
                raise FetchError(
                    f"optimum-intel could not export {name}: {child.reason(code, output)}"
                )
            ir.check_decoder(made)
            if out.is_dir():
                out.rmdir()
            os.replace(made, out)
    except OSError as error:
        raise FetchError(f"{out} could not be written: {error.strerror or error}.") from error


def convert_gguf(gguf: Path, out: Path) -> None:
    """Make IR of a GGUF file in the new folder `out`, weights as int8 rows. Raises FetchError.

    The folder is not whole if this fails: make it inside a scratch folder.
    """
    make_folder(out.parent)
    code, output = child.run_module(
        "specdemo.models.convert", [str(gguf), str(out)], log=out.parent / "convert.log"
    )
    if code != 0:
        raise FetchError(
            f"openvino_genai could not convert {gguf.name} to OpenVINO IR: "
            f"{child.reason(code, output)}"
        )
    ir.check_decoder(out)


def require_checkpoint(folder: Path) -> None:
    """Raise BadInput if `folder` holds no PyTorch checkpoint with its configuration."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    if not has_weights or not (folder / "config.json").is_file():
        raise BadInput(
            f"{folder} holds neither OpenVINO IR ({ir.MODEL}) nor a PyTorch checkpoint "
            "(config.json, *.safetensors)."
        )


def fingerprint(folder: Path) -> str:
    """Identifies the content of a local checkpoint by names, sizes and times of its files."""
    total = hashlib.sha256(str(folder.resolve()).encode())
    for path in sorted(folder.glob("*")):
        if path.is_file():
            status = path.stat()
            total.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return total.hexdigest()[:16]
