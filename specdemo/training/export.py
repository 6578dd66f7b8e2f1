"""A trained draft as OpenVINO IR in int8 with its tokenizer, in the folder the user named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from specdemo.training.target import Target
from specdemo.models.errors import ZooError

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip


def export_draft(model, target: Target, out: Path, work: Path) -> None:
    """Put IR of `model` into `out`; `work` keeps the checkpoint it was made from.

    A draft of a checkpoint goes through optimum-intel. One of a GGUF target is joined with the target's own tensors,
    and openvino_genai makes its IR, as it made the target's.
    """
    made = work / "ir"
    shutil.rmtree(made, ignore_errors=True)
    if target.gguf:
        _from_gguf(model, target.gguf, made, work)
    else:
        _from_checkpoint(model, target.folder, made, work)
    for path in made.iterdir():
        os.replace(path, out / path.name)
    made.rmdir()


def _from_checkpoint(model, source: Path, made: Path, work: Path) -> None:
    from specdemo.models.export import ExportSettings, export

    checkpoint = work / "checkpoint"
    model.save_pretrained(checkpoint)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, checkpoint / name)
    export(checkpoint, made, ExportSettings("int8"), name="the draft")


def _from_gguf(model, gguf: Path, made: Path, work: Path) -> None:
    from specdemo.training.gguf_layers import write_layers
    from specdemo.models import child
    from specdemo.models.embedded_draft import build_draft_gguf

    layers, joined = work / "layers.gguf", work / "draft.gguf"
    write_layers(model, layers)
    build_draft_gguf(gguf, joined, layers)
    code, said = child.run_module("specdemo.models.convert", [str(joined), str(made)], log=work / "convert.log")
    if code != 0:
        raise ZooError(f"The draft could not be converted to OpenVINO IR: {said.strip()[-200:]}")
    joined.unlink()
