"""What a pair costs on this machine, measured with GPT-NeoX decoders of its shapes and precisions.

The time and memory of a forward depend on shapes and number formats, not on the values of weights,
so models with made-up weights measure what the real ones would cost. Their answers mean nothing.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.engine.numerics import measure_invariance
from specdemo.errors import BadInput
from specdemo.models import machine
from specdemo.models.progress import Progress, Report, silent
from specdemo.models.registry import PAIRS, Pair
from specdemo.models.sources import WORKING_BYTES, Source

ROTARY_SHARE = 0.25
GROUP = 128
"""Weights that share a scale, for 4 bits."""
CONTEXT = 2048
_STEP = 2.7e-4  # of 8-bit weights: a standard deviation of 0.02, as models are initialised with
_SHIFT = 4096  # bytes of noise between the begins of two matrices
TOKENS = tuple(range(1, 9))
PROMPT = 128
REPEATS = 5
F32 = ("INFERENCE_PRECISION_HINT", "f32")
F16_CACHE = ("KV_CACHE_PRECISION", "f16")
NUMERICS = {
    "exact, f16 cache": (F32, F16_CACHE),
    "exact, f32 cache": (F32, ("KV_CACHE_PRECISION", "f32")),
    "exact, f16 cache, activations not quantized": (
        *(F32, F16_CACHE),
        ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ),
    "the plugin's own": (),
}
"""Properties that are compared for the target. A Session takes the first at these sizes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT-NeoX decoder; its feed-forward part is four times as wide as `hidden`."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int

    def bytes(self, bits: int) -> int:
        """Size of the real model's weights in matrices, embedding and head included."""
        return (12 * self.hidden * self.layers + 2 * self.vocabulary) * self.hidden * bits // 8

    def cache_bytes(self, tokens: int) -> int:
        """Keys and values of `tokens` tokens, 16 bits a number."""
        return 2 * self.layers * self.hidden * tokens * 2


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
        self._width = shape.hidden // shape.heads
        self._turned = int(self._width * ROTARY_SHARE)
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
        shape, width = self._shape, self._width
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
        turned = self._turned
        speeds = (10_000.0 ** (-np.arange(0, turned, 2) / turned)).astype(np.float32)
        positions = ops.convert(self._inputs["position_ids"], "f32")
        angles = ops.multiply(ops.unsqueeze(positions, [1, 3]), speeds)
        both = ops.concat([angles, angles], -1)
        return ops.cos(both), ops.sin(both)

    def _rotated(self, heads, rotary: tuple[ov.Node, ov.Node]) -> ov.Node:
        width, turned = self._width, self._turned
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


@dataclass(frozen=True, slots=True)
class Stepped:
    """A model in one setting: median seconds of a forward over each of TOKENS, and whether logits
    agree bitwise ("" if that was not compared)."""

    numerics: str
    step_seconds: tuple[float, ...]
    invariance: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one model cost, in bytes and seconds; exact numerics are the first of `settings`.

    `weights_bytes` is the real model's file, which is mapped and may be dropped from memory at any
    time; `own_bytes` what the compiled model takes beside it; `cache_bytes` a full context.
    """

    model: str
    weights_bytes: int
    own_bytes: int
    cache_bytes: int
    load_seconds: float
    prefill_seconds: float
    settings: tuple[Stepped, ...]


def rehearse_pair(
    pair: Pair, report: Report = silent, *, compare: bool = True
) -> tuple[Rehearsed, Rehearsed]:
    """What target and draft of `pair` cost here; with `compare` the target in all of NUMERICS.
    Raises BadInput for unknown shapes, FetchError where disk or memory are too small."""
    sources = [source for source in (pair.target, pair.draft) if source]
    shapes = [shape_of(source) for source in sources]
    if None in shapes:
        known = ", ".join(one.name for one in PAIRS if shape_of(one.target))
        raise BadInput(
            f"PAIR {pair.name!r} cannot be rehearsed, its shapes are not known; choose {known}."
        )
    home = machine.cache_home() / "rehearsal"
    what = f"Rehearsing {pair.name}"
    needed = max(shape.bytes(bits) + shape.cache_bytes(PROMPT) for shape, bits in shapes)
    machine.require_memory(needed + WORKING_BYTES, what)
    machine.require_space(home, needed + WORKING_BYTES, what)
    rehearsed = []
    for source, (shape, bits) in zip(sources, shapes, strict=True):
        all_numerics = compare and source is pair.target
        with machine.exclusive_scratch(home) as folder:
            rehearsed.append(
                rehearse(source.name, shape, bits, folder, report, compare=all_numerics)
            )
    return tuple(rehearsed)


def rehearse(
    name: str,
    shape: Shape,
    bits: int,
    folder: Path,
    report: Report = silent,
    *,
    compare: bool = False,
) -> Rehearsed:
    """Make the model up in `folder`, load it with the properties of exact numerics, and time it;
    with `compare`, in all of NUMERICS, one after the other."""
    xml = write_ir(shape, bits, folder, report)
    gc.collect()
    report(Progress(f"Loading {name}"))
    before, began = machine.own_bytes(), perf_counter()
    settings = []
    for numerics in NUMERICS if compare else list(NUMERICS)[:1]:
        model = PagedModel(xml, ModelSettings("CPU", NUMERICS[numerics]))
        if not settings:
            with model.new_sequence() as sequence:
                model.forward([Run(sequence, [1, 1], 1)])
            load_seconds = perf_counter() - began
            with model.new_sequence() as sequence:
                began = perf_counter()
                model.forward([Run(sequence, [1] * PROMPT, 1)])
                prefill_seconds = perf_counter() - began
            own_bytes = machine.own_bytes() - before
        report(Progress(f"Timing {name} ({numerics})"))
        invariance = str(measure_invariance(model)) if compare else ""
        settings.append(Stepped(numerics, _step_seconds(model), invariance))
        del model
        gc.collect()
    return Rehearsed(
        model=name,
        weights_bytes=shape.bytes(bits),
        own_bytes=own_bytes,
        cache_bytes=shape.cache_bytes(CONTEXT),
        load_seconds=load_seconds,
        prefill_seconds=prefill_seconds,
        settings=tuple(settings),
    )


def _step_seconds(model: PagedModel) -> tuple[float, ...]:
    """Forwards of all sizes, interleaved, so that a slow spell affects all of them."""
    times: dict[int, list[float]] = {count: [] for count in TOKENS}
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * PROMPT, 1)])
        for _ in range(REPEATS):
            for count in TOKENS:
                before = perf_counter()
                model.forward([Run(sequence, [1] * count, count, stepwise=True)])
                times[count].append(perf_counter() - before)
                sequence.truncate(PROMPT)
    return tuple(map(statistics.median, times.values()))
