"""Measures what a pair costs on this machine, with decoders of its shapes and precisions.

    python -m tools.rehearse PAIR [--json FILE]

The time and memory of a forward depend on shapes and number formats, not on the values of weights.
So models with made-up weights cost what the real ones would. Their answers are meaningless.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import click
import numpy as np
import openvino as ov

from specdemo.cli import main
from specdemo.commands.shared import json_option, write_report
from specdemo.convert import model_files
from specdemo.convert.decoder import BITS, FAMILIES, Shape, write
from specdemo.convert.eagle3 import EagleShape
from specdemo.convert.weights import FileWeights, compressed, weight_group
from specdemo.engine.backends.eagle_head import EagleHead
from specdemo.engine.backends.numerics import measure_invariance, open_target
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.forwards import ModelSettings, Run
from specdemo.engine.pair_files import PairFiles
from specdemo.errors import BadInput, naming
from specdemo.machine import disk, hardware, measured
from specdemo.machine.terminal import Progress, Report, progress_bar, silent
from specdemo.pairs import embedded
from specdemo.pairs.hub import WORKING_BYTES
from specdemo.pairs.registry import PAIRS, Pair, find_pair
from specdemo.pairs.sources import EMBEDDED_TARGET, Source

CONTEXT = 2048
TOKENS = tuple(range(1, 17))
PROMPT = 128
REPEATS = 5
GAINS = (1.5, 2.0)
SHIFT = 4096  # bytes of noise between the starts of two matrices
STEP = 2.7e-4  # scale of 8-bit weights: standard deviation 0.02, as in a new model
EXACT = ModelSettings(
    properties=(("INFERENCE_PRECISION_HINT", "f32"), ("KV_CACHE_PRECISION", "f16"))
)
"""The properties that a Session uses for heads."""


def _neox(hidden: int, layers: int, heads: int, vocabulary: int) -> Shape:
    sizes = hidden, layers, heads, vocabulary, 4 * hidden, heads, hidden // heads
    return Shape(*sizes, rotary=0.25, family=FAMILIES["gptneox"])


def _qwen3(hidden: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    sizes = {"hidden": hidden, "layers": layers, "attention_heads": heads, "inner": inner}
    return sizes | {"kv_heads": 8, "vocabulary": 151_936, "width": 128, "rope_base": 1e6}


def _eagle(hidden: int, heads: int, inner: int) -> EagleShape:
    """Of a head that AngelSlim publishes, with the target's embedding."""
    sizes = _qwen3(hidden, 1, heads, inner) | {"embedding": False}
    return EagleShape(**sizes, tokens=np.arange(32_000))


_QWEN3: dict[str, Any] = {"tied": True, "family": FAMILIES["qwen3"]}
SHAPES: dict[str, Shape] = {
    "dolly-v2-3b": _neox(2560, 32, 32, 50280),
    "dolly-v2-7b": _neox(4096, 32, 32, 50280),
    "dolly-v2-12b": _neox(5120, 36, 40, 50280),
    "pythia-1b": _neox(2048, 16, 8, 50304),
    "pythia-410m": _neox(1024, 24, 16, 50304),
    "pythia-160m": _neox(768, 12, 12, 50304),
    "pythia-70m": _neox(512, 6, 8, 50304),
    "SmolLM2-1.7B-Instruct": Shape(2048, 24, 32, 49152, 8192, 32, 64, tied=True),
    "Qwen3-0.6B": Shape(**_qwen3(1024, 28, 16, 3072), **_QWEN3),
    "Qwen3-1.7B": Shape(**_qwen3(2048, 28, 16, 6144), **_QWEN3),
    "Qwen3-4B": Shape(**_qwen3(2560, 36, 32, 9728), **_QWEN3),
    "Qwen3-1.7B_eagle3": _eagle(2048, 16, 6144),
    "Qwen3-4B_eagle3": _eagle(2560, 32, 9728),
}


def shape_of(source: Source) -> tuple[Shape, int] | None:
    """Shape and bits per weight, by a name such as dolly-v2-3b-int8-ov; None if unknown."""
    name = f"{source.name}-{source.export}" if source.export else source.name
    base, _, form = name.removesuffix("-ov").rpartition("-")
    return (SHAPES[base], BITS[form]) if base in SHAPES and form in ("int8", "int4") else None


