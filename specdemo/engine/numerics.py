"""Which plugin settings make a target's logits independent of how many tokens run together, found by measuring.

Speculative decoding is lossless in practice only where verifying n tokens gives the logits that n single steps would
have given. docs/numerics.md has the measurements behind the candidates.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from .errors import CacheFull, ModelError
from .policy import Costs
from .model import ModelSettings, Run, Sequence
from .open import Model, open_model

LARGE_WEIGHTS = 1_000_000_000
"""Bytes of weights from which the KV cache is kept in f16: half the memory, and the time is the weights' anyway."""

LANES = (1, 2, 3, 4, 6, 8, 12, 16)
DRAFT_LANES = (1, 2, 4)
"""What a draft reads between its steps: the last token, and few others."""
LANE_WEIGHTS = range(20_000_000, 500_000_000)
"""Bytes of weights for which a model is compiled once for each of LANES: a larger one's forwards take so long that a
change of their size does not matter, and its memory does; of a smaller one nothing matters but the time to load it."""

CHECKED_SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
LEAST_USEFUL = 8

GUARD_TIMES, LEAST_GUARD, MOST_GUARD = 16, 1e-3, 0.02

WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
GROWTH_SIZES = (1, 2, 4, 8, 16)
MOST_GROWTH = 1 / 500
"""Of a forward's time, for each token of context: a measured growth beyond it was something else's doing."""

SHORT, LONG = 64, 576
"""Tokens of context at which forwards are timed at the start."""

_CONTEXT = 40
_F32 = ("INFERENCE_PRECISION_HINT", "f32")
_NO_DYNAMIC = ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")


@dataclass(frozen=True, slots=True)
class Invariance:
    """What was found on this processor: forwards of 2 to `tokens` tokens give bitwise equal logits (0: not even 2 and
    3 do), and a one-token forward differs from them by at most `one_token` logits."""

    tokens: int
    one_token: float

    @property
    def guard(self) -> float | None:
        """The margin, in logits, above which a one-token forward's choice is taken for everybody's: GUARD_TIMES the
        largest difference seen. None where that is so much that forwards would be repeated all the time."""
        guard = max(GUARD_TIMES * self.one_token, LEAST_GUARD)
        return guard if self.tokens and guard <= MOST_GUARD else None

    def __str__(self) -> str:
        if not self.tokens:
            return "logits depend on how many tokens run together"
        return (
            f"forwards of 2 to {self.tokens} tokens give bitwise equal logits; "
            f"a one-token forward differs by up to {self.one_token:.1g}"
        )


def exact_candidates(xml: Path, kv_cache: str = "auto") -> list[tuple[tuple[str, str], ...]]:
    """Plugin properties to try for exact numerics, the fastest first. Any `kv_cache` but "auto" is taken as asked for:
    whether logits are invariant with it is what the measurement is for."""
    if kv_cache == "auto":
        kv_cache = "f16" if xml.with_suffix(".bin").stat().st_size >= LARGE_WEIGHTS else "f32"
    cache = ("KV_CACHE_PRECISION", kv_cache)
    if kv_cache == "u8":  # its scales depend on what else is in a block, whatever is done about the activations
        return [(_F32, cache)]
    return [(_F32, cache), (_F32, cache, _NO_DYNAMIC)]


def fast_properties(kv_cache: str = "auto") -> tuple[tuple[str, str], ...]:
    """The plugin's own choice, but for a precision of the KV cache that was asked for."""
    return () if kv_cache == "auto" else (("KV_CACHE_PRECISION", kv_cache),)


def _lanes(xml: Path, device: str, lanes: tuple[int, ...] = LANES) -> tuple[int, ...]:
    """What a model's forwards are kept apart by: only where preparing the layers anew takes a time that counts."""
    return lanes if device == "CPU" and xml.with_suffix(".bin").stat().st_size in LANE_WEIGHTS else ()


