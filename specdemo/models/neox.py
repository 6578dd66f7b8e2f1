"""Writes IR of GPT-NeoX decoders such as Dolly and Pythia, from a checkpoint or made-up weights.

The graph has the inputs, state and operations of optimum-intel's exports, so that the engine and
other programs treat both alike. Needs neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.engine.graph import raw_bytes
from specdemo.errors import FetchError
from specdemo.models import ir
from specdemo.models.progress import Meter, Report

BITS = {"int4": 4, "int8": 8, "fp16": 16}
GROUP = 128  # weights that share a scale, for 4 bits
_EMBEDDING = "gpt_neox.embed_in.weight"
_HEAD = "embed_out.weight"
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
_MASKED = np.float32(-65504)
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_SHIFT = 4096  # bytes of noise between the starts of two made-up matrices
_STEP = 2.7e-4  # scale of made-up 8-bit weights: standard deviation 0.02, as in a new model


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a GPT-NeoX decoder. `inner`: width of the feed-forward part, 0 for four times
    `hidden`. `rotary`: share of each head's width that is rotated. `gelu`: its approximation.
    `biased`: attention has biases. `llama`: a Llama instead, for made-up weights only: RMSNorm,
    gated feed-forward part, no biases, separate matrices for query, key and value."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int
    inner: int = 0
    rotary: float = 0.25
    rotary_base: float = 10_000
    epsilon: float = 1e-5
    gelu: str = "erf"
    parallel: bool = True
    tied: bool = False
    biased: bool = True
    llama: bool = False

    @property
    def widened(self) -> int:
        return self.inner or 4 * self.hidden

    def bytes(self, bits: int) -> int:
        """Bytes of the weight matrices. 4 bits: with scales; embedding and output matrix have 8."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        widened = (3 if self.llama else 2) * self.widened
        weights = self.layers * self.hidden * (4 * self.hidden + widened)
        if bits == 4:
            return embeddings + weights // 2 + weights // GROUP * 2
        return (embeddings + weights) * bits // 8


