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
from pydantic import Field, TypeAdapter, model_validator

from specdemo.convert import configuration
from specdemo.convert.configuration import Configuration, ShardIndex, named, unusable
from specdemo.convert.decoder import FAMILIES, Family, Positive, Shape, Sizes, one_in, with_biases
from specdemo.convert.weights import Tensor
from specdemo.errors import FetchError

_NAMES = {"gpt_neox": "gptneox", "mistral": "llama", "gemma3_text": "gemma3"}
_ORIGINAL = "original_max_position_embeddings"
_WINDOWS = {"gemma3": 4096, "gemma3_text": 4096, "mistral": 4096, "phi3": None}
_WINDOWS |= {"qwen2": 4096, "qwen3": 4096, "smollm3": None}
"""The types of model in which transformers reads `sliding_window`, and its default."""
_WINDOW_IF_USED = "qwen2", "qwen3", "smollm3"  # with `use_sliding_window` alone
_WINDOW_EVERYWHERE = "mistral", "phi3"  # in all layers
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"vocab_size": 262_208, "query_pre_attn_scalar": 256, "tie_word_embeddings": True},
        **{"rope_theta": 1e6, "rope_local_base_freq": 1e4},
    },
    "gpt2": {"tie_word_embeddings": True},
    "gptneox": {"rotary_pct": 0.25},
    "granite": {"attention_multiplier": 1.0},
    "olmo2": {"rms_norm_eps": 1e-5},
    "phi3": {"rms_norm_eps": 1e-5, _ORIGINAL: configuration.PHI3_ORIGINAL},
    "qwen3": {"head_dim": 128},
    "smollm3": {"tie_word_embeddings": True, "rope_theta": 2e6},
}
"""What transformers takes for values that config.json lacks."""
_PARTLY_ROTATED = "gptneox", "phi3"  # in the other families transformers rotates whole heads
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
FLOATS = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")]
_TYPES = {kind.name: kind for kind in (*FLOATS, GGMLQuantizationType.I64)}
_HEADER_BYTES = 4 << 20  # 40,000 tensors, which are read in a second; large models have 2,000
_TEXT_PART = re.compile(r"(model\.)?language_model\.(model\.)?")
_IMAGE_PARTS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
_BUFFERS = (".inv_freq", ".attention.bias", ".masked_bias", ".attn.bias")

Share = Annotated[float, Field(gt=0, le=1)]


class Rope(Configuration):
    """Rotary positions of config.json."""

    kind: str = named("rope_type", "type", default="default")
    rope_theta: Positive | None = None
    partial_rotary_factor: Share | None = None

    def factors(self, shape: Shape) -> list[float]:
        """What the rotary frequencies are divided by, [] for nothing."""
        return []

    @property
    def scale(self) -> float:
        """What the rotated values are multiplied by."""
        return 1.0


