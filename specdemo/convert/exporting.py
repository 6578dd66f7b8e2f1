"""Exports PyTorch checkpoints and GGUF files to OpenVINO IR. `decoder` builds what it has a family
for; optimum-intel exports other checkpoints in a child process, which may crash."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.convert import configuration, model_files
from specdemo.errors import (
    TORCH_FIRST,
    BadInput,
    FetchError,
    MissingPackage,
    SpecdemoError,
    install,
)
from specdemo.machine.disk import file_size, link, replacing, require_space
from specdemo.machine.hardware import memory_bytes
from specdemo.machine.terminal import Progress, Report, silent

if TYPE_CHECKING:  # these import OpenVINO
    from specdemo.convert.decoder import Shape
    from specdemo.convert.gguf_file import Gguf
    from specdemo.convert.weights import Tensor

FULL_BYTES = 1_000_000  # with fewer left the disk is full, and the log may not say so
CHILD = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); import specdemo; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Runs a module as `python -m` does, after `specdemo`, which switches the telemetry off."""

_NEEDED = ("torch", "transformers", "optimum", "nncf")


def export(
    source: Path,
    out: Path,
    weight_format: str,
    report: Report = silent,
    *,
    name: str = "",
    prediction: str = "",
) -> None:
    """Export the checkpoint in the folder `source`, or the GGUF file `source`, to IR in the new
    folder `out`, complete or not at all. `weight_format` is int8, int4, fp16, or auto: int8, or
    int4 if that takes more than half of this machine's memory, but 4-bit weights of a GGUF file's
    layers as they are. With `prediction` ("after" or "before") the IR is a draft head: the
    checkpoint's own prediction layer (`eagle3.prediction_config`). Raises BadInput if `source` has
    no model that can be exported or `out` exists, MissingPackage, FetchError if the export
    fails."""
    from specdemo.convert import decoder, eagle3, gguf_file, gguf_tokenizer
    from specdemo.convert.weights import FileWeights

    if out.exists():
        raise BadInput(f"{out} exists already; name a folder that is not there yet.")
    before, name = model_files.fingerprint(source), name or str(source)
    config = eagle3.prediction_config(source, prediction) if prediction else None
    file = gguf_file.read(source) if source.is_file() else None
    shape, tensors = _decoder(source, name, config, file)
    blocks = weight_format == "auto"
    if blocks:
        large = shape and 2 * shape.bytes(8) > memory_bytes()
        weight_format = "int4" if large else "int8"
    # Optimum-intel first writes 32-bit IR; the checkpoint may have 16 bits.
    needed = int(2.5 * sum(map(file_size, source.glob("*.safetensors"))))
    if shape:
        needed = shape.bytes(decoder.BITS[weight_format])
    out.parent.mkdir(parents=True, exist_ok=True)
    require_space(out.parent, needed + 100_000_000, f"Exporting {name}")
    stay = "; 4-bit layers stay" if file and blocks else ""
    report(Progress(f"Exporting {name} to OpenVINO IR ({weight_format}{stay})"))
    try:
        with replacing(out) as made:
            if file:
                made.mkdir()
                gguf_tokenizer.write_tokenizer(file, made)
                link(source.absolute(), made / model_files.SOURCE)
            if shape:
                weights = FileWeights(tensors, report, name, blocks)
                decoder.write(shape, decoder.BITS[weight_format], weights, made)
                if unused := weights.unused():
                    raise BadInput(f"{name} has {unused[0]}, which {shape.family.name} has not.")
            else:
                _run_optimum(source, made, weight_format, name)
            _copy_texts(source, made)
            if config:
                (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
            if model_files.fingerprint(source) != before:
                raise FetchError(f"{source} was replaced while it was read; try again.")
    except SpecdemoError:
        raise
    except (OSError, RuntimeError) as error:  # OpenVINO's errors do not name a full disk
        why = getattr(error, "strerror", None) or "is the disk full?"
        space = getattr(error, "errno", errno.ENOSPC) == errno.ENOSPC
        advice = "free some disk space" if space else "choose a folder that can be written"
        raise FetchError(
            f"The IR of {name} could not be written to {out.parent} ({why}); {advice}."
        ) from error


def _decoder(
    source: Path, name: str, prediction: dict[str, Any] | None, file: Gguf | None
) -> tuple[Shape | None, dict[str, Tensor]]:
    """The shape of the graph that is built here, None if optimum-intel exports, and its tensors.
    `prediction`: config.json of the prediction layer that is wanted. Raises as `export`."""
    from specdemo.convert import checkpoints, eagle3, gguf_decoder
    from specdemo.convert.decoder import FAMILIES

    if prediction:
        return eagle3.read_prediction_layer(source, prediction, name)
    if file:
        return gguf_decoder.read_decoder(file)
    require_checkpoint(source)
    config = configuration.read_json(source / "config.json")
    if configuration.is_eagle_head(config):
        return eagle3.read_eagle_head(source, name)
    if shape := checkpoints.shape_of(config, source / "config.json"):
        return checkpoints.read_decoder(source, shape)
    if missing := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
        raise MissingPackage(
            f"{name} ({config.get('model_type')!r:.40}) is of no family that is read here "
            f"({', '.join(FAMILIES)}), or has a feature that they lack. Exporting it needs "
            f"{', '.join(missing)}: {install('export')}, {TORCH_FIRST}; or `--model` with a folder "
            "that optimum-intel exported."
        )
    return None, {}


def _run_optimum(source: Path, out: Path, weight_format: str, name: str) -> None:
    readable = without_marks(source, out.with_name(f"{out.name}-source"))
    arguments = optimum_arguments(readable, out, weight_format)
    if why := run_module("optimum.commands.optimum_cli", arguments, out.parent):
        why = _other_versions(why, name) or why
        raise FetchError(f"optimum-intel could not export {name}: {why}")


def _copy_texts(source: Path, out: Path) -> None:
    """Copy the files that the exporters do not write, or write in another form."""
    for pattern in ("*.json", "*.jinja", f"{model_files.FURTHER_TEMPLATES}/*.jinja"):
        for path in source.glob(pattern):
            if path.is_file() and path.name != model_files.MANIFEST:
                copied = out / path.relative_to(source)
                copied.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copied)