def shape_of(config: dict[str, Any]) -> Shape | None:
    """The shape of the model with this config.json; None if `convert` does not support it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    gelu = _GELU.get(config.get("hidden_act", "gelu"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if config.get("model_type") != "gpt_neox" or gelu is None or kind != "default":
        return None
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        vocabulary=config["vocab_size"],
        inner=config["intermediate_size"],
        rotary=rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25)),
        rotary_base=rope.get("rope_theta", config.get("rotary_emb_base", 10_000)),
        epsilon=config.get("layer_norm_eps", 1e-5),
        gelu=gelu,
        parallel=config.get("use_parallel_residual", True),
        tied=config.get("tie_word_embeddings", False),
        biased=config.get("attention_bias", True),
    )


class Checkpoint:
    """The weights of the safetensors files in `source`, memory-mapped; bfloat16 as uint16, because
    the safetensors library reads it only with torch. `group`: 4-bit weights that share a scale, -1
    for a whole row. Raises FetchError for damaged files."""

    def __init__(self, source: Path, group: int, report: Report, name: str) -> None:
        self._tensors: dict[str, np.ndarray] = {}
        self._group = group
        for path in sorted(source.glob("*.safetensors")):
            try:
                data = np.memmap(path, np.uint8, "r")
                begin = 8 + int(data[:8].view(np.uint64)[0])
                for key, one in json.loads(data[8:begin].tobytes()).items():
                    if kind := _TYPES.get(one.get("dtype")):
                        first, end = one["data_offsets"]
                        stored = data[begin + first : begin + end]
                        self._tensors[key] = stored.view(kind).reshape(one["shape"])
            except Exception as error:  # a damaged table may fail in any way
                raise FetchError(f"{path} is damaged or truncated; fetch it again.") from error
        total = sum(one.nbytes for one in self._tensors.values())
        self._meter = Meter(report, f"Converting {name} to OpenVINO IR", total)

    def vector(self, name: str, *shape: int) -> np.ndarray:
        """The tensor, float32, of this shape. Raises FetchError if it has another or is missing."""
        stored = self._tensors.get(name)
        if stored is None or stored.shape != shape:
            found = f"it is {list(stored.shape)}" if stored is not None else "there is none"
            raise FetchError(
                f"The checkpoint does not go with its config.json: {name} should be {list(shape)}, "
                f"and {found}."
            )
        self._meter.update(stored.nbytes)
        if stored.dtype == np.uint16:  # bfloat16: the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def matrix(self, name: str, rows: int, columns: int, bits: int) -> ov.Output:
        """The tensor as an expression, float32 [rows, columns], with weights stored in `bits`."""
        weights = self.vector(name, rows, columns)
        if bits == 16:
            half = ops.constant(weights.astype(np.float16))
            return ops.convert(half, "f32", name=f"{name}/half").output(0)
        group = self._group if bits == 4 and self._group > 0 else columns
        packed, scales = quantized(weights.reshape(rows, -1, group), bits)
        kind = ov.Type.i8 if bits == 8 else ov.Type.i4
        integers = ov.Tensor(kind, ov.Shape([rows, columns // group, group]))
        raw_bytes(integers)[:] = packed
        return compressed(integers, scales)


class MadeUp:
    """Random weights in the format of the Hub's IR (unsigned integers with a zero point). Every
    matrix is a slice of the same noise, with its own start. So all take the memory of one, and no
    two are equal: OpenVINO would store equal ones once."""

    def __init__(self, shape: Shape, bits: int) -> None:
        largest = shape.hidden * max(shape.vocabulary, shape.widened * bits // 8)
        size = largest + (7 * shape.layers + 2) * _SHIFT
        self._random = np.random.default_rng(0)
        self._noise = self._random.integers(0, 256, size, np.uint8)
        self._used = 0

    def vector(self, _name: str, size: int) -> np.ndarray:
        return self._random.normal(1, 0.02, size).astype(np.float32)

    def matrix(self, _name: str, rows: int, columns: int, bits: int) -> ov.Output:
        data = self._noise[self._used : self._used + rows * columns * bits // 8]
        self._used += _SHIFT
        group = GROUP if bits == 4 and columns % GROUP == 0 else columns
        kind, zero, step = (ov.Type.u8, 128, _STEP) if bits == 8 else (ov.Type.u4, 8, 16 * _STEP)
        integers = ov.Tensor(data, ov.Shape([rows, columns // group, group]), kind)
        return compressed(integers, np.full((rows, columns // group, 1), step, np.float16), zero)


def compressed(integers: ov.Tensor, scales: np.ndarray, zero: int = 0) -> ov.Output:
    """A float32 matrix [rows, columns] from integers [rows, groups, group] with zero point `zero`
    and a float16 scale per group; a single group is a whole row. Does not copy the integers."""
    rows, groups, group = integers.shape
    if groups == 1:
        scales = scales[:, 0]
        integers.shape = ov.Shape([rows, group])
    values = ops.convert(ov.op.Constant(integers, shared_memory=True), "f16")
    if zero:
        zeros = ops.constant(np.full(scales.shape, zero, np.uint8))
        values = ops.subtract(values, ops.convert(zeros, "f16"))
    weights = ops.multiply(values, ops.constant(scales))
    if groups > 1:
        weights = ops.reshape(weights, [rows, groups * group], False)
    return ops.convert(weights, "f32").output(0)


def quantized(weights: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers of `bits` (flat uint8, two 4-bit ones per byte) and scales (float16 [rows, groups,
    1]) of float32 weights [rows, groups, group], symmetric around 0. As in nncf, the weight of
    largest magnitude in a group becomes the most negative integer."""
    limit = 2 ** (bits - 1)
    lowest, highest = weights.min(-1, keepdims=True), weights.max(-1, keepdims=True)
    scales = np.where(np.abs(lowest) >= highest, np.abs(lowest), -highest) / limit
    smallest = np.finfo(np.float32).eps
    scales = np.where(np.abs(scales) < smallest, smallest, scales)
    integers = np.rint(weights / scales).clip(-limit, limit - 1).astype(np.int8)
    packed = integers.reshape(-1).view(np.uint8)
    if bits == 4:
        packed = (packed[::2] & 15) | (packed[1::2] << 4)
    return packed, scales.astype(np.float16)


