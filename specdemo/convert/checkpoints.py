"""Reads checkpoints of safetensors: the decoder's shape, and where its tensors lie, by the names of
GGUF files. The safetensors package reads bfloat16 only with torch."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from pydantic import AliasChoices, Field, TypeAdapter, model_validator

from specdemo.convert.decoder import FAMILIES, Family, Positive, Shape, Sizes, with_biases
from specdemo.convert.ir import Configuration
from specdemo.convert.weights import Tensor
from specdemo.errors import FetchError

_NAMES = {"gpt_neox": "gptneox", "mistral": "llama"}
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
FLOATS = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")]
_TYPES = {kind.name: kind for kind in (*FLOATS, GGMLQuantizationType.I64)}
_HEADER_BYTES = 4 << 20  # 40,000 tensors, which are read in a second; large models have 2,000
_BUFFERS = (".inv_freq", ".attention.bias", ".masked_bias", ".attn.bias")


Share = Annotated[float, Field(gt=0, le=1)]


class Rope(Configuration):
    """Rotary positions of config.json."""

    kind: str = Field("default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: Positive | None = None
    partial_rotary_factor: Share | None = None

    def factors(self, shape: Shape) -> list[float]:
        """What the rotary frequencies are divided by, [] for nothing."""
        return []


class LinearRope(Rope):
    factor: Positive

    def factors(self, shape: Shape) -> list[float]:
        return [self.factor] * (shape.rotated // 2)


class Llama3Rope(LinearRope):
    low: Positive = Field(validation_alias="low_freq_factor")
    high: Positive = Field(validation_alias="high_freq_factor")
    original: Positive = Field(validation_alias="original_max_position_embeddings")

    @model_validator(mode="after")
    def _frequencies_are_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low_freq_factor is not below high_freq_factor")
        return self

    def factors(self, shape: Shape) -> list[float]:
        factors = []
        for power in range(0, shape.rotated, 2):
            # Turns within the original context: many stay as they are, few are slowed down.
            turns = self.original / (math.tau * shape.rope_base ** (power / shape.rotated))
            smooth = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
            factors.append(1 / (smooth + (1 - smooth) / self.factor))
        return factors


ROPES: dict[str, type[Rope]] = {"default": Rope, "linear": LinearRope, "llama3": Llama3Rope}


class CheckpointConfig(Sizes):
    """config.json of a checkpoint of a family that `decoder` builds."""

    rope: dict[str, Any] = Field(
        {}, validation_alias=AliasChoices("rope_parameters", "rope_scaling")
    )
    rotary_pct: Share | None = None
    activation: str | None = Field(
        None, validation_alias=AliasChoices("hidden_act", "activation_function")
    )
    tie_word_embeddings: bool | None = None
    no_rope_layers: list[int] = []
    use_parallel_residual: bool = True
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    scale_attn_by_inverse_layer_idx: bool = False


def shape_of(data: dict[str, Any], path: Path) -> Shape | None:
    """The shape of the model with the configuration `data`, which is from `path`; None if `decoder`
    does not build it. Raises BadInput for impossible values."""
    kind = data.get("model_type")
    family = FAMILIES.get(_NAMES.get(kind, kind)) if isinstance(kind, str) else None
    if family is None:
        return None
    config = CheckpointConfig.of(data, path)
    rope = Rope.of(config.rope, path)
    default_share = 0.25 if kind == "gpt_neox" else 1.0
    rotary = rope.partial_rotary_factor or config.rotary_pct or default_share
    base = rope.rope_theta or config.rope_base
    variant = _variant(family, config)
    if variant is None or rope.kind not in ROPES:
        return None
    tied = family.positions if config.tie_word_embeddings is None else config.tie_word_embeddings
    shape = Shape.of(config, variant, path, rotary=rotary, rope_base=base, tied=tied)
    if config.no_rope_layers:  # 0 for a layer that is not rotated
        unrotated = (index for index, rope in enumerate(config.no_rope_layers) if not rope)
        shape = replace(shape, unrotated=frozenset(unrotated))
    factors = ROPES[rope.kind].of(config.rope, path).factors(shape)
    return replace(shape, rope_factors=tuple(factors))


def _variant(family: Family, config: CheckpointConfig) -> Family | None:
    """The family with this model's choices; None if `decoder` lacks one of them."""
    if family.rms:
        # Qwen's files name a window that is not used, Mistral's first one that is.
        windowed = config.use_sliding_window
        windowed = bool(config.sliding_window) if windowed is None else windowed
        return family if config.activation in (None, "silu") and not windowed else None
    gelu = _GELU.get(config.activation or "gelu")
    if gelu is None or config.scale_attn_by_inverse_layer_idx:
        return None
    return replace(family, gelu=gelu, parallel=family.parallel and config.use_parallel_residual)