def exact_model(xml: Path, device: str, core: ov.Core, kv_cache: str = "auto") -> tuple[Model, Invariance]:
    """Compile a target in the first candidate setting that is invariant here; in the last one if none is.

    The candidates are the CPU's settings. A device that refuses them all runs in its own. Raises ModelError.
    """
    candidates = exact_candidates(xml, kv_cache)
    if device != "CPU":
        candidates.append(fast_properties(kv_cache))
    model, found = None, Invariance(0, 0.0)
    for properties in candidates:
        model = None  # before the next is made: two at once may not fit into memory
        try:
            model = open_model(xml, ModelSettings(device, properties, lanes=_lanes(xml, device)), core=core)
        except ModelError:
            if properties is candidates[-1] or device == "CPU":
                raise
            continue
        found = measure_invariance(model)
        if found.tokens >= LEAST_USEFUL:
            break
    return model, found


def fast_model(xml: Path, device: str, core: ov.Core, kv_cache: str = "auto") -> Model:
    """Compile a target in the plugin's own setting. Raises ModelError."""
    settings = ModelSettings(device, fast_properties(kv_cache), lanes=_lanes(xml, device))
    return open_model(xml, settings, core=core)


def measure_invariance(model: Model) -> Invariance:
    """Run the same made-up text in pieces of every checked size and compare the logits bitwise. A second or so."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, model.vocabulary_size, _CONTEXT + max(CHECKED_SIZES)).tolist()
    with model.new_sequence() as base:
        model.forward([Run(base, text[:_CONTEXT], 1)])
        reference = _logits_in_pieces(model, base, text[_CONTEXT:], 2, total=16)
        one = _logits_in_pieces(model, base, text[_CONTEXT:], 1, total=6)
        reached = 0
        for size in CHECKED_SIZES[1:]:
            # Forwards of `size` rows must agree with forwards of two; of large ones, only the first rows are compared.
            got = _logits_in_pieces(model, base, text[_CONTEXT:], size, total=max(size, 16))[:16]
            if not np.array_equal(got, reference[: len(got)]):
                break
            reached = size
        return Invariance(reached, float(np.abs(one - reference[:6]).max()))


def _logits_in_pieces(model: Model, base, text: list[int], size: int, total: int) -> np.ndarray:
    """Logits [total, vocabulary] of `text` after `base`, run `size` tokens a forward."""
    rows = []
    with model.fork(base, base.length) as sequence:
        for begin in range(0, total - total % size, size):
            piece = text[begin : begin + size]
            rows.append(model.forward([Run(sequence, piece, len(piece), stepwise=True)])[0].rows.copy())
    return np.concatenate(rows)


def merging_is_exact(model: Model, tokens: int) -> bool:
    """Whether sequences that share a forward of `tokens` tokens in all get bitwise the logits that each gets alone.

    One of them is a prompt that starts in that forward, the others are verified at different contexts.
    """
    rng = np.random.default_rng(1)
    sizes = [2, 3, 5, tokens - 10] if tokens >= 16 else [2, 2, 2, 2]
    contexts = [_CONTEXT, _CONTEXT // 2 + 1, 2 * _CONTEXT, 0]
    texts = [rng.integers(0, model.vocabulary_size, context).tolist() for context in contexts]
    pieces = [rng.integers(0, model.vocabulary_size, size).tolist() for size in sizes]
    rows = [1, *sizes[1:3], 1]
    bases = [model.new_sequence(min_tokens=2) for _ in texts]
    for base, text in zip(bases, texts, strict=True):
        if text:
            model.forward([Run(base, text, 0)])

    def runs() -> list[Run]:
        forks = [model.fork(base, base.length) for base in bases]
        return [Run(fork, piece, n) for fork, piece, n in zip(forks, pieces, rows, strict=True)]

    alone = runs()
    together = runs()
    separate = [model.forward([run])[0].rows.copy() for run in alone]
    merged = [logits.rows.copy() for logits in model.forward(together)]
    for sequence in [*bases, *(run.sequence for run in [*alone, *together])]:
        sequence.release()
    return all(np.array_equal(one, other) for one, other in zip(separate, merged, strict=True))


def fastest_model(
    xml: Path,
    device: str,
    core: ov.Core,
    kv_cache: str = "auto",
    *,
    head_tokens: np.ndarray | None = None,
    vocabulary: int | None = None,
) -> Model:
    """Compile a draft in the setting whose single step is fastest here; exactness does not matter for a draft."""
    best: tuple[float, Model] | None = None
    for properties in (fast_properties(kv_cache), exact_candidates(xml, kv_cache)[0]):
        try:
            settings = ModelSettings(device, properties, lanes=_lanes(xml, device, DRAFT_LANES))
            model = open_model(xml, settings, head_tokens=head_tokens, vocabulary=vocabulary, core=core)
        except ModelError:
            if best is None:
                raise
            continue  # the second setting is the CPU's: others may refuse it
        seconds = step_seconds(model)
        if best is None or seconds < best[0]:
            best = seconds, model
    return best[1]


def step_seconds(model: Model, target: Model | None = None, steps: int = 9) -> float:
    """Median seconds of a draft's step at a short context; with `target`, as they come in decoding: after a forward of the
    target, whose weights have pushed the draft's out of the processor's cache."""
    with model.new_sequence() as sequence, (target or model).new_sequence() as other:
        model.forward([Run(sequence, [1] * 32, 1)])
        for size in DRAFT_LANES:  # the first forward of a size compiles
            model.forward([Run(sequence, [1] * size, 1, stepwise=True)])
        times = []
        for _ in range(steps):
            if target is not None:
                target.forward([Run(other, [1, 1], 2, stepwise=True)])
            before = perf_counter()
            model.forward([Run(sequence, [1], 1, stepwise=True)])
            times.append(perf_counter() - before)
    return statistics.median(times)


def learn_costs(model: Model, costs: Costs, *, min_tokens: int, lone: bool = False, repeats: int = 3) -> None:
    """Start a cost table from forwards of WARM_UP_SIZES tokens at a short context and at a long one, which is made up;
    interleaved against drift. A single token counts as `min_tokens`, or with `lone` as itself."""

    def counted(size: int) -> int:
        return size if lone else max(size, min_tokens)

    with model.new_sequence(min_tokens=min_tokens) as sequence:
        model.skip(sequence, SHORT)
        short = {
            size: [_verify_seconds(model, sequence, size, lone)] for size in WARM_UP_SIZES
        }  # the first ones compile
        for _ in range(repeats):
            for size in WARM_UP_SIZES:
                short[size].append(_verify_seconds(model, sequence, size, lone))
        try:
            model.skip(sequence, LONG - SHORT)
            long = {
                size: min(_verify_seconds(model, sequence, size, lone) for _ in range(repeats)) for size in GROWTH_SIZES
            }
        except CacheFull:  # a small cache of fixed size: its contexts are short
            long = {}
    growth = {size: (seconds / min(short[size]) - 1) / (LONG - SHORT) for size, seconds in long.items()}
    if growth:
        # One size's growth is like another's; where it measures far from it, something else was running.
        usual = min(max(statistics.median(growth.values()), 0.0), MOST_GROWTH)
        for size, share in growth.items():
            costs.grew(counted(size), min(max(share, usual / 2), usual * 2))
    for size, times in short.items():
        costs.saw_verify(counted(size), min(times), SHORT)


def _verify_seconds(model: Model, sequence: Sequence, size: int, lone: bool) -> float:
    before = perf_counter()
    model.forward([Run(sequence, [1] * size, size, stepwise=True, lone=lone and size == 1)])
    seconds = perf_counter() - before
    sequence.truncate(sequence.length - size)
    return seconds
