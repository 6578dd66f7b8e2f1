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

from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.engine.numerics import measure_invariance
from specdemo.errors import BadInput
from specdemo.models import machine
from specdemo.models.neox import BITS, Shape, write_made_up
from specdemo.models.progress import Progress, Report, silent
from specdemo.models.registry import PAIRS, Pair
from specdemo.models.sources import WORKING_BYTES, Source

CONTEXT = 2048
TOKENS = tuple(range(1, 17))
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

SHAPES = {
    "dolly-v2-3b": Shape(2560, 32, 32, 50280),
    "dolly-v2-7b": Shape(4096, 32, 32, 50280),
    "dolly-v2-12b": Shape(5120, 36, 40, 50280),
    "pythia-1b": Shape(2048, 16, 8, 50304),
    "pythia-410m": Shape(1024, 24, 16, 50304),
    "pythia-160m": Shape(768, 12, 12, 50304),
    "pythia-70m": Shape(512, 6, 8, 50304),
}


def shape_of(source: Source) -> tuple[Shape, int] | None:
    """Shape and bits a weight, by a name such as dolly-v2-3b-int8-ov; None if unknown."""
    name = f"{source.name}-{source.export}" if source.export else source.name
    base, _, form = name.removesuffix("-ov").rpartition("-")
    return (SHAPES[base], BITS[form]) if base in SHAPES and form in ("int8", "int4") else None


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
) -> tuple[Rehearsed, ...]:
    """What the target and the drafts of `pair` cost here, then the same target with 4 or 8 bits a
    weight where there is a pair of it; with `compare` the target in all of NUMERICS. Raises
    BadInput for unknown shapes, FetchError where disk or memory are too small."""
    sources = [pair.target, *pair.drafts]
    shapes = {source: shape_of(source) for source in sources}
    if None in shapes.values():
        known = ", ".join(one.name for one in PAIRS if shape_of(one.target))
        raise BadInput(
            f"PAIR {pair.name!r} cannot be rehearsed, its shapes are not known; choose {known}."
        )
    for other in PAIRS:
        found = shape_of(other.target)
        if found and found[0] == shapes[pair.target][0]:
            shapes.setdefault(other.target, found)
    home = machine.cache_home() / "rehearsal"
    what = f"Rehearsing {pair.name}"
    needed = max(shape.bytes(bits) + shape.cache_bytes(PROMPT) for shape, bits in shapes.values())
    machine.require_memory(needed + WORKING_BYTES, what)
    machine.require_space(home, needed + WORKING_BYTES, what)
    rehearsed = []
    for source, (shape, bits) in shapes.items():
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
    report(Progress(f"Making up weights for {name}"))
    xml = write_made_up(shape, bits, folder)
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
