"""OpenVINO IR of PyTorch checkpoints and GGUF files, whole or not at all.

GPT-NeoX checkpoints are converted here (see `neox`), GGUF files by openvino_genai (see `convert`),
everything else by optimum-intel, both in child processes: a child gives its memory back when it
ends, and a crash in it becomes an error here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specdemo
from specdemo.errors import BadInput, FetchError, MissingPackage
from specdemo.models import ir
from specdemo.models.machine import file_size, make_folder, require_space
from specdemo.models.progress import Progress, Report, silent

_NEEDED = ("torch", "transformers", "optimum", "nncf")


def export(
    source: Path, out: Path, weight_format: str, report: Report = silent, *, name: str = ""
) -> None:
    """Make IR of the checkpoint in `source` in the new folder `out`.

    `weight_format` is int8, int4 or fp16. Raises BadInput for a folder without a checkpoint or an
    `out` that exists, MissingPackage without torch and optimum-intel, FetchError if the export
    fails.
    """
    from specdemo.models import neox

    require_checkpoint(source)
    if out.exists():
        raise BadInput(f"{out} exists already; name a folder that is not there yet.")
    name, config = name or str(source), ir.read_json(source / "config.json")
    shape, bits = neox.shape_of(config), neox.BITS[weight_format]
    missing = [one for one in _NEEDED if importlib.util.find_spec(one) is None]
    if missing and not shape:
        raise MissingPackage(
            f"Exporting needs {', '.join(missing)}, which are not installed; run "
            "`pip install --retries 1 -r requirements-export.txt`."
        )
    # Optimum-intel writes a 32-bit IR first, of a checkpoint of perhaps 16 bits.
    needed = shape.bytes(bits) if shape else 2.5 * sum(map(file_size, source.glob("*.safetensors")))
    require_space(make_folder(out.parent), int(needed) + 100_000_000, f"Exporting {name}")
    report(Progress(f"Exporting {name} to OpenVINO IR ({weight_format})"))
    group = fitting_group_size(config)
    try:
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=out.parent) as scratch:
            made = Path(scratch) / "ir"
            if shape:
                neox.convert(source, shape, made, bits, group, report, name)
            else:
                arguments = optimum_arguments(source, made, weight_format, group)
                if why := run_module("optimum.commands.optimum_cli", arguments, Path(scratch)):
                    raise FetchError(f"optimum-intel could not export {name}: {why}")
            # Transformers writes none of these or another form.
            for kept in [*source.glob("*.json"), *source.glob("*.jinja")]:
                shutil.copyfile(kept, made / kept.name)
            os.replace(made, out)
    except OSError as error:
        raise FetchError(f"{out} could not be written: {error.strerror or error}.") from error


def optimum_arguments(source: Path, out: Path, weight_format: str, group: int) -> list[str]:
    """Of optimum-cli. Embedding and head get 8 bits in int4."""
    arguments = ["export", "openvino", "--model", str(source), "--library", "transformers"]
    arguments += ["--task", "text-generation-with-past", "--weight-format", weight_format]
    if weight_format != "fp16":
        arguments.append("--sym")
    if weight_format == "int4":
        arguments += ["--group-size", str(group), "--ratio", "1.0"]
    return [*arguments, str(out)]


def fitting_group_size(config: dict[str, Any]) -> int:
    """How many 4-bit weights share a scale: the largest of three sizes that divides the model's
    widths, -1 (a whole row) if none does."""
    names = ("hidden_size", "intermediate_size", "n_embd", "n_inner")
    widths = [config[name] for name in names if isinstance(config.get(name), int)]
    fitting = (size for size in (128, 64, 32) if widths and all(one % size == 0 for one in widths))
    return next(fitting, -1)


def convert_gguf(gguf: Path, out: Path) -> None:
    """Make IR of a GGUF file, weights as int8 rows, and its tokenizer in the new folder `out`.
    Raises FetchError."""
    if why := run_module("specdemo.models.convert", [str(gguf), str(out)], out.parent):
        raise FetchError(f"openvino_genai could not convert {gguf.name} to OpenVINO IR: {why}")


def require_checkpoint(folder: Path) -> None:
    """Raise BadInput if `folder` holds no PyTorch checkpoint with its configuration."""
    if not any(folder.glob("*.safetensors")) or not (folder / "config.json").is_file():
        raise BadInput(
            f"{folder} holds no PyTorch checkpoint (config.json, *.safetensors), nor OpenVINO IR "
            f"({ir.MODEL}) where that would do."
        )


def run_module(
    module: str, arguments: list[str], work: Path, watch: Callable[[], None] = lambda: None
) -> str:
    """Run `python -m module arguments`, with temporary files in `work`. Gives why it failed: its
    last line, or the signal that ended it; "" if it did not.

    `watch` is called about five times a second. The child is killed if this function is left early.
    """
    package_root = str(Path(specdemo.__file__).parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(work), "HF_HUB_OFFLINE": "1"}
    variables |= {"TOKENIZERS_PARALLELISM": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log = work / "child.log"
    with open(log, "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )
        try:
            while child.poll() is None:
                watch()
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
    code, lines = child.returncode, log.read_text(encoding="utf-8", errors="replace").splitlines()
    if code < 0:
        return f"the process was killed (signal {-code}), which usually means that memory ran out."
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}.")
    return last[:300] if code else ""
