"""Converts a GGUF file to OpenVINO IR with openvino_genai, and its tokenizer to tokenizer.json.
`export` runs it in a child process: `python -m specdemo.models.convert GGUF OUT`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
from gguf import GGUFReader, TokenType
from openvino import opset13 as ops
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits

from specdemo.models import ir
from specdemo.models.neox import compressed

_AT_ONCE = 32  # matrices unpacked at once: 1 is slow (compiling), all together take much memory


def from_gguf(gguf: Path, out: Path) -> None:
    """Write IR of `gguf` with int8 weights into the new folder `out`."""
    out.mkdir(parents=True)
    source, rewritten = out / "model.gguf", out / "rewritten.xml"  # GenAI writes IR beside `source`
    shutil.copyfile(gguf, source)
    openvino_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
    source.unlink()
    # read_model maps the weights from the IR's file, so the new IR is written to another file.
    model = ov.Core().read_model(out / ir.MODEL)
    to_int8_rows(model)
    ov.save_model(model, rewritten, compress_to_fp16=False)
    for name in (ir.MODEL, ir.WEIGHTS):
        rewritten.with_suffix(Path(name).suffix).replace(out / name)


def write_tokenizer(gguf: Path, path: Path) -> None:
    """Write the byte-level BPE tokenizer of a GGUF file of SmolLM's kind as tokenizer.json."""
    file = GGUFReader(gguf)
    tokens, kinds, merges = (
        file.get_field(f"tokenizer.ggml.{name}").contents()
        for name in ("tokens", "token_type", "merges")
    )
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    bytes_ = ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([Digits(individual_digits=True), bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    special = zip(tokens, kinds, strict=True)
    control = [token for token, kind in special if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer.save(str(path))


def to_int8_rows(model: ov.Model) -> None:
    """Store every compressed matrix in place as int8 [rows, columns] with a float16 scale per row.
    Processors without int8 dot products unpack this format fastest."""
    matrices = [
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Convert" and node.get_input_element_type(0) == ov.Type.f16
        if node.get_output_element_type(0) == ov.Type.f32
    ]
    for begin in range(0, len(matrices), _AT_ONCE):
        nodes = matrices[begin : begin + _AT_ONCE]
        expressions = ov.Model([ops.result(node.output(0)) for node in nodes], [], "weights")
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        values = ov.Core().compile_model(expressions, "CPU", precision)()
        for index, node in enumerate(nodes):
            weights = values[index]
            scale = np.abs(weights).max(axis=1, keepdims=True).astype(np.float16) / np.float16(127)
            scale[scale == 0] = 1
            rounded = np.rint(weights / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
            replacement = compressed(ov.Tensor(rounded[:, None]), scale[:, None])
            for target in list(node.output(0).get_target_inputs()):
                if target.get_node().get_type_name() != "Result":
                    target.replace_source_output(replacement)
    model.validate_nodes_and_infer_types()


if __name__ == "__main__":
    from_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
    write_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]) / "tokenizer.json")