class LinearRope(Rope):
    factor: Positive

    def factors(self, shape: Shape) -> list[float]:
        return [self.factor] * (shape.rotated // 2)


class Llama3Rope(LinearRope):
    low: Positive = named("low_freq_factor")
    high: Positive = named("high_freq_factor")
    original: Positive = named(_ORIGINAL)

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


class LongRope(Rope):
    """Factors for texts up to the `original` length; those for longer ones would change what the
    cache holds."""

    short: list[Positive] = named("short_factor")
    original: int = named(_ORIGINAL, gt=1)
    context: int = named("max_position_embeddings", ge=1)
    factor: Positive | None = None
    attention_factor: Positive | None = None

    def factors(self, shape: Shape) -> list[float]:
        return self.short

    @property
    def scale(self) -> float:
        growth = self.factor or self.context / self.original
        return self.attention_factor or long_scale(growth, self.original)


def long_scale(growth: float, original: int) -> float:
    """What LongRoPE multiplies rotated values by, if a context of `original` tokens has grown."""
    return math.sqrt(1 + math.log(max(growth, 1.0)) / math.log(original))


ROPES: dict[str, type[Rope]] = {"default": Rope, "linear": LinearRope, "llama3": Llama3Rope}
ROPES |= dict.fromkeys(configuration.LONGROPE, LongRope)


class CheckpointConfig(Sizes):
    """config.json of a checkpoint of a family that `decoder` builds."""

    rope: dict[str, Any] = named("rope_parameters", "rope_scaling", default={})
    rotary_pct: Share = 1.0
    activation: str = named("hidden_act", "hidden_activation", "activation_function", default="")
    tied: bool = named("tie_word_embeddings", default=False)
    no_rope_layers: list[int] = []
    no_rope_layer_interval: Annotated[int, Field(ge=1)] | None = None
    query_divisor: Positive | None = named("query_pre_attn_scalar", default=None)
    use_bidirectional_attention: bool = False
    attn_logit_softcapping: Positive | None = None
    final_logit_softcapping: Positive | None = None
    use_parallel_residual: bool = True
    use_sliding_window: bool | None = None
    layer_types: list[str] = []
    scale_attn_by_inverse_layer_idx: bool = False
    scale_attn_weights: bool = True
    quantization_config: dict[str, Any] = {}

    def sliding(self, family: Family) -> frozenset[int]:
        if not self.layer_types or not self.window:
            return super().sliding(family)
        kinds = enumerate(self.layer_types)
        return frozenset(index for index, kind in kinds if kind == "sliding_attention")


def shape_of(data: dict[str, Any], path: Path) -> Shape | None:
    """The shape of the model with the configuration `data`, which is from `path`; None if `decoder`
    does not build it. Raises BadInput for impossible values."""
    kind = data.get("model_type")
    family = FAMILIES.get(_NAMES.get(kind, kind)) if isinstance(kind, str) else None
    if family is None:
        return None
    # A model that sees images too has a part for text.
    data = configuration.GenerationLimits.of(data, path).text_config or data
    data = configuration.without_null(_with_window(str(kind), data))
    data = _DEFAULTS.get(family.name, {}) | data
    config = CheckpointConfig.of(data, path)
    rope_data = data | configuration.full_attention(config.rope)
    # Transformers prefers it to the one beside the factors.
    original = (
        data.get(_ORIGINAL) or rope_data.get(_ORIGINAL) or data.get("max_position_embeddings")
    )
    rope_data[_ORIGINAL] = original
    rope = Rope.of(rope_data, path)
    local = Rope.of(config.rope.get("sliding_attention", {}), path)
    variant = _variant(family, config)
    if variant is None or rope.kind not in ROPES or local.kind != "default":
        return None
    further: dict[str, Any] = {
        "rope_base": rope.rope_theta or config.rope_base,
        "local_rope_base": local.rope_theta or config.local_rope_base,
    }
    if family.name in _PARTLY_ROTATED:
        further["rotary"] = rope.partial_rotary_factor or config.rotary_pct
    if family.unrotated and config.no_rope_layers:  # 0 for a layer that is not rotated
        unrotated = (index for index, rotated in enumerate(config.no_rope_layers) if not rotated)
        further["unrotated"] = frozenset(unrotated)
    elif family.unrotated and config.no_rope_layer_interval:
        further["unrotated"] = one_in(config.no_rope_layer_interval, config.layers)
    if config.query_divisor:
        further["attention_scale"] = config.query_divisor**-0.5
    shape = Shape.of(config, variant, path, **further)
    rope = ROPES[rope.kind].of(rope_data, path)
    factors = rope.factors(shape)
    if factors and len(factors) != (due := len(range(0, shape.rotated, 2))):
        raise unusable(path, f"it has {len(factors)} rotary factors; it must have {due}.")
    return replace(shape, rope_factors=tuple(factors), rope_scale=rope.scale)


def _with_window(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """`data` with its sliding window as transformers reads it in this type of model."""
    # SmolLM3's mask has the window of its `layer_types` also without `use_sliding_window`.
    used = data.get("use_sliding_window") or kind == "smollm3" and data.get("layer_types")
    unread = set() if kind in _WINDOW_IF_USED else {"use_sliding_window"}
    if kind not in _WINDOWS or kind in _WINDOW_IF_USED and not used:
        unread = {"use_sliding_window", "sliding_window"}
    if kind in _WINDOW_EVERYWHERE:
        unread |= {"layer_types", "sliding_window_pattern"}
    return {"sliding_window": _WINDOWS.get(kind)} | data | dict.fromkeys(unread)


def _variant(family: Family, config: CheckpointConfig) -> Family | None:
    """The family with this model's choices; None if `decoder` lacks one of them."""
    if config.quantization_config:  # the weights are packed, each method has its own way
        return None
    if family.rms:
        # Qwen's larger models have a window from some layer on.
        known = not config.use_sliding_window or config.layer_types
        activation = _GELU.get(config.activation, config.activation)
        same = activation in ("", family.gelu or "silu")
        capped = config.attn_logit_softcapping or config.final_logit_softcapping
        other = capped or config.use_bidirectional_attention
        return family if same and known and not other else None
    gelu = _GELU.get(config.activation or "gelu")
    if gelu is None or config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        return None
    return replace(family, gelu=gelu, parallel=family.parallel and config.use_parallel_residual)


def read_decoder(source: Path, shape: Shape) -> tuple[Shape, dict[str, Tensor]]:
    """`shape` with the model's biases, and the tensors in `source`. Raises FetchError."""
    family = shape.family
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.name.upper()], shape.layers)
    tensors: dict[str, Tensor] = {}
    for key, tensor in tensors_of(source).items():
        key = _TEXT_PART.sub("model.", key)
        if tensor.type in FLOATS and not _IMAGE_PARTS.match(key):
            name = names.get_name(key, (".weight", ".bias")) or key
            try:
                tensors |= separated(name, tensor, shape)
            except (ValueError, IndexError) as error:
                raise FetchError(
                    f"{tensor.path} does not go with its configuration: {key:.80} has the shape "
                    f"{list(tensor.shape)}."
                ) from error
    if shape.tied:
        tensors.pop("output.weight", None)
    if family.name == "gemma3":  # a norm's weights are stored without the 1 that they are near
        for name in filter(re.compile(r".*norm\.weight").fullmatch, tensors):
            tensors[name] = replace(tensors[name], added=1.0)
    required = family.biases if family.rms else ()
    return replace(shape, family=with_biases(replace(family, biases=required), tensors)), tensors


