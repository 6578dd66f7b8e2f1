"""Which plugin settings make a model's logits independent of how many tokens run together, found by
measuring.

Speculative decoding is lossless in practice only where verifying n tokens gives the logits that n
single steps would have given. docs/reference/numerics.md has the measurements behind the
candidates.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from .cache import Sequence
from .checkpoint import TORCH, Checkpoint
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
    xml: Path | Checkpoint, kv_cache: str = "auto", device: str = "CPU"
) -> list[Properties]:
    """Plugin properties to try for exact numerics, the best first. Any `kv_cache` but "auto" is
    taken as asked for: whether logits are invariant with it is what the measurement is for."""
    if isinstance(xml, Checkpoint):
        from . import torch_model

        return [torch_model.properties(device, exact=True)]

    def candidate(precision: str, *others: tuple[str, str]) -> Properties:
        return (_F32, ("KV_CACHE_PRECISION", precision), *others)

    if kv_cache == "u8":
        # Its scales depend on what else is in a block, whatever is done about the activations.
        return [candidate("u8")]
    if kv_cache != "auto":
        return [candidate(kv_cache), candidate(kv_cache, _NO_DYNAMIC)]
    if xml.with_suffix(".bin").stat().st_size >= LARGE_WEIGHTS:
        return [candidate("f16"), candidate("f16", _NO_DYNAMIC)]
    return [candidate("f16"), candidate("f32"), candidate("f32", _NO_DYNAMIC)]


def fast_properties(kv_cache: str = "auto", device: str = "CPU") -> tuple[tuple[str, str], ...]:
    """The plugin's own choice, but for a precision of the KV cache that was asked for."""
    if device.startswith(TORCH):
        from . import torch_model

        return torch_model.properties(device, exact=False)
    return () if kv_cache == "auto" else (("KV_CACHE_PRECISION", kv_cache),)


def _fixed_shapes(xml: Path, device: str, sizes: tuple[int, ...] = FIXED_SHAPES) -> tuple[int, ...]:
    """The fixed shapes that a model is compiled for: only where a change of shape takes a time that
    counts."""
    worth_it = device == "CPU" and xml.with_suffix(".bin").stat().st_size in FIXED_SHAPE_WEIGHTS
    return sizes if worth_it else ()


def exact_model(
    xml: Path,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    known: TargetProfile | None = None,
) -> tuple[Model, Invariance]:
    """Compile a target model in the first candidate setting that is invariant here; in the last one
    if none is. With `known` in the setting that was found before, if it was for as many threads.

    Of a cache in f16 where one in f32 would do, single tokens have to agree as well: they differ
    more than a guard can make up for where they do not. The candidates are the CPU's settings. A
    device that refuses them all runs in its own. Raises ModelError.
    """
    candidates = exact_candidates(xml, kv_cache, device)
    if device != "CPU" and not isinstance(xml, Checkpoint):
        candidates.append(fast_properties(kv_cache))
    if known is not None and known.invariance is not None:
        candidates.insert(0, known.properties)
    model = found = None
    for properties in candidates:
        model = None  # before the next is made: two at once may not fit into memory
        settings = ModelSettings(device, properties, fixed_shapes=_fixed_shapes(xml, device))
        try:
            model = open_model(xml, settings, core=core)
        except ModelError:
            if properties is candidates[-1] or device == "CPU":
                raise
            continue
        if known is not None and known.invariance is not None:
            found, known = known.invariance, None
            if found.threads == model.threads:
                model.least_tokens = found.least_tokens
                break
        found = measure_invariance(model)
        spare = len(candidates) > 2 and dict(properties).get("KV_CACHE_PRECISION") == "f16"
        if found.tokens >= LEAST_USEFUL and not (spare and found.one_token and not found.guard):
            break
    return model, found


def fast_model(xml: Path, device: str, core: ov.Core, kv_cache: str = "auto") -> Model:
    """Compile a target model in the plugin's own setting. Raises ModelError."""
    settings = ModelSettings(
        device, fast_properties(kv_cache, device), fixed_shapes=_fixed_shapes(xml, device)
    )
    return open_model(xml, settings, core=core)


