"""The program that makes OpenVINO IR, run in a child process (see `export`).

`python -m specdemo.models.convert GGUF OUT` converts a GGUF file with openvino_genai;
`python -m specdemo.models.convert CHECKPOINT OUT FORMAT GROUP_SIZE` exports a PyTorch checkpoint
with optimum-intel; with `tokenizer` as FORMAT it writes only the checkpoint's tokenizer, as IR.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.models import ir

GROUP_SIZES = (128, 64, 32)
_AT_ONCE = 32
"""Matrices unpacked together: one at a time, compiling takes most of the time; all, the memory."""


def from_gguf(gguf: Path, out: Path) -> None:
    """Write IR of `gguf` with int8 weights into the new folder `out`."""
    import openvino_genai

    out.mkdir(parents=True)
    source = out / "model.gguf"  # the IR is written beside it
    shutil.copyfile(gguf, source)
    openvino_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
    source.unlink()
    _rewrite(out / ir.MODEL, to_int8_rows)


def from_checkpoint(
    source: Path, out: Path, weight_format: str, group_size: int, *, convert_tokenizer: bool = True
) -> None:
    """Write IR of the checkpoint in `source` into `out`; `convert_tokenizer` also writes its
    tokenizer as IR, which only other programs need."""
    import nncf
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(source),
        output=str(out),
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp16" if weight_format == "fp16" else "fp32"),
        library_name="transformers",
        stateful=True,
        convert_tokenizer=convert_tokenizer,
    )
    if weight_format == "int8":
        settings = {"mode": nncf.CompressWeightsMode.INT8_SYM}
    else:  # embedding and head get 8 bits
        size = group_size or fitting_group_size(ir.read_json(source / "config.json"))
        settings = {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": size, "ratio": 1.0}
    if weight_format != "fp16":
        _rewrite(out / ir.MODEL, lambda model: nncf.compress_weights(model, **settings))


def tokenizer_ir(source: Path, out: Path) -> None:
    """Write the tokenizer in `source` as IR into `out`."""
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    models = convert_tokenizer(AutoTokenizer.from_pretrained(source), with_detokenizer=True)
    for model, name in zip(models, ("openvino_tokenizer", "openvino_detokenizer"), strict=True):
        ov.save_model(model, out / f"{name}.xml")


def fitting_group_size(config: dict) -> int:
    """The largest group that divides the model's widths, -1 (a whole row) if none does."""
    names = ("hidden_size", "intermediate_size", "n_embd", "n_inner")
    widths = [config[name] for name in names if isinstance(config.get(name), int)]
    fitting = (size for size in GROUP_SIZES if widths and all(one % size == 0 for one in widths))
    return next(fitting, -1)


def to_int8_rows(model: ov.Model) -> ov.Model:
    """Store every compressed matrix as int8 [rows, columns] with a float16 scale a row, in place:
    the form that unpacks fastest where there are no dot products of small integers."""
    matrices = [node for node in model.get_ordered_ops() if _is_compressed_matrix(node)]
    for begin in range(0, len(matrices), _AT_ONCE):
        nodes = matrices[begin : begin + _AT_ONCE]
        expressions = ov.Model([ops.result(node.output(0)) for node in nodes], [], "weights")
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        values = ov.Core().compile_model(expressions, "CPU", precision)()
        for index, node in enumerate(nodes):
            replacement = _int8_rows(values[index])
            for target in list(node.output(0).get_target_inputs()):
                if target.get_node().get_type_name() != "Result":
                    target.replace_source_output(replacement)
    model.validate_nodes_and_infer_types()
    return model


def _int8_rows(weights: np.ndarray) -> ov.Output:
    scale = np.abs(weights).max(axis=1, keepdims=True).astype(np.float16) / np.float16(127)
    scale[scale == 0] = 1
    rounded = np.clip(np.rint(weights / scale.astype(np.float32)), -127, 127).astype(np.int8)
    unpacked = ops.multiply(ops.convert(ops.constant(rounded), "f16"), ops.constant(scale))
    return ops.convert(unpacked, "f32").output(0)


def _is_compressed_matrix(node: ov.Node) -> bool:
    """Whether `node` converts a constant expression of integers to a float32 matrix."""
    if node.get_type_name() != "Convert" or node.get_output_element_type(0) != ov.Type.f32:
        return False
    shape = node.get_output_partial_shape(0)
    if shape.rank.is_dynamic or len(shape) != 2:
        return False
    pending, integers = [node], False
    while pending:
        at = pending.pop()
        pending += [value.get_node() for value in at.input_values()]
        if at.get_type_name() == "Constant":
            integers |= at.get_element_type().is_integral() and len(at.get_output_shape(0)) > 1
        elif not at.get_input_size():  # of an input of the model
            return False
    return integers


def _rewrite(xml: Path, change: Callable[[ov.Model], ov.Model]) -> None:
    """Replace IR by what `change` makes of it. Its weights stay mapped from the file while read, so
    the new ones are written beside it."""
    new = xml.with_name("rewritten.xml")
    ov.save_model(change(ov.Core().read_model(xml)), new, compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        new.with_suffix(suffix).replace(xml.with_suffix(suffix))


if __name__ == "__main__":
    _source, _out = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) == 3:
        from_gguf(_source, _out)
    elif sys.argv[3] == "tokenizer":
        tokenizer_ir(_source, _out)
    else:
        from_checkpoint(_source, _out, sys.argv[3], int(sys.argv[4]))
