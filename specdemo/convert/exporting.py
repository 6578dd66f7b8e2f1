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
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdemo.convert import configuration, model_files
from specdemo.errors import (
    TORCH_FIRST,
    BadInput,
    FetchError,
    MissingPackage,
    SpecdemoError,
    install,
)
from specdemo.machine.disk import file_size, link, require_space
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
    layers as they are. With `prediction` ("after" or "before")
    the IR is a draft head: the checkpoint's own prediction layer (`eagle3.prediction_config`).
    Raises BadInput if `source` has no model that can be exported or `out` exists, MissingPackage,
    FetchError if the export fails."""
    if out.exists():
        raise BadInput(f"{out} exists already; name a folder that is not there yet.")
    before = model_files.fingerprint(source)
    plan = ExportPlan.of(source, weight_format, name or str(source), prediction)
    out.parent.mkdir(parents=True, exist_ok=True)
    require_space(out.parent, plan.bytes + 100_000_000, f"Exporting {plan.name}")
    stay = "; 4-bit layers stay" if plan.file and plan.blocks else ""
    report(Progress(f"Exporting {plan.name} to OpenVINO IR ({plan.weight_format}{stay})"))
    try:
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=out.parent) as scratch:
            made = Path(scratch) / "ir"
            plan.write(made, report)
            if model_files.fingerprint(source) != before:
                raise FetchError(f"{source} was replaced while it was read; try again.")
            os.replace(made, out)
    except SpecdemoError:
        raise
    except (OSError, RuntimeError) as error:  # OpenVINO's errors do not name a full disk
        why = getattr(error, "strerror", None) or "is the disk full?"
        space = getattr(error, "errno", errno.ENOSPC) == errno.ENOSPC
        advice = "free some disk space" if space else "choose a folder that can be written"
        raise FetchError(
            f"The IR of {plan.name} could not be written to {out.parent} ({why}); {advice}."
        ) from error


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """How a model becomes IR."""

    source: Path
    name: str
    weight_format: str
    blocks: bool  # whether a GGUF file's 4-bit weights stay as they are
    file: Gguf | None = None  # a GGUF file's metadata
    shape: Shape | None = None  # of the graph that is built here; None: optimum-intel exports
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # of that graph
    config: Mapping[str, Any] | None = None  # config.json, if it is not the source's

    @classmethod
    def of(cls, source: Path, weight_format: str, name: str, prediction: str = "") -> Self:
        """Read what the model in `source` is, without its weights. Raises as `export`."""
        from specdemo.convert import checkpoints, eagle3, gguf_decoder, gguf_file
        from specdemo.convert.decoder import FAMILIES

        file, own = None, None
        shape: Shape | None = None
        tensors: dict[str, Tensor] = {}
        if prediction:
            own = eagle3.prediction_config(source, prediction)
            shape, tensors = eagle3.read_prediction_layer(source, own, name)
        elif source.is_file():
            file = gguf_file.read(source)
            shape, tensors = gguf_decoder.read_decoder(file)
        else:
            require_checkpoint(source)
            config = configuration.read_json(source / "config.json")
            if configuration.is_eagle_head(config):
                shape, tensors = eagle3.read_eagle_head(source, name)
            elif shape := checkpoints.shape_of(config, source / "config.json"):
                shape, tensors = checkpoints.read_decoder(source, shape)
        missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
        if missing and not shape:
            kind = configuration.read_json(source / "config.json").get("model_type")
            raise MissingPackage(
                f"{name} ({kind!r:.40}) is of no family that is read here ({', '.join(FAMILIES)}), "
                f"or has a feature that they lack. Exporting it needs {', '.join(missing)}: "
                f"{install('export')}, {TORCH_FIRST}; or `--model` with a folder that "
                "optimum-intel exported."
            )
        blocks = weight_format == "auto"
        if blocks:
            large = shape and 2 * shape.bytes(8) > memory_bytes()
            weight_format = "int4" if large else "int8"
        return cls(source, name, weight_format, blocks, file, shape, tensors, own)

    @property
    def bytes(self) -> int:
        """Disk space that the export takes."""
        from specdemo.convert.decoder import BITS

        if self.shape:
            return self.shape.bytes(BITS[self.weight_format])
        # Optimum-intel first writes 32-bit IR; the checkpoint may have 16 bits.
        return int(2.5 * sum(map(file_size, self.source.glob("*.safetensors"))))

    def write(self, folder: Path, report: Report) -> None:
        """Write the model's IR, tokenizer and configuration into the new `folder`. Raises BadInput
        for what the graph or the tokenizer cannot have, FetchError."""
        from specdemo.convert import decoder, gguf_tokenizer
        from specdemo.convert.weights import FileWeights

        if self.file:
            folder.mkdir()
            gguf_tokenizer.write_tokenizer(self.file, folder)
            link(self.source.absolute(), folder / model_files.SOURCE)
        if self.shape:
            weights = FileWeights(self.tensors, report, self.name, self.blocks)
            decoder.write(self.shape, decoder.BITS[self.weight_format], weights, folder)
            if unused := weights.unused():
                family = self.shape.family.name
                raise BadInput(f"{self.name} has {unused[0]}, which {family} has not.")
        else:
            readable = without_marks(self.source, folder.parent / "source")
            arguments = optimum_arguments(readable, folder, self.weight_format)
            if why := run_module("optimum.commands.optimum_cli", arguments, folder.parent):
                why = _other_versions(why, self.name) or why
                raise FetchError(f"optimum-intel could not export {self.name}: {why}")
        # The exporters do not write these files, or write them in another form.
        further = f"{model_files.FURTHER_TEMPLATES}/*.jinja"
        for path in [
            path for name in ("*.json", "*.jinja", further) for path in self.source.glob(name)
        ]:
            if path.is_file() and path.name != model_files.MANIFEST:
                copied = folder / path.relative_to(self.source)
                copied.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copied)
        if self.config:
            (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")


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
