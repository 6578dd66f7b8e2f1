"""OpenVINO IR of PyTorch checkpoints and GGUF files, whole or not at all.

GPT-NeoX checkpoints are converted here (see `neox`), everything else in child processes (see
`convert`): a child gives its memory back when it ends, and a crash in it becomes an error here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import specdemo
from specdemo.errors import BadInput, FetchError, MissingPackage
from specdemo.models import ir
from specdemo.models.machine import file_size, make_folder, require_space
from specdemo.models.progress import Progress, Report, silent

_NEEDED = ("torch", "transformers", "optimum", "nncf")
_KEPT = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export(
    source: Path,
    out: Path,
    weight_format: str,
    report: Report = silent,
    *,
    group_size: int = 0,
    name: str = "",
) -> None:
    """Make IR of the checkpoint in `source` in the new folder `out`.

    `weight_format` is int8, int4 or fp16; `group_size` is for int4: weights that share a scale, 0
    for the largest that fits. Raises BadInput for a folder without a checkpoint or an `out` that
    exists, MissingPackage without torch and optimum-intel, FetchError if the export fails.
    """
    from specdemo.models import convert, neox

    require_checkpoint(source)
    name = name or str(source)
    if out.exists():
        raise BadInput(f"{out} exists already; name a folder that is not there yet.")
    config = ir.read_json(source / "config.json")
    group_size = group_size or convert.fitting_group_size(config)
    shape, bits = neox.shape_of(config), neox.BITS[weight_format]
    missing = [one for one in _NEEDED if importlib.util.find_spec(one) is None]
    if missing and not shape:
        raise MissingPackage(
            f"Exporting needs {', '.join(missing)}, which are not installed; run "
            "`pip install --retries 1 -r requirements-export.txt`."
        )
    if shape:  # the packed weights, then the IR
        needed = 2 * shape.bytes(bits)
    else:  # the 32-bit IR comes first, of a checkpoint of perhaps 16 bits
        weights = [path for path in source.glob("*") if path.suffix in (".safetensors", ".bin")]
        needed = int(sum(map(file_size, weights)) * (1 if weight_format == "fp16" else 2.5))
    space = make_folder(out.parent), needed + 100_000_000, f"Exporting {name}"
    require_space(*space)
    report(Progress(f"Exporting {name} to OpenVINO IR ({weight_format})"))
    try:
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=out.parent) as scratch:
            made = Path(scratch) / "ir"
            arguments = [str(source), str(made), weight_format, str(group_size)]
            if shape:
                neox.convert(source, shape, made, bits, group_size, report, name)
                if not missing and (source / "tokenizer.json").is_file():
                    _run_convert([*arguments[:2], "tokenizer"])
            else:
                code, output = _run_convert(arguments)
                if code != 0:
                    require_space(*space)  # others may have filled the disk meanwhile
                    why = reason(code, output)
                    raise FetchError(f"optimum-intel could not export {name}: {why}")
            for kept in _KEPT:  # where transformers wrote none or another form
                if (source / kept).is_file():
                    shutil.copyfile(source / kept, made / kept)
            ir.check_decoder(made)
            os.replace(made, out)
    except OSError as error:
        require_space(*space)
        raise FetchError(f"{out} could not be written: {error.strerror or error}.") from error


def convert_gguf(gguf: Path, out: Path) -> None:
    """Make IR of a GGUF file in the new folder `out`, weights as int8 rows. Raises FetchError."""
    # A copy of the file, its IR, and that with other weights; two of them at once.
    space = make_folder(out.parent), 3 * file_size(gguf), f"Converting {gguf.name}"
    require_space(*space)
    code, output = _run_convert([str(gguf), str(out)])
    if code != 0:
        shutil.rmtree(out, ignore_errors=True)
        require_space(*space)  # others may have filled the disk meanwhile
        raise FetchError(
            f"openvino_genai could not convert {gguf.name} to OpenVINO IR: {reason(code, output)}"
        )
    ir.check_decoder(out)


def _run_convert(arguments: list[str]) -> tuple[int, str]:
    return run_module(
        "specdemo.models.convert",
        arguments,
        log=Path(arguments[1]).parent / "convert.log",
        environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )


def require_checkpoint(folder: Path) -> None:
    """Raise BadInput if `folder` holds no PyTorch checkpoint with its configuration."""
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    if not has_weights or not (folder / "config.json").is_file():
        raise BadInput(
            f"{folder} holds neither OpenVINO IR ({ir.MODEL}) nor a PyTorch checkpoint "
            "(config.json, *.safetensors)."
        )


def run_module(
    module: str,
    arguments: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Run `python -m module arguments`; returns its exit code and its output, kept in `log`.

    `watch` is called about five times a second. The child is killed if this function is left early.
    """
    package_root = str(Path(specdemo.__file__).parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}
    with open(log, "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
        )
        try:
            while child.poll() is None:
                watch()
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
    return child.returncode, log.read_text(encoding="utf-8", errors="replace")


def reason(code: int, output: str) -> str:
    """Why a child failed: its last line, or the signal that ended it."""
    if code < 0:
        return f"the process was killed (signal {-code}), which usually means that memory ran out."
    lines = output.strip().splitlines()
    return lines[-1].strip()[:300] if lines else f"exit code {code}."
