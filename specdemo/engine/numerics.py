"""Which plugin settings make a model's logits independent of how many tokens run together, found by
measuring.

Speculative decoding is lossless in practice only where verifying n tokens gives the logits that n
single steps would have given. docs/reference/numerics.md has the measurements behind the
candidates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

from .cache import Sequence
from .checkpoint import TORCH, Checkpoint, weights_size
from .errors import CacheFull, ModelError
from .model import ModelSettings, Run
from .open import Model, open_model
from .policy import Costs
from .profile import Invariance, Properties, TargetProfile

LARGE_WEIGHTS = 1_000_000_000
"""Bytes of weights from which the KV cache is kept in f16: half the memory, and the time is the
weights' anyway."""

FIXED_SHAPES = (6, 3, 12)
"""Those that pay most first (docs/results/draft-policy.md)."""

DRAFT_FIXED_SHAPES = (4,)
"""What a draft model reads between its steps: the last token, and few others."""

FIXED_SHAPE_WEIGHTS = range(20_000_000, 500_000_000)
"""Bytes of weights for which a model is compiled once for each of FIXED_SHAPES: a larger model's
forwards take so long that a change of their size does not matter, and its memory does; of a smaller
one only the time to load it matters."""

CHECKED_SIZES = (2, 3, 5, 6, 8, 12, 16, 32, 64)
LEAST_USEFUL = 8

WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
GROWTH_SIZES = (1, 2, 4, 8, 16)
MOST_GROWTH = 1 / 500
"""Of a forward's time, for each token of context: a measured growth beyond it was caused by
something else."""

SHORT, LONG = 64, 576
"""Tokens of context at which forwards are timed at the start."""

_CONTEXT = 40
_REFERENCE = 4
_F32 = ("INFERENCE_PRECISION_HINT", "f32")
_NO_DYNAMIC = ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")


def exact_candidates(
    source: Path | Checkpoint, kv_cache: str = "auto", device: str = "CPU"
) -> list[Properties]:
    """Plugin properties to try for exact numerics, the best first. Any `kv_cache` but "auto" is
    taken as asked for: whether logits are invariant with it is what the measurement is for."""
    if isinstance(source, Checkpoint):
        from . import torch_model

        return [torch_model.properties(device, exact=True)]
    if kv_cache != "auto":
        precisions = [kv_cache]
    elif weights_size(source) >= LARGE_WEIGHTS:
        precisions = ["f16"]
    else:
        precisions = ["f16", "f32"]
    candidates = [(_F32, ("KV_CACHE_PRECISION", one)) for one in precisions]
    # The scales of u8 depend on what else is in a block, whatever is done about the activations.
    return candidates if kv_cache == "u8" else [*candidates, (*candidates[-1], _NO_DYNAMIC)]


def fast_properties(kv_cache: str = "auto", device: str = "CPU") -> Properties:
    """The plugin's own choice, but for a precision of the KV cache that was asked for."""
    if device.startswith(TORCH):
        from . import torch_model

        return torch_model.properties(device, exact=False)
    return () if kv_cache == "auto" else (("KV_CACHE_PRECISION", kv_cache),)


def _settings(
    source: Path | Checkpoint,
    device: str,
    properties: Properties,
    sizes: tuple[int, ...] = FIXED_SHAPES,
    hidden: tuple[float, ...] | None = None,
) -> ModelSettings:
    """With fixed shapes only where a change of shape takes a time that counts."""
    worth_it = device == "CPU" and weights_size(source) in FIXED_SHAPE_WEIGHTS
    shapes = sizes if worth_it else ()
    return ModelSettings(device, properties, fixed_shapes=shapes, hidden=hidden)


