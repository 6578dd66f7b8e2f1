"""GPT-NeoX decoders of real shapes and precisions with made-up weights.

The time and memory of a forward depend on shapes and number formats, not on the values of weights,
so such a model measures what the real one would cost on this machine. Its answers mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.models.progress import Progress, Report, silent
from specdemo.models.sources import Source

ROTARY_SHARE = 0.25
GROUP = 128
"""Weights that share a scale, for 4 bits."""
CONTEXT = 2048
_STEP = 2.7e-4  # of 8-bit weights: a standard deviation of 0.02, as models are initialised with
_SHIFT = 4096  # bytes of noise between the begins of two matrices


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT-NeoX decoder; its feed-forward part is four times as wide as `hidden`."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int

    @property
    def matrices(self) -> int:
        """Weights in matrices, embedding and head included."""
        return 12 * self.hidden**2 * self.layers + 2 * self.vocabulary * self.hidden

    @property
    def turned(self) -> int:
        """Columns of a head that carry the position."""
        return int(self.hidden // self.heads * ROTARY_SHARE)

    def bytes(self, bits: int) -> int:
        """Size of the real model's weights."""
        return self.matrices * bits // 8

    def cache_bytes(self, tokens: int, width: int = 2) -> int:
        """Keys and values of `tokens` tokens, `width` bytes a number."""
        return 2 * self.layers * self.hidden * tokens * width


SHAPES = {
    "dolly-v2-3b": Shape(2560, 32, 32, 50280),
    "dolly-v2-7b": Shape(4096, 32, 32, 50280),
    "dolly-v2-12b": Shape(5120, 36, 40, 50280),
    "pythia-1b": Shape(2048, 16, 8, 50304),
    "pythia-70m": Shape(512, 6, 8, 50304),
}


def shape_of(source: Source) -> tuple[Shape, int] | None:
    """Shape and bits a weight, by a name such as dolly-v2-3b-int8-ov; None if unknown."""
    name = f"{source.name}-{source.export}" if source.export else source.name
    base, _, form = name.removesuffix("-ov").rpartition("-")
    bits = {"int8": 8, "int4": 4}.get(form)
    return (SHAPES[base], bits) if base in SHAPES and bits else None


