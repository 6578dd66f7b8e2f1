"""Reads checkpoints of safetensors: the decoder's shape, and where its tensors lie, by the names of
GGUF files. The safetensors package reads bfloat16 only with torch."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from specdemo.convert.decoder import FAMILIES, Family, Shape, with_biases
from specdemo.convert.weights import Tensor
from specdemo.errors import FetchError

_NAMES = {"gpt_neox": "gptneox", "mistral": "llama"}
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
FLOATS = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")]
_TYPES = {kind.name: kind for kind in (*FLOATS, GGMLQuantizationType.I64)}
_HEADER_BYTES = 256 << 20
_BUFFERS = ("rotary_emb.inv_freq", "attention.bias", "masked_bias", "attn.bias")


def shape_of(config: dict[str, Any]) -> Shape | None:
    """The shape of the model with this config.json; None if `decoder` does not build it."""
    kind = config.get("model_type")
    family = FAMILIES.get(_NAMES.get(kind, kind))
    if family is None:
        return None
    hidden = _first(config, "hidden_size", "n_embd")
    heads = _first(config, "num_attention_heads", "n_head")
    width = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    usual = 0.25 if kind == "gpt_neox" else 1.0
    rotary = rope.get("partial_rotary_factor", config.get("rotary_pct", usual))
    base = rope.get("rope_theta") or _first(config, "rope_theta", "rotary_emb_base") or 10_000
    factors = _rope_factors(rope, base, int(width * rotary))
    family = _of_family(family, config)
    if family is None or factors is None:
        return None
    return Shape(
        hidden=hidden,
        layers=_first(config, "num_hidden_layers", "n_layer"),
        heads=heads,
        vocabulary=config["vocab_size"],
        inner=_first(config, "intermediate_size", "n_inner") or 4 * hidden,
        kv_heads=config.get("num_key_value_heads") or heads,
        width=width,
        rotary=rotary,
        rope_base=base,
        rope_factors=factors,
        epsilon=_first(config, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") or 1e-5,
        context=config.get("n_positions", 0),
        tied=config.get("tie_word_embeddings", family.positions),
        family=family,
    )


def _first(config: dict[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _of_family(family: Family, config: dict[str, Any]) -> Family | None:
    """The family with this model's own choices; None if `decoder` lacks one of them."""
    active = _first(config, "hidden_act", "activation_function")
    if family.rms:
        # Qwen's files name a window that is not used, Mistral's first one that is.
        windowed = config.get("use_sliding_window", bool(config.get("sliding_window")))
        return family if active in (None, "silu") and not windowed else None
    gelu = _GELU.get(active or "gelu")
    if gelu is None or config.get("scale_attn_by_inverse_layer_idx"):
        return None
    parallel = family.parallel and config.get("use_parallel_residual", True)
    return replace(family, gelu=gelu, parallel=parallel)


def _rope_factors(rope: dict[str, Any], base: float, rotated: int) -> tuple[float, ...] | None:
    """What the rotary frequencies are divided by, () for nothing; None for an unknown scaling."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind == "linear":
        return (rope["factor"],) * (rotated // 2)
    if kind != "llama3":
        return None
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for power in range(0, rotated, 2):
        # Turns within the original context: many stay as they are, few are slowed down.
        turns = rope["original_max_position_embeddings"] / (math.tau * base ** (power / rotated))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / (smooth + (1 - smooth) / rope["factor"]))
    return tuple(factors)


def decoder(source: Path, shape: Shape) -> tuple[Shape, dict[str, Tensor]]:
    """`shape` with the model's own biases, and the tensors in `source`. Raises FetchError."""
    family = shape.family
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.name.upper()], shape.layers)
    tensors: dict[str, Tensor] = {}
    for key, tensor in tensors_of(source).items():
        if tensor.type in FLOATS:
            tensors |= _split(names.get_name(key, (".weight", ".bias")) or key, tensor, shape)
    if shape.tied:
        tensors.pop("output.weight", None)
    required = family.biases if family.rms else ()
    return replace(shape, family=with_biases(replace(family, biases=required), tensors)), tensors


def tensors_of(source: Path) -> dict[str, Tensor]:
    """The tensors in a checkpoint's files, by the names there. Raises FetchError if one is
    damaged."""
    headers = map(_header, sorted(source.glob("*.safetensors")))
    named = (pair for header in headers for pair in header.items())
    return {key: tensor for key, tensor in named if not key.endswith(_BUFFERS)}


def _header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises FetchError if it is damaged."""
    try:
        with open(path, "rb") as file:
            end = 8 + int.from_bytes(file.read(8), "little")
            size = file.seek(0, 2)
            file.seek(8)
            table = json.loads(file.read(end - 8)) if end <= min(size, _HEADER_BYTES) else {}
        found = {}
        for key, entry in table.items():
            if (kind := entry.get("dtype")) in _TYPES:
                first, last = entry["data_offsets"]
                tensor = Tensor(path, end + first, tuple(entry["shape"]), _TYPES[kind])
                if not 0 <= first <= last <= size - end or tensor.bytes != last - first:
                    raise ValueError(f"{key} lies outside of the file")
                found[key] = tensor
        if not found:
            raise ValueError("it holds no tensors")
        return found
    except Exception as error:  # a damaged table may fail in any way
        raise FetchError(f"{path} is damaged or truncated; fetch it again.") from error


def _split(name: str, tensor: Tensor, shape: Shape) -> dict[str, Tensor]:
    """The matrices in a tensor, by name. GPT-2 has columns for rows. Queries, keys and values may
    be one matrix; in GPT-NeoX those of a head lie side by side."""
    if shape.family.positions and re.fullmatch(r"blk.*(qkv|output|up|down)\.weight", name):
        tensor = replace(tensor, shape=tensor.shape[::-1], swapped=tensor.shape[1])
    if "attn_qkv" not in name:
        return {name: tensor}
    rows = np.arange(tensor.shape[0])
    if shape.family.positions:
        parts = rows.reshape(3, -1)
    else:
        parts = rows.reshape(shape.heads, 3, -1).swapaxes(0, 1).reshape(3, -1)
    return {
        name.replace("attn_qkv", f"attn_{letter}"): tensor.rows(part)
        for letter, part in zip("qkv", parts, strict=True)
    }