def exact_model(
    source: Path | Checkpoint,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    known: TargetProfile | None = None,
    hidden: tuple[float, ...] | None = None,
) -> tuple[Model, Invariance]:
    """Compile a target model in the first candidate setting that is invariant here; in the last one
    if none is. With `known` in the setting that was found before, if it was for as many threads.

    Of a cache in f16 where one in f32 would do, single tokens have to agree as well: they differ
    more than a guard can make up for where they do not. The candidates are the CPU's settings. A
    device that refuses them all runs in its own. Raises ModelError.
    """
    if known is not None and known.invariance is not None:
        settings = _settings(source, device, known.properties, hidden=hidden)
        model = open_model(source, settings, core=core)
        if model.threads == known.invariance.threads:
            return model, known.invariance
    candidates = exact_candidates(source, kv_cache, device)
    spare = len(candidates) > 2
    if device != "CPU" and not isinstance(source, Checkpoint):
        candidates.append(fast_properties(kv_cache))
    for properties in candidates:
        model = None  # before the next is made: two at once may not fit into memory
        settings = _settings(source, device, properties, hidden=hidden)
        try:
            model = open_model(source, settings, core=core)
        except ModelError:
            if properties is candidates[-1] or device == "CPU":
                raise
            continue
        found = measure_invariance(model)
        differs = spare and properties == candidates[0] and found.one_token and not found.guard
        if found.tokens >= LEAST_USEFUL and not differs:
            break
    return model, found


def fast_model(
    source: Path | Checkpoint,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    hidden: tuple[float, ...] | None = None,
) -> Model:
    """Compile a target model in the plugin's own setting. Raises ModelError."""
    properties = fast_properties(kv_cache, device)
    return open_model(source, _settings(source, device, properties, hidden=hidden), core=core)


def fastest_model(
    source: Path | Checkpoint,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    *,
    known: Properties | None = None,
    **head: Any,
) -> Model:
    """Compile a draft model in the setting whose step is fastest here, or in the one `known` to be;
    exactness does not matter for a draft. `head` goes to `open_model`."""
    best: tuple[float, Model] | None = None
    tried = [fast_properties(kv_cache, device), exact_candidates(source, kv_cache, device)[0]]
    for properties in tried if known is None else [known]:
        settings = _settings(source, device, properties, DRAFT_FIXED_SHAPES)
        try:
            model = open_model(source, settings, core=core, **head)
        except ModelError:
            if best is None:
                raise
            continue  # the second setting is the CPU's: others may refuse it
        seconds = step_seconds(model) if known is None else 0.0
        if best is None or seconds < best[0]:
            best = seconds, model
    return best[1]


def measure_invariance(model: Model) -> Invariance:
    """Run the same made-up text in pieces of one token, of each checked size, and of as many tokens
    as there are threads, and compare the logits bitwise; then merged forwards. Sets
    `model.least_tokens`. A second or so."""
    threads = model.threads
    sizes = sorted({*CHECKED_SIZES, *([threads] if 1 < threads <= max(CHECKED_SIZES) else [])})
    rng = np.random.default_rng(0)
    text = rng.integers(0, model.vocabulary_size, _CONTEXT + max(sizes)).tolist()
    context, rest = text[:_CONTEXT], text[_CONTEXT:]
    model.least_tokens = 1
    with model.new_sequence() as base:
        model.forward([Run(base, context, 1)])

        def in_pieces(size: int, total: int) -> np.ndarray:
            """Logits [total, vocabulary] of the rest, run `size` tokens a forward."""
            rows = []
            with model.fork(base, _CONTEXT) as sequence:
                for begin in range(0, total - total % size, size):
                    run = Run(sequence, rest[begin : begin + size], size, stepwise=True)
                    rows.append(model.forward([run])[0].rows.copy())
            return np.concatenate(rows)

        reference = in_pieces(_REFERENCE, 16)
        one_token = float(np.abs(in_pieces(1, 8) - reference[:8]).max())
        reached = 0
        for size in sizes:
            # Of larger forwards only the first rows are compared.
            got = in_pieces(size, max(size, 16))[:16]
            if not np.array_equal(got, reference[: len(got)]):
                break
            reached = size
    found = Invariance(reached, one_token, threads)
    model.least_tokens = found.least_tokens
    return replace(found, merging=reached > 0 and _merging_is_exact(model, text, reached))


