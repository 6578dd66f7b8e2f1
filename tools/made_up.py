"""Made-up weights: models in the shapes of real ones, which cost the same time and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov

from specdemo.convert.decoder import Shape, write
from specdemo.convert.weights import FileWeights, compressed, weight_group

SHIFT = 4096  # bytes of noise between the starts of two matrices
STEP = 2.7e-4  # scale of 8-bit weights: standard deviation 0.02, as in a new model


def write_made_up(shape: Shape, bits: int, folder: Path) -> None:
    """Write IR of `shape` with made-up weights of `bits` (8 or 4) into `folder`."""
    largest = shape.hidden * max(shape.vocabulary, shape.inner * bits // 8)
    made_up = MadeUp(7 * shape.layers + 2, largest)
    write(shape, bits, cast(FileWeights, made_up), folder)


class MadeUp:
    """Random weights in the format of the Hub's IR (unsigned integers with a zero point). Every
    matrix is a slice of the same noise, with its own start. So all take the memory of one, and no
    two are equal: OpenVINO would store equal ones once. `largest`: bytes of the largest matrix."""

    output_bits = 8

    def __init__(self, matrices: int, largest: int) -> None:
        self._random = np.random.default_rng(0)
        self._noise = self._random.integers(0, 256, largest + matrices * SHIFT, np.uint8)
        self._used = 0

    def vector(self, _name: str, *shape: int) -> np.ndarray:
        return self._random.normal(1, 0.02, shape).astype(np.float32)

    def matrix(self, _name: str, rows: int, columns: int, bits: int) -> ov.Output:
        data = self._noise[self._used : self._used + rows * columns * bits // 8]
        self._used += SHIFT
        group = weight_group(columns) if bits == 4 else columns
        kind, zero, step = (ov.Type.u8, 128, STEP) if bits == 8 else (ov.Type.u4, 8, 16 * STEP)
        integers = ov.Tensor(data, ov.Shape([rows, columns // group, group]), kind)
        scales = np.full((rows, columns // group, 1), step, np.float16)
        return compressed(integers, scales, np.full(scales.shape, zero, np.uint8))


def write_made_up_head(
    folder: Path,
    *,
    hidden: int,
    vocabulary: int,
    rows: int,
    heads: tuple[int, int] = (4, 2),
    width: int = 32,
    inner: int = 256,
    target_hidden: int | None = None,
    embedding: bool = True,
    prefix: str = "midlayer",
    norms: bool = False,
    biases: bool = False,
    seed: int = 0,
    **config: object,
) -> None:
    """Write a checkpoint of an EAGLE-3 head with made-up weights, as they are published: `rows`
    logits, `heads` of queries and of keys with `width`, an `embedding` or none, the layer's tensors
    named with `prefix`; `norms` of queries and keys; `biases`. `config` goes into config.json."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    fields: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    fields |= {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1}
    fields |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": width}
    fields |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
    fields |= {"max_position_embeddings": 2048, "vocab_size": vocabulary, "draft_vocab_size": rows}
    fields |= {"target_hidden_size": target_hidden} if target_hidden else {}
    fields |= {"attention_bias": biases, "mlp_bias": biases} | config
    states = (target_hidden or hidden) * len(
        fields.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0)
    )
    query, key = (count * width for count in heads)
    shapes = {
        "fc": (hidden, states),
        f"{prefix}.self_attn.q_proj": (query, 2 * hidden),
        f"{prefix}.self_attn.k_proj": (key, 2 * hidden),
        f"{prefix}.self_attn.v_proj": (key, 2 * hidden),
        f"{prefix}.self_attn.o_proj": (hidden, query),
        f"{prefix}.mlp.gate_proj": (inner, hidden),
        f"{prefix}.mlp.up_proj": (inner, hidden),
        f"{prefix}.mlp.down_proj": (hidden, inner),
        "lm_head": (rows, hidden),
    }
    tensors: dict[str, np.ndarray] = {
        f"{name}.weight": rng.normal(0, 1.5 / shape[1] ** 0.5, shape).astype(np.float16)
        for name, shape in shapes.items()
    }
    if embedding:
        tensors["embed_tokens.weight"] = rng.normal(size=(vocabulary, hidden)).astype(np.float16)
    sizes = {"norm": hidden}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        sizes[f"{prefix}.{name}"] = hidden
    if norms:
        sizes |= {f"{prefix}.self_attn.{name}_norm": width for name in "qk"}
    if fields.get("norm_before_fc"):
        sizes["input_norm"] = states
    if fields.get("fc_norm"):
        sizes |= {f"fc_norm.{tap}": target_hidden or hidden for tap in range(3)}
    for name, size in sizes.items():
        tensors[f"{name}.weight"] = rng.normal(1, 0.2, size).astype(np.float16)
    if biases:
        for name, shape in shapes.items():
            if name.startswith(prefix):
                tensors[f"{name}.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float16)
    if rows < vocabulary:
        tokens = np.sort(rng.choice(vocabulary, rows, replace=False))
        tensors["d2t"] = tokens - np.arange(rows)
        tensors["t2d"] = np.isin(np.arange(vocabulary), tokens)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
