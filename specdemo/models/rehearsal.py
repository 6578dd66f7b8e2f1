"""GPT-NeoX decoders of real shapes and precisions with made-up weights: a dress rehearsal for models that are not here.

The time and memory of a forward depend on shapes and number formats, not on what the weights say, so such a model
tells what the real one would cost on this machine. What it answers means nothing. One layer is made up and written as
many times as the model has layers, so that neither making nor writing it holds more than that in memory.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.models.pairs import Source
from specdemo.models.progress import Progress, Report, silent

ROTARY_SHARE = 0.25
GROUP = 128
CONTEXT = 2048
_SHARED = 4096  # bytes from which a constant is a matrix
_STEP = 2.7e-4  # of 8-bit weights: a standard deviation of 0.02, as models are initialised with


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT-NeoX decoder: width, layers, heads and vocabulary; the feed-forward part is four times as wide."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int

    @property
    def matrices(self) -> int:
        """Weights in matrices (the embedding and the head counted both)."""
        return 12 * self.hidden**2 * self.layers + 2 * self.vocabulary * self.hidden

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
    """Shape and bits a weight of a model in `pairs`, by its name such as dolly-v2-3b-int8-ov; None if unknown."""
    name = f"{source.name}-{source.export}" if source.export else source.name
    base, _, form = name.removesuffix("-ov").rpartition("-")
    bits = {"int8": 8, "int4": 4}.get(form)
    return (SHAPES[base], bits) if base in SHAPES and bits else None


def write_ir(shape: Shape, bits: int, folder: Path, report: Report = silent) -> Path:
    """Write IR of `shape` with weights of `bits` (8 or 4) into `folder`; returns the path of its XML.

    Embedding, head and one layer are made up. OpenVINO writes equal constants once, and its CPU plugin would then hold
    them once too: each layer is given a copy of its own in the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = f"Making up weights: {shape.layers} layers of {shape.hidden}"
    report(Progress(text, 0, shape.bytes(bits)))
    once = dataclasses.replace(shape, layers=1)
    pool = _Pool(np.random.default_rng(0).integers(0, 256, once.bytes(bits), np.uint8), bits)
    xml = folder / "openvino_model.xml"
    ov.save_model(_decoder(shape, pool), xml, compress_to_fp16=False)
    _spread(xml, lambda done: report(Progress(text, min(done, shape.bytes(bits)), shape.bytes(bits))))
    return xml


def _spread(xml: Path, wrote: Callable[[int], None]) -> None:
    """Give every large constant of an IR a place of its own in its .bin, where several share one."""
    seen: set[str] = set()
    with open(xml.with_suffix(".bin"), "r+b") as weights:

        def place(found: re.Match[str]) -> str:
            begin, size = found["offset"], int(found["size"])
            if size < _SHARED or begin not in seen:
                seen.add(begin)
                return found[0]
            weights.seek(int(begin))
            content = weights.read(size)
            end = weights.seek(0, os.SEEK_END)
            own = weights.seek(-(-end // 64) * 64)
            weights.write(content)
            wrote(own + size)
            return f'offset="{own}" size="{size}"'

        text = re.sub(r'offset="(?P<offset>\d+)" size="(?P<size>\d+)"', place, xml.read_text(encoding="utf-8"))
    xml.write_text(text, encoding="utf-8")


class _Pool:
    """Hands out compressed matrices, their integers taken from the noise in turn, without copying them."""

    def __init__(self, noise: np.ndarray, bits: int) -> None:
        self._noise = noise
        self._bits = bits
        self._used = 0

    @contextmanager
    def again(self) -> Iterator[None]:
        """What is taken inside is given out once more afterwards."""
        begin = self._used
        yield
        self._used = begin

    def matrix(self, rows: int, columns: int) -> ov.Output:
        """A float32 expression [rows, columns]: integers with zero point and scale, by row (8 bits) or group (4)."""
        shape = (rows, columns) if self._bits == 8 else (rows, columns // GROUP, GROUP)
        count = rows * columns * self._bits // 8
        data = self._noise[self._used : self._used + count]
        self._used += count
        if self._bits == 8:
            integers = ov.op.Constant(ov.Tensor(data.reshape(shape), shared_memory=True), shared_memory=True)
        else:
            integers = ov.op.Constant(ov.Tensor(data, ov.Shape(shape), ov.Type.u4), shared_memory=True)
        per_scale = (*shape[:-1], 1)
        middle, step = (128, _STEP) if self._bits == 8 else (8, _STEP * 16)
        zero = ops.convert(ops.constant(np.full(per_scale, middle, np.uint8)), "f16")
        centred = ops.subtract(ops.convert(integers, "f16"), zero)
        weights = ops.multiply(centred, ops.constant(np.full(per_scale, step, np.float16)))
        if self._bits == 4:
            weights = ops.reshape(weights, ops.constant([rows, columns]), False)
        return ops.convert(weights, "f32").output(0)


def _decoder(shape: Shape, pool: _Pool) -> ov.Model:
    """A stateful decoder with the inputs and the state that optimum-intel's exports have."""
    inputs = {
        "input_ids": ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="input_ids"),
        "attention_mask": ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="attention_mask"),
        "position_ids": ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="position_ids"),
        "beam_idx": ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name="beam_idx"),
    }
    for name, node in inputs.items():
        node.output(0).get_tensor().set_names({name})
    batch = ops.gather(ops.shape_of(inputs["input_ids"]), ops.constant([0]), ops.constant(0))
    # Hidden tokens get a large negative number. The causal part is left out: paged attention is causal by itself.
    hidden = ops.subtract(ops.constant(np.float32(1)), ops.convert(inputs["attention_mask"], "f32"))
    mask = ops.multiply(ops.unsqueeze(hidden, ops.constant([1, 2])), ops.constant(np.float32(-65504)))
    rotary = _rotary_tables(shape, inputs["position_ids"])
    ids = ops.convert(inputs["input_ids"], "i32")
    state = ops.gather(pool.matrix(shape.vocabulary, shape.hidden), ids, ops.constant(0))
    sinks: list[ov.Node] = []
    for layer in range(shape.layers):
        with pool.again():
            attended = _attention(shape, pool, layer, _normalised(shape, state), rotary, mask, batch, inputs, sinks)
            widened = ops.gelu(_linear(pool, _normalised(shape, state), 4 * shape.hidden, shape.hidden), "erf")
            state = ops.add(state, ops.add(attended, _linear(pool, widened, shape.hidden, 4 * shape.hidden)))
    head = pool.matrix(shape.vocabulary, shape.hidden)
    logits = ops.matmul(_normalised(shape, state), head, False, True)
    logits.output(0).get_tensor().set_names({"logits"})
    return ov.Model([ops.result(logits)], sinks, list(inputs.values()), "made-up GPT-NeoX")