def _merging_is_exact(model: Model, text: list[int], tokens: int) -> bool:
    """Whether sequences that share a forward of `tokens` tokens in all get bitwise the logits that
    each gets alone.

    One of them is a prompt that starts in that forward, the others are verified at different
    contexts, one of them a single token.
    """
    sizes = [2, 1, 5, tokens - 8] if tokens >= 16 else [2, 1, 2, 2]
    bases = [model.new_sequence() for _ in sizes]
    for base, context in zip(bases, (40, 21, 80), strict=False):
        model.forward([Run(base, text[-context:], 0)])

    def rows(together: bool) -> list[np.ndarray]:
        forks = [model.fork(base, base.length) for base in bases]
        runs = [
            Run(fork, text[:size], size if fork.length else 1, stepwise=bool(fork.length))
            for fork, size in zip(forks, sizes, strict=True)
        ]
        batches = [runs] if together else [[run] for run in runs]
        found = [logits.rows.copy() for batch in batches for logits in model.forward(batch)]
        for fork in forks:
            fork.release()
        return found

    same = all(map(np.array_equal, rows(together=False), rows(together=True)))
    for base in bases:
        base.release()
    return same


def step_seconds(model: Model, target: Model | None = None, steps: int = 9) -> float:
    """Median seconds of a draft step at a short context; with `target`, after a forward of it each
    time, which pushes the draft model's weights out of the processor's cache, as in decoding."""
    with model.new_sequence() as sequence, (target or model).new_sequence() as other:
        model.forward([Run(sequence, [1] * 32, 1)])
        for size in DRAFT_FIXED_SHAPES:  # the first forward of a size compiles
            model.forward([Run(sequence, [1] * size, 1, stepwise=True)])
        times = []
        for _ in range(steps):
            if target is not None:
                target.forward([Run(other, [1, 1], 2, stepwise=True)])
            before = perf_counter()
            model.forward([Run(sequence, [1], 1, stepwise=True)])
            times.append(perf_counter() - before)
    return statistics.median(times)


def learn_costs(
    model: Model, costs: Costs, *, unpadded: bool = False, repeats: int = 3
) -> Generator[None]:
    """Measure a cost table: forwards of WARM_UP_SIZES tokens at a short context and at a long one,
    which is made up; interleaved against drift. Other work may be done wherever it yields. With
    `unpadded` a single token is run as the guard runs it."""

    def timed(sequence: Sequence, size: int) -> float:
        run = Run(sequence, [1] * size, size, True, unpadded and size == 1)
        # Both run on the first instance, which in decoding rarely sees another size before.
        for _ in range(2 if size in (1, WARM_UP_SIZES[-1]) else 1):
            before = perf_counter()
            model.forward([run])
            seconds = perf_counter() - before
            sequence.truncate(sequence.length - size)
        return seconds

    short: dict[int, float] = {}
    long: dict[int, float] = {}
    with model.new_sequence() as sequence:
        model.skip(sequence, SHORT)
        for _ in range(repeats + 1):  # the first ones compile
            for size in WARM_UP_SIZES:
                short[size] = min(timed(sequence, size), short.get(size, math.inf))
                yield
        with suppress(CacheFull):  # a small cache: its contexts are short
            model.skip(sequence, LONG - SHORT)
            for size in GROWTH_SIZES:
                long[size] = min(timed(sequence, size) for _ in range(repeats))
                yield
    # Every size grows alike; a measured growth beyond MOST_GROWTH was something else running.
    growths = [seconds / short[size] - 1 for size, seconds in long.items()] or [0.0]
    growth = min(max(statistics.median(growths) / (LONG - SHORT), 0.0), MOST_GROWTH)
    costs.learn({size: one / (1 + growth * SHORT) for size, one in short.items()}, growth)
