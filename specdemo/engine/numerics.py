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

from .model import ModelSettings, PagedModel, Run

LARGE_WEIGHTS = 1_000_000_000
"""Bytes of weights from which the KV cache is kept in f16: half the memory, and the time is the weights' anyway."""

CHECKED_SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
LEAST_USEFUL = 8

_CONTEXT = 40
_F32 = ("INFERENCE_PRECISION_HINT", "f32")
_NO_DYNAMIC = ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")


@dataclass(frozen=True, slots=True)
class Invariance:
    """What was found on this processor: forwards of 2 to `tokens` tokens give bitwise equal logits (0: not even 2 and
    3 do), and a one-token forward differs from them by at most `one_token` logits."""

    tokens: int
    one_token: float

    def __str__(self) -> str:
        if not self.tokens:
            return "logits depend on how many tokens run together"
        return (
            f"forwards of 2 to {self.tokens} tokens give bitwise equal logits; "
            f"a one-token forward differs by up to {self.one_token:.1g}"
        )


def exact_candidates(xml: Path) -> list[tuple[tuple[str, str], ...]]:
    """Plugin properties to try for exact numerics, the fastest first."""
    large = xml.with_suffix(".bin").stat().st_size >= LARGE_WEIGHTS
    cache = ("KV_CACHE_PRECISION", "f16" if large else "f32")
    return [(_F32, cache), (_F32, cache, _NO_DYNAMIC)]


def exact_model(xml: Path, device: str, core: ov.Core) -> tuple[PagedModel, Invariance]:
    """Compile a target in the first candidate setting that is invariant here; in the last one if none is."""
    for properties in exact_candidates(xml):
        model = PagedModel(xml, ModelSettings(device, properties), core=core)
        found = measure_invariance(model)
        if found.tokens >= LEAST_USEFUL:
            break
    return model, found


def measure_invariance(model: PagedModel) -> Invariance:
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


def _logits_in_pieces(model: PagedModel, base, text: list[int], size: int, total: int) -> np.ndarray:
    """Logits [total, vocabulary] of `text` after `base`, run `size` tokens a forward."""
    rows = []
    with model.fork(base, base.length) as sequence:
        for begin in range(0, total - total % size, size):
            piece = text[begin : begin + size]
            rows.append(model.forward([Run(sequence, piece, len(piece))])[0].rows.copy())
    return np.concatenate(rows)


def fastest_model(
    xml: Path, device: str, core: ov.Core, *, head_tokens: np.ndarray | None = None, vocabulary: int | None = None
) -> PagedModel:
    """Compile a draft in the setting whose single step is fastest here; exactness does not matter for a draft."""
    candidates = [(), *exact_candidates(xml)[:1]]
    models = [
        PagedModel(xml, ModelSettings(device, properties), head_tokens=head_tokens, vocabulary=vocabulary, core=core)
        for properties in candidates
    ]
    seconds = [step_seconds(model) for model in models]
    return models[seconds.index(min(seconds))]


def step_seconds(model: PagedModel, steps: int = 12) -> float:
    """Median seconds of a one-token forward at a short context."""
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * 32, 1)])
        times = []
        for _ in range(steps):
            before = perf_counter()
            model.forward([Run(sequence, [1], 1)])
            times.append(perf_counter() - before)
    return statistics.median(times)


def measure_costs(
    model: PagedModel, sizes: tuple[int, ...], *, min_tokens: int, repeats: int = 3
) -> list[tuple[int, float]]:
    """(tokens, seconds) of forwards at a short context, to start a cost table from; interleaved against drift."""
    measured = []
    with model.new_sequence(min_tokens=min_tokens) as sequence:
        model.forward([Run(sequence, [1] * 64, 1)])
        for _ in range(repeats):
            for size in sizes:
                before = perf_counter()
                model.forward([Run(sequence, [1] * size, size)])
                measured.append((max(size, min_tokens), perf_counter() - before))
                sequence.truncate(64)
    return measured