def _attention(shape, pool, layer, state, rotary, mask, batch, inputs, sinks) -> ov.Node:
    width = shape.hidden // shape.heads
    mixed = _linear(pool, state, 3 * shape.hidden, shape.hidden)
    heads = ops.reshape(mixed, ops.constant([0, 0, shape.heads, 3 * width]), True)
    heads = ops.transpose(heads, ops.constant([0, 2, 1, 3]))
    query, key, value = ops.variadic_split(heads, ops.constant(-1), ops.constant([width] * 3)).outputs()
    query, key = _rotated(shape, query, rotary), _rotated(shape, key, rotary)
    empty = ops.concat([batch, ops.constant([shape.heads, 0, width], dtype=np.int64)], 0)
    kept = []
    for name, new in (("key", key), ("value", value)):
        variable = f"past_key_values.{layer}.{name}present.{layer}.{name}"
        past = ops.read_value(
            ops.broadcast(ops.constant(np.float32(0)), empty),
            variable,
            variable_type=ov.Type.f32,
            variable_shape=ov.PartialShape([-1, shape.heads, -1, width]),
        )
        whole = ops.concat([ops.gather(past, inputs["beam_idx"], ops.constant(0)), new], 2)
        sinks.append(ops.assign(whole, variable))
        kept.append(whole)
    attended = ops.scaled_dot_product_attention(query, kept[0], kept[1], mask)
    joined = ops.transpose(attended, ops.constant([0, 2, 1, 3]))
    return _linear(pool, ops.reshape(joined, ops.constant([0, 0, shape.hidden]), True), shape.hidden, shape.hidden)


def _linear(pool: _Pool, state, rows: int, columns: int) -> ov.Node:
    product = ops.matmul(state, pool.matrix(rows, columns), False, True)
    return ops.add(product, ops.constant(np.zeros((1, 1, rows), np.float32)))


def _normalised(shape: Shape, state) -> ov.Node:
    centred = ops.mvn(state, ops.constant([-1]), True, 1e-5, "inside_sqrt")
    scale = ops.constant(np.ones((1, 1, shape.hidden), np.float32))
    return ops.add(ops.multiply(centred, scale), ops.constant(np.zeros((1, 1, shape.hidden), np.float32)))


def _rotary_tables(shape: Shape, positions) -> tuple[ov.Node, ov.Node]:
    """Cosines and sines [batch, 1, tokens, turned]."""
    turned = _turned(shape)
    speeds = (10_000.0 ** (-np.arange(0, turned, 2) / turned)).astype(np.float32)
    angles = ops.multiply(ops.unsqueeze(ops.convert(positions, "f32"), ops.constant([1, 3])), ops.constant(speeds))
    both = ops.concat([angles, angles], -1)
    return ops.cos(both), ops.sin(both)


def _rotated(shape: Shape, heads, rotary: tuple[ov.Node, ov.Node]) -> ov.Node:
    width, turned = shape.hidden // shape.heads, _turned(shape)
    turning, still = ops.variadic_split(heads, ops.constant(-1), ops.constant([turned, width - turned])).outputs()
    first, second = ops.split(turning, ops.constant(-1), 2).outputs()
    crossed = ops.concat([ops.negative(second), first], -1)
    cosine, sine = rotary
    return ops.concat([ops.add(ops.multiply(turning, cosine), ops.multiply(crossed, sine)), still], -1)


def _turned(shape: Shape) -> int:
    return int(shape.hidden // shape.heads * ROTARY_SHARE)
