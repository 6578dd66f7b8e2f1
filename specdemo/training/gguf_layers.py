"""A trained draft's own layers as a small GGUF file, which `zoo.embedded_draft` joins with its target's tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_layers(draft: LlamaForCausalLM, out: Path) -> None:
    """Write decoder layers (Q8_0: 8 bits and one scale per 32 weights) and norms (float32) of a Llama-like draft.

    Embedding and head are left out: they are the target's. The same weights give the same bytes.
    """
    import gguf

    config = draft.config
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    partial = out.with_name(out.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_block_count(config.num_hidden_layers)
    weights = {name: value.detach().float().numpy() for name, value in draft.state_dict().items()}
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _NAMES.items():
            value = weights[f"model.layers.{layer}.{theirs}.weight"]
            if value.ndim == 1:
                writer.add_tensor(f"blk.{layer}.{ours}.weight", value)
                continue
            if theirs in heads:
                value = interleaved(value, heads[theirs])
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(np.ascontiguousarray(value), kind)
            writer.add_tensor(f"blk.{layer}.{ours}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, out)


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection [rows, columns] in GGUF's order: rotary pairs side by side, not in halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
