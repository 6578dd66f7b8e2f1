"""The graph of a decoder as stateful OpenVINO IR, without torch, for the families in FAMILIES. It
has the inputs, state and operations of optimum-intel's exports, so that the engine and other
programs treat both alike."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from pydantic import BeforeValidator, Field

from specdemo.convert import model_files
from specdemo.convert.configuration import Configuration, named, unusable
from specdemo.convert.weights import GROUP, FileWeights
from specdemo.engine.backends.graph import last_line, named_input, named_result
from specdemo.errors import BadInput

BITS = {"int4": 4, "int8": 8, "fp16": 16}
_LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_MASKED = np.float32(-65504)


@dataclass(frozen=True, slots=True)
class Family:
    """What decoders of a family have in common."""

    name: str  # in GGUF files
    gelu: str = ""  # its approximation in the feed-forward part; "" for SiLU
    gated: bool = True  # the feed-forward part has three matrices, else two
    biases: tuple[str, ...] = ()  # matrices of a layer with a bias
    rms: bool = True  # RMSNorm, else LayerNorm with biases
    norms: Literal["before", "after", "both"] = "before"  # where a layer's two parts are normalised
    parallel: bool = False  # both parts read the same state
    head_norms: Literal["", "head", "row"] = ""  # queries and keys are normalised by
    gated_heads: bool = False  # what heads attend to is multiplied by gates of its own
    positions: bool = False  # learned, added to the embedding; nothing is rotated
    unrotated: int = 0  # one layer in so many is not rotated
    unlimited: int = 0  # if layers have a sliding window, one in so many has not
    root_scaled: bool = False  # the embedding is multiplied by the root of its width
    interleaved: bool = False  # GGUF files interleave the halves of each query and key


_ALL = (
    Family("llama", interleaved=True),  # SmolLM2, Mistral and TinyLlama too
    Family("qwen2", biases=("attn_q", "attn_k", "attn_v")),
    Family("qwen3", head_norms="head"),
    Family("gemma3", "tanh", norms="both", head_norms="head", unlimited=6, root_scaled=True),
    Family("phi3"),
    Family("smollm3", unrotated=4, interleaved=True),
    Family("granite", interleaved=True),
    Family("olmo2", norms="after", head_norms="row"),
    Family("gptneox", gelu="erf", gated=False, biases=_LAYER, rms=False, parallel=True),
    Family("gpt2", gelu="tanh", gated=False, biases=_LAYER, rms=False, positions=True),
)
FAMILIES = {family.name: family for family in _ALL}


def with_biases(family: Family, names: Collection[str]) -> Family:
    """`family`, and the biases among the tensors of a model."""
    biases = (matrix for matrix in _LAYER if f"blk.0.{matrix}.bias" in names)
    return replace(family, biases=tuple({*family.biases, *biases}))


def _same_in_all_layers(value: object) -> object:
    """One value for a list of equal ones: a GGUF file may have one for each layer."""
    if isinstance(value, list) and value and value.count(value[0]) == len(value):
        return value[0]
    return value


def sized(largest: int, *names: str, default: Any = ...) -> Any:
    return named(*names, default=default, ge=1, le=largest)


def one_in(period: int, layers: int) -> frozenset[int]:
    """The last of every `period` layers; none for 0."""
    return frozenset(range(period - 1, layers, period) if period else ())


Size = Annotated[int, BeforeValidator(_same_in_all_layers)]
Positive = Annotated[float, Field(gt=0, le=1e12)]


_ROPE_BASE = "rope_theta", "rotary_emb_base", "rope.freq_base"
_LOCAL_ROPE_BASE = "rope_local_base_freq", "rope.freq_base_swa"
_ATTENTION_SCALE = "attention_multiplier", "attention.scale"
_WINDOW = "sliding_window", "attention.sliding_window"
_PATTERN = "sliding_window_pattern", "attention.sliding_window_pattern"
_EPSILON = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
)


class Sizes(Configuration):
    """A decoder's shape, by the names of config.json and of GGUF files."""

    hidden: Size = sized(1 << 18, "hidden_size", "n_embd")
    layers: Size = sized(512, "num_hidden_layers", "n_layer", "block_count")
    attention_heads: Size = sized(4096, "num_attention_heads", "n_head", "attention.head_count")
    kv_heads: Size = sized(4096, "num_key_value_heads", "attention.head_count_kv", default=0)
    width: Size = sized(1 << 16, "head_dim", "attention.key_length", default=0)
    inner: Size = sized(1 << 20, "intermediate_size", "n_inner", "feed_forward_length", default=0)
    vocabulary: Size = sized(1 << 22, "vocab_size")
    context: Size = sized(1 << 24, "n_positions", default=0)
    rope_base: Positive = named(*_ROPE_BASE, default=10_000.0)
    local_rope_base: Positive | None = named(*_LOCAL_ROPE_BASE, default=None)
    embedding_scale: Positive = named("embedding_multiplier", "embedding_scale", default=1.0)
    residual_scale: Positive = named("residual_multiplier", "residual_scale", default=1.0)
    attention_scale: Positive | None = named(*_ATTENTION_SCALE, default=None)
    logit_scale: Positive = named("logits_scaling", "logit_scale", default=1.0)
    window: int = named(*_WINDOW, default=0, ge=0, le=1 << 24)
    pattern: Annotated[int, Field(ge=1)] | list[bool] | None = named(*_PATTERN, default=None)
    """Which layers have the window, or one in how many has not."""
    epsilon: float = named(*_EPSILON, default=0.0, gt=0, lt=1)

    def sliding(self, family: Family) -> frozenset[int]:
        """The layers with the window."""
        layers = range(self.layers if self.window else 0)
        if isinstance(self.pattern, list):
            return frozenset(compress(layers, self.pattern))
        return frozenset(layers) - one_in(self.pattern or family.unlimited, self.layers)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    layers: int
    attention_heads: int
    vocabulary: int
    inner: int  # width of the feed-forward part
    kv_heads: int  # heads of keys and values
    width: int  # of a head
    rotary: float = 1.0  # share of a head's width that is rotated
    rope_base: float = 10_000  # of the frequencies
    rope_factors: tuple[float, ...] = ()  # which divide the frequencies
    rope_scale: float = 1.0  # length of rotated values
    unrotated: frozenset[int] = frozenset()  # layers
    window: int = 0  # tokens to which layers in `sliding` attend
    sliding: frozenset[int] = frozenset()
    local_rope_base: float | None = None  # of layers in `sliding`, without factors
    embedding_scale: float = 1.0  # multiplies the embedding
    residual_scale: float = 1.0  # multiplies what a layer's part adds
    attention_scale: float | None = None  # multiplies attention scores; None: width ** -0.5
    logit_scale: float = 1.0  # divides the logits
    epsilon: float = 1e-5
    context: int = 0  # tokens, for learned positions
    tied: bool = False
    family: Family = FAMILIES["llama"]

    @classmethod
    def of(cls, sizes: Sizes, family: Family, source: Path, **further: Any) -> Self:
        """The shape of these `sizes`, with defaults as in transformers, and `further` fields.
        Raises BadInput, about `source`, for sizes that do not go together."""
        heads = sizes.attention_heads
        known = {name: value for name, value in sizes if name in cls.__dataclass_fields__}
        known |= {
            "inner": sizes.inner or 4 * sizes.hidden,
            "kv_heads": sizes.kv_heads or heads,
            "width": sizes.width or sizes.hidden // heads,
            "epsilon": sizes.epsilon or (1e-6 if family.rms else 1e-5),
            "unrotated": one_in(family.unrotated, sizes.layers),
            "sliding": sizes.sliding(family),
            "family": family,
        }
        if family.root_scaled:
            known["embedding_scale"] = sizes.hidden**0.5
        shape = cls(**known | further)
        if heads % shape.kv_heads or shape.rotated < 2:
            why = f"{heads} heads of {shape.width} values, {shape.rotated} of them rotated, and"
            raise unusable(source, f"{why} {shape.kv_heads} heads of keys do not go together.")
        return shape

    @property
    def graph(self) -> type[DecoderGraph]:
        return DecoderGraph

    @property
    def rotated(self) -> int:
        return int(self.width * self.rotary)

    def bytes(self, bits: int, output_bits: int = FileWeights.output_bits) -> int:
        """Bytes of the weight matrices, of 4 bits with scales. The embedding has at least 8 bits,
        the output matrix `output_bits`; one matrix may be both."""
        feed_forward = (3 if self.family.gated else 2) * self.inner
        attention = 2 * (self.attention_heads + self.kv_heads) * self.width
        layers = self.layers * self.hidden * (attention + feed_forward)
        table = self.vocabulary * self.hidden
        embedding, output = max(bits, 8), max(bits, output_bits)
        matrices = [(layers, bits), (table, embedding)]
        if not self.tied or output != embedding:
            matrices.append((table, output))
        return sum(n * bits // 8 + (n // GROUP * 2 if bits == 4 else 0) for n, bits in matrices)


def write(shape: Shape, bits: int, weights: FileWeights, folder: Path) -> None:
    """Write IR of `shape` with `weights` of `bits` (16, 8 or 4) into `folder`. Takes as much memory
    as the IR. Raises FetchError, BadInput for a shape that OpenVINO refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        model = shape.graph(shape, bits, weights).build()
    except RuntimeError as error:
        raise BadInput(f"No decoder has this shape: {last_line(error)}") from error
    ov.save_model(model, folder / model_files.MODEL, compress_to_fp16=False)
    if bits == 16:  # plugins keep 16-bit weights as they are if their conversion has this mark
        text = (folder / model_files.MODEL).read_text(encoding="utf-8")
        converted = r'(name="[^"]*/half" type="Convert"[^>]*>\s*<data [^>]*/>)'
        mark = '<rt_info><attribute name="decompression" version="0" /></rt_info>'
        text = re.sub(converted, rf"\1{mark}", text)
        (folder / model_files.MODEL).write_text(text, encoding="utf-8")


Rotary = tuple[ov.Node, ov.Node]
"""Cosines and sines of the positions."""


def _scaled(node: ov.Node, factor: float) -> ov.Node:
    return node if factor == 1 else ops.multiply(node, np.float32(factor))


class DecoderGraph:
    """Builds the graph of a decoder of `shape`, with `weights` stored in `bits`."""

    _text = "input_ids"  # the input with the text's batch and length

    def __init__(self, shape: Shape, bits: int, weights: FileWeights) -> None:
        self._shape, self._bits, self._weights = shape, bits, weights
        names = "input_ids", "attention_mask", "position_ids"
        self._inputs = {name: named_input(name, [-1, -1], ov.Type.i64) for name in names}
        self._inputs["beam_idx"] = named_input("beam_idx", [-1], ov.Type.i32)
        self._sinks: list[ov.Node] = []

    def build(self) -> ov.Model:
        shape, family = self._shape, self._shape.family
        sizes = shape.vocabulary, shape.hidden
        embedding = self._matrix("token_embd", *sizes, max(self._bits, 8))
        state = ops.gather(embedding, ops.convert(self._inputs["input_ids"], "i32"), 0)
        state = _scaled(state, shape.embedding_scale)
        if family.positions:
            positions = self._weights.vector("position_embd.weight", shape.context, shape.hidden)
            ids = ops.convert(self._inputs["position_ids"], "i32")
            state = ops.add(state, ops.gather(positions, ids, 0))
        masks = [self._mask(), self._mask(shape.window)]
        tables = [None, None] if family.positions else [*map(self._rotary_tables, (False, True))]
        for index in range(shape.layers):
            slides = index in shape.sliding
            rotary = None if index in shape.unrotated else tables[slides]
            state = self._layer(index, state, masks[slides], rotary)
        state = _scaled(self._norm("output_norm", state), 1 / shape.logit_scale)
        bits, output_projection = max(self._bits, self._weights.output_bits), embedding
        if not shape.tied or bits < 8:  # a tied embedding is written twice
            name = "token_embd" if shape.tied else "output"
            output_projection = self._matrix(name, *sizes, bits)
        logits = named_result("logits", ops.matmul(state, output_projection, False, True))
        return ov.Model([logits], self._sinks, list(self._inputs.values()), "decoder")

    def _layer(self, index: int, state: ov.Node, mask: ov.Node, rotary: Rotary | None) -> ov.Node:
        layer, shape = f"blk.{index}.", self._shape
        before, after = shape.family.norms != "after", shape.family.norms != "before"
        x = self._norm(f"{layer}attn_norm", state) if before else state
        x = self._attention(index, x, mask, rotary)
        x = self._norm(f"{layer}post_attention_norm", x) if after else x
        attended = _scaled(x, shape.residual_scale)
        sum_ = state if shape.family.parallel else ops.add(attended, state)
        x = self._feed_forward(layer, self._norm(f"{layer}ffn_norm", sum_) if before else sum_)
        x = self._norm(f"{layer}post_ffw_norm", x) if after else x
        narrowed = _scaled(x, shape.residual_scale)
        if shape.family.parallel:
            narrowed = ops.add(narrowed, attended)
        return ops.add(narrowed, sum_)

    def _feed_forward(self, layer: str, state: ov.Node) -> ov.Node:
        shape, gelu = self._shape, self._shape.family.gelu
        up = self._linear(f"{layer}ffn_up", state, shape.inner)
        gate = self._linear(f"{layer}ffn_gate", state, shape.inner) if shape.family.gated else up
        active = ops.gelu(gate, gelu) if gelu else ops.swish(gate)
        active = ops.multiply(active, up) if shape.family.gated else active
        return self._linear(f"{layer}ffn_down", active, shape.hidden)

    def _heads(self, name: str, state: ov.Node, heads: int, norms: str = "") -> ov.Node:
        """A matrix's product as [batch, heads, tokens, width], normalised as `Family.head_norms`
        says."""
        width = self._shape.width
        product = self._linear(name, state, heads * width)
        if norms == "row":
            product = self._norm(f"{name}_norm", product)
        split = ops.reshape(product, [0, 0, heads, width], True)
        if norms == "head":
            split = self._norm(f"{name}_norm", split)
        return ops.transpose(split, [0, 2, 1, 3])

    def _attention(
        self, index: int, state: ov.Node, mask: ov.Node, rotary: Rotary | None
    ) -> ov.Node:
        shape, width = self._shape, self._shape.width
        norms = shape.family.head_norms
        query = self._heads(f"blk.{index}.attn_q", state, shape.attention_heads, norms)
        key = self._heads(f"blk.{index}.attn_k", state, shape.kv_heads, norms)
        if rotary:
            query, key = self._rotated(query, rotary), self._rotated(key, rotary)
        value = self._heads(f"blk.{index}.attn_v", state, shape.kv_heads)
        batch = ops.gather(ops.shape_of(self._inputs[self._text]), [0], 0)
        empty = ops.concat([batch, np.array([shape.kv_heads, 0, width], np.int64)], 0)
        seen = []
        for kind, new in (("key", key), ("value", value)):
            variable = f"past_key_values.{index}.{kind}present.{index}.{kind}"
            past = ops.read_value(
                ops.broadcast(np.float32(0), empty),
                variable,
                variable_type=ov.Type.f32,
                variable_shape=ov.PartialShape([-1, shape.kv_heads, -1, width]),
            )
            joined = ops.concat([ops.gather(past, self._inputs["beam_idx"], 0), new], 2)
            self._sinks.append(ops.assign(joined, variable))
            seen.append(self._repeated(joined, batch))
        scale = None if shape.attention_scale is None else np.float32(shape.attention_scale)
        attended = ops.scaled_dot_product_attention(query, *seen, mask, scale)
        turned = ops.transpose(attended, [0, 2, 1, 3])
        rows = shape.attention_heads * width
        joined = ops.reshape(turned, [0, 0, rows], True)
        if shape.family.gated_heads:
            gates = self._linear(f"blk.{index}.attn_gate", state, rows)
            joined = ops.multiply(joined, ops.sigmoid(gates))
        return self._linear(f"blk.{index}.attn_output", joined, shape.hidden)

    def _repeated(self, keys: ov.Node, batch: ov.Node) -> ov.Node:
        """Keys or values, repeated for the queries that share them, as paged attention expects."""
        shape = self._shape
        if shape.kv_heads == shape.attention_heads:
            return keys
        length = ops.gather(ops.shape_of(keys), [2], 0)
        groups = np.array([shape.kv_heads, shape.attention_heads // shape.kv_heads], np.int64)
        target = ops.concat([batch, groups, length, np.array([shape.width], np.int64)], 0)
        repeated = ops.broadcast(ops.unsqueeze(keys, 2), target, "BIDIRECTIONAL")
        return ops.reshape(repeated, [0, shape.attention_heads, -1, shape.width], True)

    def _mask(self, window: int = 0) -> ov.Node:
        """[batch, 1, tokens, all tokens]: 0, but _MASKED for padding, for later tokens, and for
        those before the last `window`."""
        mask = self._inputs["attention_mask"]
        count = ops.gather(ops.shape_of(self._inputs[self._text]), 1, 0)
        total = ops.gather(ops.shape_of(mask), 1, 0)
        every = ops.range(np.int64(0), total, np.int64(1), "i64")
        new = ops.range(ops.subtract(total, count), total, np.int64(1), "i64")
        every, new = ops.unsqueeze(every, 0), ops.unsqueeze(new, 1)
        earlier = ops.less_equal(every, new)
        unpadded = ops.unsqueeze(ops.convert(mask, "boolean"), [1, 2])
        if not window:
            return ops.select(ops.logical_and(unpadded, earlier), np.float32(0), _MASKED)
        # Paged attention knows a window by these operations in this order, redundant ones included.
        near, true = ops.greater(every, ops.add(new, np.int64(-window))), np.array([[True]])
        seen = ops.bitwise_and(ops.bitwise_and(true, near), earlier)
        seen = ops.bitwise_and(ops.bitwise_and(true, seen), unpadded)
        selected = ops.select(ops.broadcast(seen, ops.shape_of(seen)), np.float32(0), _MASKED)
        return ops.slice(selected, [0], [np.iinfo(np.int64).max], [1], [3])

    def _rotary_tables(self, local: bool = False) -> Rotary:
        """Cosines and sines, each [batch, 1, tokens, rotated width]; `local`: of sliding layers."""
        shape, base = self._shape, self._shape.local_rope_base if local else None
        powers = np.arange(0, shape.rotated, 2, dtype=np.float32) / np.float32(shape.rotated)
        speeds = 1 / np.float32(base or shape.rope_base) ** powers
        if shape.rope_factors and not base:
            speeds /= np.array(shape.rope_factors, np.float32)
        positions = ops.convert(self._inputs["position_ids"], "f32")
        angles = ops.multiply(ops.unsqueeze(positions, [1, 3]), speeds)
        both = ops.concat([angles, angles], -1)
        return _scaled(ops.cos(both), shape.rope_scale), _scaled(ops.sin(both), shape.rope_scale)

    def _rotated(self, heads: ov.Node, rotary: Rotary) -> ov.Node:
        """Rotary embedding as the CPU plugin's fusion expects it: split along axis 3, times -1."""
        width = self._shape.width
        # An odd number of rotated dimensions is rounded up, as in transformers.
        half = (self._shape.rotated + 1) // 2
        still = None
        if 2 * half < width:
            heads, still = ops.variadic_split(heads, 3, [2 * half, width - 2 * half]).outputs()
        first, second = ops.variadic_split(heads, 3, [half, half]).outputs()
        crossed = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
        cosine, sine = rotary
        new = ops.add(ops.multiply(heads, cosine), ops.multiply(crossed, sine))
        return new if still is None else ops.concat([new, still], -1)

    def _norm(self, name: str, state: ov.Node) -> ov.Node:
        size = state.get_output_partial_shape(0)[-1].get_length()
        weight = self._weights.vector(f"{name}.weight", size)
        if self._shape.family.rms:  # written as the CPU plugin's RMS fusion expects it
            mean = ops.reduce_mean(ops.power(state, np.float32(2)), [-1], True)
            root = ops.sqrt(ops.add(mean, np.float32(self._shape.epsilon)))
            return ops.multiply(ops.multiply(state, ops.divide(np.float32(1), root)), weight)
        centred = ops.mvn(state, [-1], True, self._shape.epsilon, "inside_sqrt")
        return ops.add(ops.multiply(centred, weight), self._weights.vector(f"{name}.bias", size))

    def _linear(self, name: str, state: ov.Node, rows: int) -> ov.Node:
        columns = state.get_output_partial_shape(0)[2].get_length()
        product = ops.matmul(state, self._matrix(name, rows, columns, self._bits), False, True)
        if name.rpartition(".")[2] not in self._shape.family.biases:
            return product
        return ops.add(product, self._weights.vector(f"{name}.bias", rows))

    def _matrix(self, name: str, rows: int, columns: int, bits: int) -> ov.Output:
        return self._weights.matrix(f"{name}.weight", rows, columns, bits)
