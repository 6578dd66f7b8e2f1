"""The decoder in a GGUF file: its shape, and its tensors with rows in the graph's order."""

import re
from dataclasses import replace

import numpy as np

from specdemo.convert.checkpoints import long_scale, separated
from specdemo.convert.configuration import named
from specdemo.convert.decoder import FAMILIES, Positive, Shape, Size, Sizes, sized, with_biases
from specdemo.convert.gguf_file import SHORT_FACTORS, Gguf
from specdemo.convert.weights import Tensor
from specdemo.errors import BadInput

READABLE = ("llama", "qwen2", "qwen3", "gemma3", "phi3", "smollm3", "granite", "olmo2")


class GgufSizes(Sizes):
    """The metadata of a GGUF file about its architecture, without the architecture's name."""

    scaling: str = named("rope.scaling.type", default="linear")  # as llama.cpp has it
    factor: Positive = named("rope.scaling.factor", "rope.scale_linear", default=1.0)
    rotated: Size = sized(1 << 16, "rope.dimension_count", default=0)
    attention_factor: Positive | None = named("rope.scaling.attn_factor", default=None)


_DEFAULTS = {"gemma3": {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}}
"""What llama.cpp takes for values that a file lacks."""


def read_decoder(file: Gguf) -> tuple[Shape, dict[str, Tensor]]:
    """The shape of a file's decoder, and its tensors with rows in the graph's order. Raises
    BadInput for an architecture or a feature that `decoder` does not have, and for impossible
    values."""
    kind, name, tensors = file.architecture, file.path.name, dict(file.tensors)
    if (content := file.fields.get("general.type", "model")) != "model":
        what, advice = f"of the type {content!r:.40}", "name the model's own file"
        if content == "adapter":
            what, advice = "an adapter (LoRA)", "merge it into its model first"
        raise BadInput(f"{name} is {what}, no model; {advice}.")
    experts = file.fields.get(f"{kind}.expert_count")
    if kind not in READABLE or experts:
        raise BadInput(
            f"{name} holds a model of the architecture {kind!r:.40}"
            f"{' with experts' if experts else ''}; GGUF files of {', '.join(READABLE)} can be "
            "run, others by `--model` with a folder that optimum-intel exported from a checkpoint."
        )
    sizes, shape = _shape(file)
    tensors.pop("rope_factors_long.weight", None)  # for longer texts than `_configuration` allows
    stored = tensors.pop(SHORT_FACTORS, None) or tensors.pop("rope_freqs.weight", None)
    shape = _with_rope(file, sizes, shape, stored)
    matrices: dict[str, Tensor] = {}
    try:
        for key, tensor in tensors.items():
            matrices |= separated(key, tensor, shape)
        if shape.family.interleaved:
            matrices = {key: _unpermuted(key, matrices[key], shape) for key in matrices}
    except (ValueError, IndexError) as error:
        raise BadInput(f"{name} is damaged: {error}.") from error
    return shape, matrices


def _shape(file: Gguf) -> tuple[GgufSizes, Shape]:
    tensors, family = file.tensors, FAMILIES[file.architecture]
    if (embedding := tensors.get("token_embd.weight")) is None:
        raise BadInput(f"{file.path.name} is damaged: it has no embedding.")
    metadata = _DEFAULTS.get(family.name, {}) | file.section(f"{file.architecture}.")
    metadata |= {"vocab_size": embedding.shape[0], "hidden_size": embedding.shape[-1]}
    sizes = GgufSizes.of(metadata, file.path)
    tied = "output.weight" not in tensors
    shape = Shape.of(sizes, with_biases(family, tensors), file.path, tied=tied)
    shape = replace(shape, rotary=(sizes.rotated or shape.width) / shape.width)
    if shape.width % 2 or shape.rotated % 2 or shape.rotary > 1:
        raise BadInput(f"{file.path.name} is damaged: it rotates a part of its heads' values.")
    if family.name == "gemma3":  # the 27B model alone does not divide by the root of a head's width
        width = shape.hidden // shape.attention_heads if shape.layers == 62 else shape.width
        shape = replace(shape, attention_scale=width**-0.5)
    return sizes, shape


def _with_rope(file: Gguf, sizes: GgufSizes, shape: Shape, stored: Tensor | None) -> Shape:
    """`shape` with its rotary factors, those that are `stored` among them, and what rotated values
    are multiplied by. Raises BadInput for scaling that is not supported, and for a model of
    LongRoPE without its factors, or without the length up to which the short ones are right."""
    name, count, short = file.path.name, shape.rotated // 2, SHORT_FACTORS in file.tensors
    partial = shape.family.interleaved and shape.rotary < 1
    scaled = sizes.scaling not in ("none", "linear", "longrope") or partial
    if scaled or stored and stored.shape != (count,):
        raise BadInput(f"{name} scales its positions ({sizes.scaling!r:.40}): not supported.")
    factors = stored.read(0, count).ravel().astype(float) if stored else np.ones(count)
    if sizes.scaling == "linear":
        factors *= sizes.factor
    if factors.min() <= 0:
        raise BadInput(f"{name} is damaged: its positions are scaled by no number.")
    context, original = file.contexts
    lacking = ""
    if short:
        lacking = "" if original > 1 else "rope.scaling.original_context_length"
    elif sizes.scaling == "longrope" or file.architecture == "phi3" and context > original:
        lacking = SHORT_FACTORS
    if lacking:
        raise BadInput(
            f"{name} lacks {lacking}, which its context of {context:,} tokens needs; choose a file "
            "that a current llama.cpp has converted."
        )
    scale = sizes.attention_factor or (long_scale(context / original, original) if short else 1.0)
    changed = tuple(factors.tolist()) if (factors != 1).any() else ()
    return replace(shape, rope_factors=changed, rope_scale=scale)


def _unpermuted(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """The tensor `name`, with the interleaved halves of each query and key one after the other."""
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return tensor
    rows = (shape.attention_heads if match[1] == "q" else shape.kv_heads) * shape.width
    if tensor.shape[0] != rows:
        raise ValueError(f"{name} has {tensor.shape[0]} rows")
    pairs = np.arange(rows).reshape(-1, shape.width // 2, 2)
    return tensor.rows(pairs.swapaxes(1, 2).reshape(-1))
