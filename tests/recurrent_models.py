"""Small models with made-up weights, as optimum-intel exports them: the hybrids Qwen3.5 (gated
delta nets) and LFM2 (short convolutions), and models with experts. Their graphs are stored, without
the matrices: the exporter refuses the hybrids beside the versions of transformers that the other
tests need, and takes longer than a test.

`python tests/recurrent_models.py FAMILY` makes a family of tests/data/recurrent anew, with
optimum-intel 2.1.0, and hybrids with transformers 5.2.0 (`pip install --no-deps --target FOLDER
transformers==5.2.0`, PYTHONPATH=FOLDER).
"""

import gzip
import json
import math
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

STORED = Path(__file__).parent / "data" / "recurrent"
COMMON = {"vocab_size": 256, "num_key_value_heads": 2, "max_position_embeddings": 2048}
CONFIGS = {
    "qwen3_5_text": {
        **COMMON,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_attention_heads": 4,
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 40,
        "linear_conv_kernel_dim": 5,
        "tie_word_embeddings": False,
    },
    "lfm2": {
        **COMMON,
        "hidden_size": 64,
        "intermediate_size": 96,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_attention_heads": 4,
        "conv_L_cache": 3,
    },
}
"""By `model_type`. Their head widths and kernels are no powers of two."""
ATTENTION = {
    **COMMON,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "qwen3_moe": {**ATTENTION, "num_experts": 6, "moe_intermediate_size": 48},
    "gpt_oss": {
        **ATTENTION,
        "num_local_experts": 5,
        "intermediate_size": 96,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
CONFIGS_OF_ALL = CONFIGS | EXPERTS


def values(name: str, shape: tuple[int, ...], noise: float = 0.0) -> np.ndarray:
    """The parameter `name`, float32: for norms and biases, what is added to their first values.
    `noise` is the share of other values."""
    made = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    made += noise * np.random.default_rng(zlib.crc32(name.encode()) + 1).normal(size=shape)
    scale = 0.1 if len(shape) == 1 else 1.0 / math.sqrt(shape[-1])
    return (scale * made).astype(np.float32)


def torch_model(family: str):
    """The model of transformers, float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **CONFIGS_OF_ALL[family])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            added = torch.from_numpy(parameter_values(family, name, tuple(parameter.shape)))
            begun = parameter.dim() == 1 and not name.endswith(("A_log", "sinks", "router.bias"))
            parameter.copy_(added + (parameter if begun else 0))
    return model


def parameter_values(family: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """`values` of a parameter, which IR of experts has in halves or transposed."""
    if len(shape) == 3 and family == "gpt_oss":
        return values(name, (shape[0], shape[2], shape[1])).swapaxes(1, 2).copy()
    if name.endswith("gate_up_proj"):
        half = shape[0], shape[1] // 2, shape[2]
        return np.concatenate([values(f"{name}.{part}", half) for part in (0, 1)], 1)
    return values(name, shape)


def matrices(xml: ElementTree.Element) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
    """The name, shape, offset and bytes of each matrix of a parameter in IR."""
    transposed = 0
    for layer in xml.iter("layer"):
        full = layer.get("name", "")
        if full.startswith("Transpose_") and layer.get("type") == "Const":  # of gpt-oss
            part = ("gate_up", "down")[transposed % 2]
            full = f"self.model.layers.{transposed // 2}.mlp.experts.{part}_proj"
            transposed += 1
        full = re.sub(r"/prim::ListUnpack/VariadicSplit", ".gate_up_proj", full)
        named = re.match(r"(?:self|__module)\.(?:model\.)?((?:model|lm_head)\..*)", full)
        if layer.get("type") == "Const" and named:
            data = layer.find("data")
            shape = tuple(int(size) for size in data.get("shape").split(",") if size)
            name = named[1]
            if name.endswith("/aten::_convolution/Reshape"):  # of a short convolution
                kind = "conv.conv" if ".conv/" in name else "linear_attn.conv1d"
                name = f"{name.split('/')[0].rsplit('.', 1)[0]}.{kind}.weight"
                shape = shape[0], 1, shape[-1]
            if len(shape) > 1 and (name.endswith(".weight") or "_proj" in name):
                yield name, shape, int(data.get("offset")), int(data.get("size"))


def write_ir(family: str, folder: Path, noise: float = 0.0) -> Path:
    """Write the IR of a family; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    text, weights = (
        gzip.decompress((STORED / f"{family}.{kind}.gz").read_bytes()) for kind in ("xml", "bin")
    )
    filled = bytearray(weights)
    for name, shape, offset, size in matrices(ElementTree.fromstring(text)):
        made = values(name, shape, noise).tobytes()
        assert len(made) == size, name
        filled[offset : offset + size] = made
    (folder / "openvino_model.bin").write_bytes(filled)
    (folder / "openvino_model.xml").write_bytes(text)
    config = {"model_type": family, "eos_token_id": 0, **CONFIGS_OF_ALL[family]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "openvino_model.xml"


def write_int8(family: str, folder: Path, noise: float = 0.0) -> Path:
    """Write the IR of a family whose products have 8-bit weights, with a scale for each row."""
    import openvino as ov

    from specdemo.convert.weights import compressed
    from specdemo.engine.backends.graph import is_product

    model = ov.Core().read_model(write_ir(family, folder / "float32", noise))
    for product in filter(is_product, model.get_ops()):
        weights = product.input_value(1).get_node().get_tensor_view().data
        scales = (np.abs(weights).max(1, keepdims=True) / 127).astype(np.float16)
        integers = np.clip(np.rint(weights / scales) + 128, 0, 255).astype(np.uint8)
        stored = ov.Tensor(integers[:, None].copy())
        zeros = np.full((len(weights), 1, 1), 128, np.uint8)
        product.input(1).replace_source_output(compressed(stored, scales[:, None], zeros))
    shutil.copy(folder / "float32" / "config.json", folder)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return folder / "openvino_model.xml"


def store(family: str, folder: Path) -> None:
    """Export a family and store its graph."""
    from optimum.exporters.openvino import main_export

    torch_model(family).save_pretrained(folder / "checkpoint")
    options = {"task": "text-generation-with-past", "convert_tokenizer": False}
    main_export(str(folder / "checkpoint"), str(folder / "ir"), **options)
    tree = ElementTree.parse(folder / "ir" / "openvino_model.xml").getroot()
    for parent in list(tree.iter()):
        for child in [child for child in parent if child.tag == "rt_info"]:
            parent.remove(child)
    weights = bytearray((folder / "ir" / "openvino_model.bin").read_bytes())
    for name, shape, offset, size in matrices(tree):
        assert np.array_equal(
            np.frombuffer(weights[offset : offset + size], np.float32),
            values(name, shape).reshape(-1),
        ), name
        weights[offset : offset + size] = bytes(size)
    STORED.mkdir(parents=True, exist_ok=True)
    for kind, content in (("xml", ElementTree.tostring(tree)), ("bin", bytes(weights))):
        (STORED / f"{family}.{kind}.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        store(sys.argv[1], Path(temporary))