def _other_versions(why: str, name: str) -> str:
    """What to do if optimum-intel says that it exports this family with other versions of
    transformers; else ""."""
    if not (limit := re.search(r"(Min|Max)imum required is ([\d.]*\d)(\.\*)?", why)):
        return ""
    bounds = f"{'>=' if limit[1] == 'Min' else '<='}{limit[2]}"
    wanted = f"transformers{f'=={limit[2]}.*' if limit[3] else bounds}"
    return (
        f"this family needs {wanted}, and {version('transformers')} is installed. Export it in an "
        f"environment of its own: `pip install optimum-intel=={version('optimum-intel')} nncf "
        f"'{wanted}'`, `optimum-cli export openvino --model {name} OUT`, then `--model OUT`."
    )


def without_marks(source: Path, folder: Path) -> Path:
    """Make `folder` with the files of `source`. Texts lose a byte order mark, which transformers
    does not read."""
    folder.mkdir()
    for path in filter(Path.is_file, source.iterdir()):
        if path.suffix in (".json", ".jinja"):
            (folder / path.name).write_text(configuration.read_text(path), encoding="utf-8")
        else:
            link(path.absolute(), folder / path.name)
    return folder


def optimum_arguments(source: Path, out: Path, weight_format: str) -> list[str]:
    """Arguments of optimum-cli. With int4, 128, 64 or 32 weights share a scale, whichever divides
    all of the model's widths, or a whole row (-1)."""
    arguments = ["export", "openvino", "--model", str(source), "--library", "transformers"]
    arguments += ["--task", "text-generation-with-past", "--weight-format", weight_format]
    if weight_format != "fp16":
        arguments.append("--sym")
    if weight_format == "int4":
        config = configuration.read_json(source / "config.json")
        names = ("hidden_size", "intermediate_size", "n_embd", "n_inner")
        widths = [config[name] for name in names if isinstance(config.get(name), int)]
        group = math.gcd(128, *widths) if widths else 1
        arguments += ["--group-size", str(group if group >= 32 else -1), "--ratio", "1.0"]
    return [*arguments, str(out)]


def require_checkpoint(folder: Path) -> None:
    """Raise BadInput if `folder` holds no PyTorch checkpoint with its configuration."""
    if not any(folder.glob("*.safetensors")) or not (folder / "config.json").is_file():
        raise BadInput(
            f"{folder} holds no PyTorch checkpoint (config.json, *.safetensors), nor OpenVINO IR "
            f"({model_files.MODEL}) where that would do."
        )


def run_module(
    module: str, arguments: list[str], work: Path, watch: Callable[[], None] = lambda: None
) -> str:
    """Run `python -m module arguments` with temporary files in `work`. Returns "" on success, else
    the reason: the signal that ended it, or its last line of output. `watch` is called twice a
    second; an exception in it kills the process."""
    variables = {"TMPDIR": str(work), "HF_HUB_OFFLINE": "1"}
    variables |= {"TOKENIZERS_PARALLELISM": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    package = str(Path(sys.modules["specdemo"].__path__[0]).parent)
    command = [sys.executable, "-c", CHILD, package, module, *arguments]
    output = None
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | variables,
    ) as child:
        try:
            while output is None:
                with suppress(subprocess.TimeoutExpired):
                    output, _ = child.communicate(timeout=0.5)
                watch()
        finally:
            child.kill()
    code, text = child.returncode, output.decode(errors="replace").strip()
    if code < 0:
        return f"the process was killed (signal {-code}), which usually means that memory ran out."
    if code and ("No space left" in text or shutil.disk_usage(work).free < FULL_BYTES):
        return f"the disk of {work.parent} is full; free some space and try again."
    return (text or f"exit code {code}.").splitlines()[-1][:300] if code else ""