def tensors_of(source: Path) -> dict[str, Tensor]:
    """The tensors in a checkpoint's files, by the names there. Raises FetchError if one is
    damaged."""
    headers = map(_header, _files(source))
    tensors = {key: tensor for header in headers for key, tensor in header.items()}
    return {key: tensor for key, tensor in tensors.items() if not key.endswith(_BUFFERS)}


def _files(source: Path) -> list[Path]:
    """The files with a checkpoint's tensors, without shards that its index does not name: another
    version of the model left these."""
    files = {path.name: path for path in sorted(source.glob("*.safetensors"))}
    index = source / "model.safetensors.index.json"
    listed = ShardIndex.of(configuration.read_json(index), index)
    shards = set(listed.weight_map.values())
    if not shards or "model.safetensors" in files:
        return list(files.values())
    if missing := shards - set(files):
        raise FetchError(f"{source} lacks {min(missing):.80}, which its index names; fetch it.")
    return [files[name] for name in files if name in shards or not name.startswith("model-")]


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


def separated(name: str, tensor: Tensor, shape: Shape) -> dict[str, Tensor]:
    """The matrices in a tensor, by name. GPT-2 has columns for rows. Queries, keys and values may
    be one matrix, in GPT-NeoX with those of a head side by side; gate and up too. Raises ValueError
    if it has not the rows of all."""
    if shape.family.positions and re.fullmatch(r"blk.*(qkv|output|up|down)\.weight", name):
        tensor = replace(tensor, shape=tensor.shape[::-1], swapped=tensor.shape[1])
    if "attn_qkv" in name:
        names = [name.replace("qkv", letter) for letter in "qkv"]
        counts = [heads * shape.width for heads in (shape.attention_heads, *[shape.kv_heads] * 2)]
    elif "ffn_up" in name and tensor.shape[0] == 2 * shape.inner and shape.family.gated:
        names, counts = [name.replace("up", "gate"), name], [shape.inner] * 2
    else:
        return {name: tensor}
    if tensor.shape[0] != sum(counts):
        raise ValueError("it has not the rows of all heads")
    rows = np.arange(sum(counts))
    if not (shape.family.rms or shape.family.positions):
        rows = rows.reshape(shape.attention_heads, 3, -1).swapaxes(0, 1).reshape(-1)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return {name: tensor.rows(part) for name, part in zip(names, parts, strict=True)}