def write_ir(shape: Shape, bits: int, folder: Path, report: Report = silent) -> Path:
    """Write IR of `shape` with weights of `bits` (8 or 4) into `folder`; returns its XML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    report(Progress(f"Making up weights: {shape.layers} layers of {shape.hidden}"))
    xml = folder / "openvino_model.xml"
    decoder = _Decoder(shape, bits)  # owns the memory of the model's weights
    ov.save_model(decoder.build(), xml, compress_to_fp16=False)
    return xml


class _Decoder:
    """Builds a stateful decoder with the inputs and the state that optimum-intel's exports have."""

    def __init__(self, shape: Shape, bits: int) -> None:
        self._shape = shape
        self._bits = bits
        # Every matrix is a piece of the same noise that begins elsewhere: no two are equal, which
        # OpenVINO would hold once, and all of them take the memory of one.
        largest = max(shape.vocabulary * shape.hidden, 4 * shape.hidden**2) * bits // 8
        size = largest + (4 * shape.layers + 2) * _SHIFT
        self._noise = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        self._used = 0
        self._inputs = {
            name: ops.parameter(ov.PartialShape([-1] * rank), kind, name=name)
            for name, rank, kind in (
                ("input_ids", 2, ov.Type.i64),
                ("attention_mask", 2, ov.Type.i64),
                ("position_ids", 2, ov.Type.i64),
                ("beam_idx", 1, ov.Type.i32),
            )
        }
        for name, node in self._inputs.items():
            node.output(0).get_tensor().set_names({name})
        self._sinks: list[ov.Node] = []

    def build(self) -> ov.Model:
        shape = self._shape
        # Masked tokens get a large negative number. Paged attention itself is causal.
        masked = ops.subtract(np.float32(1), ops.convert(self._inputs["attention_mask"], "f32"))
        mask = ops.multiply(ops.unsqueeze(masked, [1, 2]), np.float32(-65504))
        rotary = self._rotary_tables()
        ids = ops.convert(self._inputs["input_ids"], "i32")
        state = ops.gather(self._matrix(shape.vocabulary, shape.hidden), ids, 0)
        for layer in range(shape.layers):
            attended = self._attention(layer, self._normalised(state), mask, rotary)
            widened = self._linear(self._normalised(state), 4 * shape.hidden, shape.hidden)
            narrowed = self._linear(ops.gelu(widened, "erf"), shape.hidden, 4 * shape.hidden)
            state = ops.add(state, ops.add(attended, narrowed))
        head = self._matrix(shape.vocabulary, shape.hidden)
        logits = ops.matmul(self._normalised(state), head, False, True)
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = list(self._inputs.values())
        return ov.Model([ops.result(logits)], self._sinks, inputs, "made-up GPT-NeoX")

    def _attention(self, layer: int, state, mask, rotary) -> ov.Node:
        shape = self._shape
        width = shape.hidden // shape.heads
        mixed = self._linear(state, 3 * shape.hidden, shape.hidden)
        heads = ops.reshape(mixed, [0, 0, shape.heads, 3 * width], True)
        parts = ops.variadic_split(ops.transpose(heads, [0, 2, 1, 3]), -1, [width] * 3)
        query, key, value = parts.outputs()
        batch = ops.gather(ops.shape_of(self._inputs["input_ids"]), [0], 0)
        empty = ops.concat([batch, np.array([shape.heads, 0, width], np.int64)], 0)
        kept = []
        for name, new in (("key", self._rotated(key, rotary)), ("value", value)):
            variable = f"past_key_values.{layer}.{name}present.{layer}.{name}"
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
        return self._linear(joined, shape.hidden, shape.hidden)

    def _rotary_tables(self) -> tuple[ov.Node, ov.Node]:
        """Cosines and sines [batch, 1, tokens, turned]."""
        turned = self._shape.turned
        speeds = (10_000.0 ** (-np.arange(0, turned, 2) / turned)).astype(np.float32)
        positions = ops.convert(self._inputs["position_ids"], "f32")
        angles = ops.multiply(ops.unsqueeze(positions, [1, 3]), speeds)
        both = ops.concat([angles, angles], -1)
        return ops.cos(both), ops.sin(both)

    def _rotated(self, heads, rotary: tuple[ov.Node, ov.Node]) -> ov.Node:
        width, turned = self._shape.hidden // self._shape.heads, self._shape.turned
        turning, still = ops.variadic_split(heads, -1, [turned, width - turned]).outputs()
        first, second = ops.split(turning, -1, 2).outputs()
        crossed = ops.concat([ops.negative(second), first], -1)
        cosine, sine = rotary
        new = ops.add(ops.multiply(turning, cosine), ops.multiply(crossed, sine))
        return ops.concat([new, still], -1)

    def _normalised(self, state) -> ov.Node:
        centred = ops.mvn(state, [-1], True, 1e-5, "inside_sqrt")
        scaled = ops.multiply(centred, np.ones((1, 1, self._shape.hidden), np.float32))
        return ops.add(scaled, np.zeros((1, 1, self._shape.hidden), np.float32))

    def _linear(self, state, rows: int, columns: int) -> ov.Node:
        product = ops.matmul(state, self._matrix(rows, columns), False, True)
        return ops.add(product, np.zeros((1, 1, rows), np.float32))

    def _matrix(self, rows: int, columns: int) -> ov.Output:
        """A float32 expression [rows, columns]: integers, a scale a row (8 bits) or group (4)."""
        eight = self._bits == 8
        shape = (rows, columns) if eight else (rows, columns // GROUP, GROUP)
        data = self._noise[self._used : self._used + rows * columns * self._bits // 8]
        self._used += _SHIFT
        if eight:
            tensor = ov.Tensor(data.reshape(shape), shared_memory=True)
        else:
            tensor = ov.Tensor(data, ov.Shape(shape), ov.Type.u4)
        integers = ops.convert(ov.op.Constant(tensor, shared_memory=True), "f16")
        per_scale = (*shape[:-1], 1)
        middle, step = (128, _STEP) if eight else (8, _STEP * 16)
        zero = ops.convert(ops.constant(np.full(per_scale, middle, np.uint8)), "f16")
        scale = ops.constant(np.full(per_scale, step, np.float16))
        weights = ops.multiply(ops.subtract(integers, zero), scale)
        if not eight:
            weights = ops.reshape(weights, [rows, columns], False)
        return ops.convert(weights, "f32").output(0)