def write_made_up(shape: Shape, bits: int, folder: Path) -> None:
    """Write IR of `shape` with made-up weights of `bits` (8 or 4) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = MadeUp(shape, bits)  # owns the memory of the model's weights
    ov.save_model(_Decoder(shape, bits, weights).build(), folder / ir.MODEL, compress_to_fp16=False)


def convert(
    source: Path, shape: Shape, out: Path, bits: int, group: int, report: Report, name: str
) -> None:
    """Write IR of the checkpoint in `source` into the new folder `out`, with weights of `bits` (16,
    8 or 4). `group` as in Checkpoint. Takes as much memory as the IR. Raises FetchError."""
    out.mkdir(parents=True)
    model = _Decoder(shape, bits, Checkpoint(source, group, report, name)).build()
    ov.save_model(model, out / ir.MODEL, compress_to_fp16=False)
    if bits == 16:  # plugins keep 16-bit weights as they are if their conversion has this mark
        text = (out / ir.MODEL).read_text(encoding="utf-8")
        converted = r'(name="[^"]*/half" type="Convert"[^>]*>\s*<data [^>]*/>)'
        mark = '<rt_info><attribute name="decompression" version="0" /></rt_info>'
        text = re.sub(converted, rf"\1{mark}", text)
        (out / ir.MODEL).write_text(text, encoding="utf-8")


class _Decoder:
    """Builds a stateful decoder of `shape`."""

    def __init__(self, shape: Shape, bits: int, weights: Checkpoint | MadeUp) -> None:
        self._shape, self._bits, self._weights = shape, bits, weights
        self._width = shape.hidden // shape.heads
        self._inputs = {}
        for name in ("input_ids", "attention_mask", "position_ids", "beam_idx"):
            rank, kind = (1, ov.Type.i32) if name == "beam_idx" else (2, ov.Type.i64)
            self._inputs[name] = ops.parameter([-1] * rank, kind, name=name)
            self._inputs[name].output(0).get_tensor().set_names({name})
        self._sinks: list[ov.Node] = []

    def build(self) -> ov.Model:
        shape = self._shape
        parallel = shape.parallel and not shape.llama
        mask, rotary = self._mask(), self._rotary_tables()
        embedding = self._matrix(_EMBEDDING, shape.vocabulary, shape.hidden)
        state = ops.gather(embedding, ops.convert(self._inputs["input_ids"], "i32"), 0)
        for at in range(shape.layers):
            layer = f"gpt_neox.layers.{at}."
            normalised = self._normalised(f"{layer}input_layernorm", state)
            attended = self._attention(at, f"{layer}attention.", normalised, mask, rotary)
            before = state if parallel else ops.add(attended, state)
            normalised = self._normalised(f"{layer}post_attention_layernorm", before)
            narrowed = self._feed_forward(f"{layer}mlp.", normalised)
            if parallel:
                narrowed = ops.add(narrowed, attended)
            state = ops.add(narrowed, before)
        state = self._normalised("gpt_neox.final_layer_norm", state)
        head = embedding if shape.tied else self._matrix(_HEAD, shape.vocabulary, shape.hidden)
        logits = ops.matmul(state, head, False, True)
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = list(self._inputs.values())
        return ov.Model([ops.result(logits)], self._sinks, inputs, "gpt_neox")

    def _feed_forward(self, name: str, state) -> ov.Node:
        shape = self._shape
        if shape.llama:
            gate = self._linear(f"{name}gate_proj", state, shape.widened)
            up = self._linear(f"{name}up_proj", state, shape.widened)
            active = ops.multiply(ops.swish(gate), up)
            return self._linear(f"{name}down_proj", active, shape.hidden)
        widened = self._linear(f"{name}dense_h_to_4h", state, shape.widened)
        return self._linear(f"{name}dense_4h_to_h", ops.gelu(widened, shape.gelu), shape.hidden)

    def _query_key_value(self, name: str, state) -> Sequence[ov.Output]:
        """Query, key and value, each [batch, heads, tokens, width]."""
        shape, width = self._shape, self._width
        if shape.llama:
            linears = [self._linear(f"{name}{one}_proj", state, shape.hidden) for one in "qkv"]
            split = [ops.reshape(one, [0, 0, shape.heads, width], True) for one in linears]
            return [ops.transpose(one, [0, 2, 1, 3]).output(0) for one in split]
        mixed = self._linear(f"{name}query_key_value", state, 3 * shape.hidden, shape.biased)
        # Each head's query, key and value lie side by side.
        heads = ops.reshape(mixed, [0, 0, shape.heads, 3 * width], True)
        return ops.variadic_split(ops.transpose(heads, [0, 2, 1, 3]), 3, [width] * 3).outputs()

    def _attention(self, at: int, name: str, state, mask, rotary) -> ov.Node:
        shape, width = self._shape, self._width
        query, key, value = self._query_key_value(name, state)
        batch = ops.gather(ops.shape_of(self._inputs["input_ids"]), [0], 0)
        empty = ops.concat([batch, np.array([shape.heads, 0, width], np.int64)], 0)
        kept = []
        for kind, new in (("key", self._rotated(key, rotary)), ("value", value)):
            variable = f"past_key_values.{at}.{kind}present.{at}.{kind}"
            past = ops.read_value(
                ops.broadcast(np.float32(0), empty),
                variable,
                variable_type=ov.Type.f32,
                variable_shape=ov.PartialShape([-1, shape.heads, -1, width]),
            )
            whole = ops.concat([ops.gather(past, self._inputs["beam_idx"], 0), new], 2)
            self._sinks.append(ops.assign(whole, variable))
            kept.append(whole)
        query = self._rotated(query, rotary)
        attended = ops.scaled_dot_product_attention(query, *kept, mask)
        joined = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, shape.hidden], True)
        return self._linear(f"{name}dense", joined, shape.hidden, shape.biased)

    def _mask(self) -> ov.Node:
        """The mask that is added to attention scores, [batch, 1, tokens, all tokens]: 0, but
        _MASKED for padding and later tokens."""
        given = self._inputs["attention_mask"]
        count = ops.gather(ops.shape_of(self._inputs["input_ids"]), 1, 0)
        total = ops.gather(ops.shape_of(given), 1, 0)
        every = ops.range(np.int64(0), total, np.int64(1), "i64")
        own = ops.range(ops.subtract(total, count), total, np.int64(1), "i64")
        earlier = ops.less_equal(ops.unsqueeze(every, 0), ops.unsqueeze(own, 1))
        seen = ops.logical_and(ops.unsqueeze(ops.convert(given, "boolean"), [1, 2]), earlier)
        return ops.select(seen, np.float32(0), _MASKED)

    def _rotary_tables(self) -> tuple[ov.Node, ov.Node]:
        """Cosines and sines, each [batch, 1, tokens, rotated width]."""
        turned = int(self._width * self._shape.rotary)
        powers = np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
        speeds = 1 / np.float32(self._shape.rotary_base) ** powers
        positions = ops.convert(self._inputs["position_ids"], "f32")
        angles = ops.multiply(ops.unsqueeze(positions, [1, 3]), speeds)
        both = ops.concat([angles, angles], -1)
        return ops.cos(both), ops.sin(both)

    def _rotated(self, heads: ov.Output, rotary: Sequence[ov.Node]) -> ov.Node:
        """Rotary embedding as the CPU plugin's fusion expects it: split along axis 3, times -1."""
        width = self._width
        # An odd number of rotated dimensions is rounded up, as in transformers.
        half = (int(width * self._shape.rotary) + 1) // 2
        still = None
        if 2 * half < width:
            heads, still = ops.variadic_split(heads, 3, [2 * half, width - 2 * half]).outputs()
        first, second = ops.variadic_split(heads, 3, [half, half]).outputs()
        crossed = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
        cosine, sine = rotary
        new = ops.add(ops.multiply(heads, cosine), ops.multiply(crossed, sine))
        return new if still is None else ops.concat([new, still], -1)

    def _normalised(self, name: str, state) -> ov.Node:
        hidden = self._shape.hidden
        weight = self._weights.vector(f"{name}.weight", hidden)
        if self._shape.llama:  # written as the CPU plugin's RMS fusion expects it
            mean = ops.reduce_mean(ops.power(state, np.float32(2)), [-1], True)
            root = ops.sqrt(ops.add(mean, np.float32(self._shape.epsilon)))
            return ops.multiply(ops.multiply(state, ops.divide(np.float32(1), root)), weight)
        centred = ops.mvn(state, [-1], True, self._shape.epsilon, "inside_sqrt")
        scaled = ops.multiply(centred, weight)
        return ops.add(scaled, self._weights.vector(f"{name}.bias", hidden))

    def _linear(self, name: str, state, rows: int, biased: bool = True) -> ov.Node:
        columns = state.get_output_partial_shape(0)[2].get_length()
        product = ops.matmul(state, self._matrix(f"{name}.weight", rows, columns), False, True)
        if self._shape.llama or not biased:
            return product
        return ops.add(product, self._weights.vector(f"{name}.bias", rows))

    def _matrix(self, name: str, rows: int, columns: int) -> ov.Output:
        """The matrix `name`; embedding and output matrix have at least 8 bits."""
        bits = max(self._bits, 8) if name in (_EMBEDDING, _HEAD) else self._bits
        return self._weights.matrix(name, rows, columns, bits)