def fastest_model(
    xml: Path,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    *,
    head_tokens: np.ndarray | None = None,
    vocabulary: int | None = None,
    known: Properties | None = None,
) -> Model:
    """Compile a draft model in the setting whose step is fastest here, or in the one `known` to be;
    exactness does not matter for a draft."""
    settings = [fast_properties(kv_cache, device), exact_candidates(xml, kv_cache, device)[0]]
    best: tuple[float, Model] | None = None
    for properties in settings if known is None else [known]:
        shapes = _fixed_shapes(xml, device, DRAFT_FIXED_SHAPES)
        wanted = ModelSettings(device, properties, fixed_shapes=shapes)
        try:
            model = open_model(
                xml, wanted, head_tokens=head_tokens, vocabulary=vocabulary, core=core
            )
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
    model.least_tokens = 1
    with model.new_sequence() as base:
        model.forward([Run(base, text[:_CONTEXT], 1)])
        rest = text[_CONTEXT:]
        reference = _logits_in_pieces(model, base, rest, _REFERENCE, total=16)
        one = _logits_in_pieces(model, base, rest, 1, total=8)
        reached = 0
        for size in sizes:
            # Of larger forwards only the first rows are compared.
            got = _logits_in_pieces(model, base, rest, size, total=max(size, 16))[:16]
            if not np.array_equal(got, reference[: len(got)]):
                break
            reached = size
    found = Invariance(reached, float(np.abs(one - reference[:8]).max()), threads)
    model.least_tokens = found.least_tokens
    merging = reached > 0 and merging_is_exact(model, reached)
    return Invariance(reached, found.one_token, threads, merging)


def _logits_in_pieces(
    model: Model, base: Sequence, text: list[int], size: int, total: int
) -> np.ndarray:
    """Logits [total, vocabulary] of `text` after `base`, run `size` tokens a forward."""
    rows = []
    with model.fork(base, base.length) as sequence:
        for begin in range(0, total - total % size, size):
            piece = text[begin : begin + size]
            run = Run(sequence, piece, len(piece), stepwise=True)
            rows.append(model.forward([run])[0].rows.copy())
    return np.concatenate(rows)


def merging_is_exact(model: Model, tokens: int) -> bool:
    """Whether sequences that share a forward of `tokens` tokens in all get bitwise the logits that
    each gets alone.

    One of them is a prompt that starts in that forward, the others are verified at different
    contexts, one of them a single token.
    """
    rng = np.random.default_rng(1)
    sizes = [2, 1, 5, tokens - 8] if tokens >= 16 else [2, 1, 2, 2]
    contexts = [_CONTEXT, _CONTEXT // 2 + 1, 2 * _CONTEXT, 0]
    bases = [model.new_sequence() for _ in contexts]
    for base, context in zip(bases, contexts, strict=True):
        if context:
            text = rng.integers(0, model.vocabulary_size, context).tolist()
            model.forward([Run(base, text, 0)])
    pieces = [rng.integers(0, model.vocabulary_size, size).tolist() for size in sizes]

    def runs() -> list[Run]:
        forks = [model.fork(base, base.length) for base in bases]
        parts = zip(forks, pieces, sizes, strict=True)
        return [
            Run(fork, piece, size if fork.length else 1, bool(fork.length))
            for fork, piece, size in parts
        ]

    alone, together = runs(), runs()
    separate = [model.forward([run])[0].rows.copy() for run in alone]
    merged = [logits.rows.copy() for logits in model.forward(together)]
    for sequence in [*bases, *(run.sequence for run in [*alone, *together])]:
        sequence.release()
    return all(np.array_equal(one, other) for one, other in zip(separate, merged, strict=True))


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

    with model.new_sequence() as sequence:
        model.skip(sequence, SHORT)
        short: dict[int, list[float]] = {size: [] for size in WARM_UP_SIZES}
        for _ in range(repeats + 1):  # the first ones compile
            for size in WARM_UP_SIZES:
                short[size].append(timed(sequence, size))
                yield
        long: dict[int, float] = {}
        try:
            model.skip(sequence, LONG - SHORT)
            for size in GROWTH_SIZES:
                long[size] = min(timed(sequence, size) for _ in range(repeats))
                yield
        except CacheFull:  # a small cache: its contexts are short
            long = {}
    growth = 0.0
    if long:
        # Every size grows alike; a measured growth beyond MOST_GROWTH was something else running.
        growths = (seconds / min(short[size]) - 1 for size, seconds in long.items())
        growth = min(max(statistics.median(growths) / (LONG - SHORT), 0.0), MOST_GROWTH)
    costs.learn({size: min(times) / (1 + growth * SHORT) for size, times in short.items()}, growth)
