"""What a pair costs on this machine, measured with made-up models of its shapes (`rehearsal`)."""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.engine.numerics import measure_invariance
from specdemo.errors import BadInput
from specdemo.models import machine
from specdemo.models.progress import Progress, Report, silent
from specdemo.models.registry import PAIRS, Pair
from specdemo.models.rehearsal import CONTEXT, Shape, shape_of, write_ir
from specdemo.models.sources import WORKING_BYTES

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
class Stepped:
    """A model in one setting: seconds of a forward over each of TOKENS, and whether their logits
    agree bitwise."""

    numerics: str
    step_seconds: tuple[float, ...]
    invariance: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one model cost. Bytes and seconds; `step_seconds[i]` is the median forward over i + 1
    tokens.

    `weights_bytes` is the real model's file, which is mapped while in use and may be dropped from
    memory at any time; `own_bytes` what the compiled model takes beside it, `peak_bytes` the most
    that loading took; `cache_bytes` are the keys and values of a full context.
    """

    model: str
    weights_bytes: int
    own_bytes: int
    peak_bytes: int
    cache_bytes: int
    load_seconds: float
    prefill_seconds: float
    step_seconds: tuple[float, ...]
    settings: tuple[Stepped, ...] = ()


def rehearse_pair(
    pair: Pair, report: Report = silent, *, compare: bool = True
) -> tuple[Rehearsed, Rehearsed]:
    """What the target and the draft of `pair` cost here, measured one after the other.

    With `compare` the target is measured in all of NUMERICS. Raises BadInput for a pair whose
    shapes are unknown, FetchError where disk or memory are too small.
    """
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
    largest = max(shape.bytes(bits) for shape, bits in shapes)
    machine.require_space(home, largest + WORKING_BYTES, what)
    rehearsed = []
    for source, (shape, bits) in zip(sources, shapes, strict=True):
        with machine.exclusive_scratch(home) as folder:
            all_numerics = compare and source is pair.target
            rehearsed.append(
                rehearse(source.name, shape, bits, folder, report, compare=all_numerics)
            )
        gc.collect()
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
    first, *others = NUMERICS.items()
    report(Progress(f"Loading {name}"))
    before, began = machine.own_bytes(), perf_counter()
    with _peak_bytes() as peak:
        model = PagedModel(xml, ModelSettings("CPU", first[1]))
        with model.new_sequence() as sequence:
            model.forward([Run(sequence, [1, 1], 1)])
        load_seconds = perf_counter() - began
        with model.new_sequence() as sequence:
            began = perf_counter()
            model.forward([Run(sequence, [1] * PROMPT, 1)])
            prefill_seconds = perf_counter() - began
    after = machine.own_bytes()
    settings = [_stepped(first[0], model, name, report, check=compare)]
    del model
    for numerics, properties in others if compare else ():
        gc.collect()
        report(Progress(f"Loading {name} ({numerics})"))
        model = PagedModel(xml, ModelSettings("CPU", properties))
        settings.append(_stepped(numerics, model, name, report, check=True))
        del model
    return Rehearsed(
        model=name,
        weights_bytes=shape.bytes(bits),
        own_bytes=after - before,
        peak_bytes=max(peak) - before,
        cache_bytes=shape.cache_bytes(CONTEXT),
        load_seconds=load_seconds,
        prefill_seconds=prefill_seconds,
        step_seconds=settings[0].step_seconds,
        settings=tuple(settings) if compare else (),
    )


def _stepped(
    numerics: str, model: PagedModel, name: str, report: Report, *, check: bool
) -> Stepped:
    """Time forwards of all sizes, interleaved, so that a slow spell affects all of them; then
    compare their logits."""
    report(Progress(f"Timing {name} ({numerics})"))
    times: dict[int, list[float]] = {count: [] for count in TOKENS}
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * PROMPT, 1)])
        for _ in range(REPEATS):
            for count in TOKENS:
                before = perf_counter()
                model.forward([Run(sequence, [1] * count, count, stepwise=True)])
                times[count].append(perf_counter() - before)
                sequence.truncate(PROMPT)
    found = str(measure_invariance(model)) if check else ""
    return Stepped(numerics, tuple(statistics.median(times[count]) for count in TOKENS), found)


@contextmanager
def _peak_bytes() -> Iterator[list[int]]:
    """The memory of its own that this process has while the block runs, fifty times a second."""
    seen = [machine.own_bytes()]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.append(machine.own_bytes())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()
        seen.append(machine.own_bytes())