def decoder(source: Path, shape: Shape) -> tuple[Shape, dict[str, Tensor]]:
    """`shape` with the model's biases, and the tensors in `source`. Raises FetchError."""
    family = shape.family
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.name.upper()], shape.layers)
    tensors: dict[str, Tensor] = {}
    for key, tensor in tensors_of(source).items():
        if tensor.type in FLOATS:
            name = names.get_name(key, (".weight", ".bias")) or key
            try:
                tensors |= _split(name, tensor, shape)
            except (ValueError, IndexError) as error:
                raise FetchError(
                    f"{tensor.path} does not go with its configuration: {key:.80} has the shape "
                    f"{list(tensor.shape)}."
                ) from error
    if shape.tied:
        tensors.pop("output.weight", None)
    required = family.biases if family.rms else ()
    return replace(shape, family=with_biases(replace(family, biases=required), tensors)), tensors


def tensors_of(source: Path) -> dict[str, Tensor]:
    """The tensors in a checkpoint's files, by the names there. Raises FetchError if one is
    damaged."""
    headers = map(_header, sorted(source.glob("*.safetensors")))
    tensors = {key: tensor for header in headers for key, tensor in header.items()}
    return {key: tensor for key, tensor in tensors.items() if not key.endswith(_BUFFERS)}


class _Entry(NamedTuple):
    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=1, lt=1 << 40)]], Field(max_length=8)]
    data_offsets: tuple[int, int]


_TABLE = TypeAdapter(dict[str, dict[str, Any]])
_ENTRY = TypeAdapter(_Entry)


def _header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises FetchError if it is damaged."""
    try:
        with open(path, "rb") as file:
            end = 8 + int.from_bytes(file.read(8), "little")
            size = file.seek(0, 2)
            file.seek(8)
            data = file.read(end - 8) if end <= min(size, _HEADER_BYTES) else b"{}"
        tensors = {}
        for key, entry in _TABLE.validate_json(data).items():
            if str(entry.get("dtype")) in _TYPES:
                kind, shape, (first, last) = _ENTRY.validate_python(entry)
                tensor = Tensor(path, end + first, tuple(shape), _TYPES[kind])
                if not 0 <= first <= last <= size - end or tensor.bytes != last - first:
                    raise ValueError(f"{key} lies outside of the file")
                tensors[key] = tensor
        if not tensors:
            raise ValueError("it holds no tensors")
        return tensors
    except (OSError, ValueError) as error:
        raise FetchError(f"{path} is damaged or truncated; fetch it again.") from error


def _split(name: str, tensor: Tensor, shape: Shape) -> dict[str, Tensor]:
    """The matrices in a tensor, by name. GPT-2 has columns for rows. Queries, keys and values may
    be one matrix; in GPT-NeoX those of a head lie side by side."""
    if shape.family.positions and re.fullmatch(r"blk.*(qkv|output|up|down)\.weight", name):
        tensor = replace(tensor, shape=tensor.shape[::-1], swapped=tensor.shape[1])
    if "attn_qkv" not in name:
        return {name: tensor}
    if tensor.shape[0] != 3 * shape.attention_heads * shape.width:
        raise ValueError("it has not the rows of all heads")
    rows = np.arange(tensor.shape[0])
    if shape.family.positions:
        parts = rows.reshape(3, -1)
    else:
        parts = rows.reshape(shape.attention_heads, 3, -1).swapaxes(0, 1).reshape(3, -1)
    return {
        name.replace("attn_qkv", f"attn_{letter}"): tensor.rows(part)
        for letter, part in zip("qkv", parts, strict=True)
    }