def write_made_up(shape: Shape, bits: int, folder: Path) -> None:
    """Write IR of `shape` with made-up weights of `bits` (8 or 4) into `folder`."""
    largest = shape.hidden * max(shape.vocabulary, shape.inner * bits // 8)
    made_up = MadeUp(7 * shape.layers + 2, largest)
    write(shape, bits, cast(FileWeights, made_up), folder)


class MadeUp:
    """Random weights in the format of the Hub's IR (unsigned integers with a zero point). Every
    matrix is a slice of the same noise, with its own start. So all take the memory of one, and no
    two are equal: OpenVINO would store equal ones once. `largest`: bytes of the largest matrix."""

    output_bits = 8

    def __init__(self, matrices: int, largest: int) -> None:
        self._random = np.random.default_rng(0)
        self._noise = self._random.integers(0, 256, largest + matrices * SHIFT, np.uint8)
        self._used = 0

    def vector(self, _name: str, *shape: int) -> np.ndarray:
        return self._random.normal(1, 0.02, shape).astype(np.float32)

    def matrix(self, _name: str, rows: int, columns: int, bits: int) -> ov.Output:
        data = self._noise[self._used : self._used + rows * columns * bits // 8]
        self._used += SHIFT
        group = weight_group(columns) if bits == 4 else columns
        kind, zero, step = (ov.Type.u8, 128, STEP) if bits == 8 else (ov.Type.u4, 8, 16 * STEP)
        integers = ov.Tensor(data, ov.Shape([rows, columns // group, group]), kind)
        scales = np.full((rows, columns // group, 1), step, np.float16)
        return compressed(integers, scales, np.full(scales.shape, zero, np.uint8))


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Costs of one model, in bytes and seconds. `weights_bytes`: its file, which is mapped and read
    while loading. `own_bytes`: memory of the compiled model beside it. `cache_bytes`: KV cache of
    CONTEXT tokens. `prefill_seconds`: of PROMPT tokens; `step_seconds`: of a forward of each number
    of TOKENS; medians."""

    model: str
    weights_bytes: int
    own_bytes: int
    cache_bytes: int
    prefill_seconds: float
    step_seconds: tuple[float, ...]
    invariance: str


def rehearse_pair(pair: Pair, report: Report = silent) -> list[Rehearsed]:
    """Measure the target and the drafts of `pair`, then the same target with 4 or 8 bits per weight
    if another pair has it. The embedded target as a draft has its real weights. Raises BadInput for
    unknown shapes, FetchError if disk or memory is too small."""
    shapes = {source: shape_of(source) for source in (pair.target, *pair.drafts)}
    own = shapes[pair.target]
    unknown = [source for source, form in shapes.items() if not form and source != EMBEDDED_TARGET]
    if unknown or own is None:
        names = ", ".join(other.name for other in PAIRS if shape_of(other.target))
        raise BadInput(
            f"PAIR {pair.name!r} cannot be rehearsed, its shapes are not known; choose {names}."
        )
    for other in PAIRS:
        form = shape_of(other.target)
        if form and form[0] == own[0]:
            shapes.setdefault(other.target, form)
    home, what = disk.cache_home() / "rehearsal", f"Rehearsing {pair.name}"
    sizes = [form[0].bytes(form[1], MadeUp.output_bits) for form in shapes.values() if form]
    needed = WORKING_BYTES + sizes[0] + max(sizes[1:], default=0)
    hardware.require_memory(needed, what)
    disk.require_space(home, needed, what)
    rehearsed = []
    with disk.exclusive_scratch(home) as scratch:
        target = scratch / "0"  # an EAGLE-3 head reads the target's embedding
        for number, (source, form) in enumerate(shapes.items()):
            report(Progress(f"{what}: {source.name}"))
            folder = scratch / str(number)
            if form is None:
                rehearsed.append(rehearse(source.name, embedded.fetch(report)[0].folder))
                continue
            write_made_up(*form, folder)
            rehearsed.append(rehearse(source.name, folder, form[0], target))
            if number:
                shutil.rmtree(folder)
    return rehearsed


def rehearse(
    name: str, folder: Path, shape: Shape | None = None, target: Path | None = None
) -> Rehearsed:
    """Load the model in `folder` and time its forwards. The sizes take turns, so a slow period of
    the machine affects all of them. An EAGLE-3 head has a EagleShape, and the folder of a `target`,
    whose states it reads in every row."""
    gc.collect()
    before = hardware.own_bytes()
    head = isinstance(shape, EagleShape)
    if head and target is not None:
        model: PagedModel = EagleHead(
            folder / model_files.MODEL, target / model_files.MODEL, EXACT, ov.Core()
        )
    else:
        opened, _ = open_target(PairFiles(folder / model_files.MODEL), ov.Core())
        model = cast(PagedModel, opened)
    times: dict[int, list[float]] = {count: [] for count in TOKENS}
    prefill: list[float] = []
    with model.new_sequence() as sequence:

        def forward(count: int, rows: int, stepwise: bool = True) -> float:
            width = shape.states * shape.target_hidden if isinstance(shape, EagleShape) else 0
            states = np.ones((count, width), np.float32) if width else None
            began = perf_counter()
            model.forward([Run(sequence, [1] * count, rows, stepwise, states=states)])
            return perf_counter() - began

        for _ in range(REPEATS):
            sequence.truncate(0)
            prefill.append(forward(PROMPT, 1, False))
            own_bytes = hardware.own_bytes() - before
            for count in TOKENS:
                times[count].append(forward(count, 1 if head else count))
                sequence.truncate(PROMPT)
    return Rehearsed(
        model=name,
        weights_bytes=disk.file_size(folder / model_files.WEIGHTS),
        own_bytes=own_bytes,
        cache_bytes=model.block_bytes * CONTEXT // model.block_size,
        prefill_seconds=statistics.median(prefill),
        step_seconds=tuple(map(statistics.median, times.values())),
        invariance="" if head else str(list(measure_invariance(model))[-1]),
    )


def expected_speedup(rate: float, length: int, step: float, verify: Sequence[float]) -> float:
    """Speed-up over autoregressive decoding with drafts of `length` tokens: theorem 3.8 of
    Leviathan et al. (arXiv 2211.17192), but a verification takes its measured seconds."""
    tokens = sum(rate**position for position in range(length + 1))
    return tokens / round_cost(length, step, verify)


def round_cost(length: int, step: float, verify: Sequence[float]) -> float:
    """The cost of a round with a draft of `length` tokens, in tokens of autoregressive decoding.
    `verify`: seconds of forwards of 1, 2, ... tokens, made non-decreasing; `step`: of a draft
    token."""
    return (length * step + max(verify[: length + 1])) / verify[0]


@click.command()
@click.argument("pair", help="A pair that `specdemo pairs` lists.")
@json_option
def command(pair: str, json_file: str | None) -> None:
    """Measure memory and time of a pair with made-up weights."""
    with naming(lambda field: "PAIR"):
        chosen = find_pair(pair)
    with progress_bar() as bar:
        models = rehearse_pair(chosen, bar)
    drafts = models[1 : 1 + len(chosen.drafts)]
    figures_of_models, milliseconds, prospects, needs = [], [], [], []
    for model in models:
        measured.write("steps", {"model": model.model}, model.step_seconds)
        figures_of_models.append(asdict(model))
        verify = model.step_seconds
        steps = {str(tokens): 1000 * seconds for tokens, seconds in enumerate(verify, start=1)}
        milliseconds.append({"model": model.model, **steps})
        for draft in drafts if model not in drafts else ():
            both, step = {"target": model.model, "draft": draft.model}, draft.step_seconds[0]
            lengths = range(1, len(verify))
            speedups = {
                f"{rate:g}": max(expected_speedup(rate, k, step, verify) for k in lengths)
                for rate in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
            }
            prospects.append(both | speedups)
            for k in lengths[:5]:
                need = {f"{gain:g}": gain * round_cost(k, step, verify) for gain in GAINS}
                needs.append({**both, "draft_tokens": k, **need})
    figures = {
        "machine": hardware.describe(),
        "weights": "made up",
        "pair": chosen.name,
        "models": figures_of_models,
        "prospects": prospects,
        "tokens_per_round_needed": needs,
    }
    title = f"{chosen.name} on {hardware.describe()}: made-up weights in the real shapes, "
    title += f"the engine's properties, batch 1, {PROMPT} tokens of context"
    tables = {
        title: [
            {name: row[name] for name in row if name != "step_seconds"} for row in figures_of_models
        ],
        "milliseconds a forward of n tokens": milliseconds,
        "speed-up by acceptance rate": prospects,
        "tokens a round that are needed, by speed-up": needs,
    }
    write_report(figures, json_file, tables)


if __name__ == "__main__":
    sys.exit(main(command=command, name="rehearse"))
