"""Finds plugin settings with which logits do not depend on how many tokens run together.
Speculative decoding is lossless in practice only with them (docs/reference/numerics.md)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from . import graph
from .cache import Sequence
from .checkpoint import Checkpoint, PairFiles, weights_size
from .head import fractions
from .messages import PREFILL_CHUNK, Model, ModelSettings, Run
from .model import open_model
from .policy import Costs
from .profile import Invariance, Properties, TargetProfile

LARGE_WEIGHTS = 1_000_000_000
"""Bytes of weights from which the KV cache is always f16: half the memory, for little time."""

FIXED_SHAPES, FINE_SHAPES = (6, 1, 3, 12), (4, 1, 2, 12)
"""Numbers of tokens, the most useful first (docs/results/draft-policy.md)."""

STEEP = 1.3
"""FINE_SHAPES are for machines on which 6 tokens are known to cost more than this of one."""

FIXED_SHAPE_WEIGHTS = range(20_000_000, 500_000_000)
"""Bytes of weights for which a target model gets fixed shapes. For larger ones a change of size
costs little beside a forward; for smaller ones forwards cost little."""

CHECKED_SIZES = {2, 3, 5, 6, 8, 12, 16, 32, 64}
LEAST_USEFUL, CHECK_SECONDS = 8, 8.0
"""The check goes on to larger sizes than LEAST_USEFUL until it has taken CHECK_SECONDS: with 3
billion weights and no VNNI the largest two and their merging took 17 of its 26 s."""

WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
FAR = 512
"""Tokens of the context in which the cost of attention is measured; small models hold 1,024."""

_CONTEXT = 40
_REFERENCE = 4
_F32 = ("INFERENCE_PRECISION_HINT", "f32")
_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_NO_DYNAMIC = (_GROUP, "0")
ACTIVATIONS = 64
"""Activations that share a scale. With the plugin's 32 forwards took 3 to 10 % longer (Xeon)."""


def candidates(
    source: Path | Checkpoint, device: str, kv_cache: str, exact: bool, core: ov.Core
) -> list[Properties]:
    """The properties to try for exact numerics, the best first; for fast numerics, the plugin's own
    choice. A `kv_cache` other than "auto" is used as it is. Raises ModelError."""
    if isinstance(source, Checkpoint):
        from . import torch_model

        return [torch_model.properties(device, exact=exact)]
    if not exact:
        return [() if kv_cache == "auto" else (("KV_CACHE_PRECISION", kv_cache),)]
    precisions = ["f16"] if weights_size(source) >= LARGE_WEIGHTS else ["f16", "f32"]
    if kv_cache != "auto":
        precisions = [kv_cache]
    caches = [("KV_CACHE_PRECISION", one) for one in precisions]
    # Where fewer weights than activations share a scale, the plugin unpacks them to floats.
    fits = graph.weight_group(graph.read_decoder(core, source)) >= ACTIVATIONS
    dynamic = ((_GROUP, str(ACTIVATIONS)),) if fits else ()
    found = [(_F32, cache, *dynamic) for cache in caches]
    # Scales of u8 depend on the other tokens in a block, with and without _NO_DYNAMIC.
    return found if kv_cache == "u8" else [*found, (_F32, caches[-1], _NO_DYNAMIC)]


def open_target(
    files: PairFiles, core: ov.Core, exact: bool = True, known: TargetProfile | None = None
) -> tuple[Model, Invariance]:
    """Compile a target model; gives it and its invariance. Fast numerics take the plugin's own
    setting. `exact` ones take the `known` setting, else the first candidate in which forwards of
    LEAST_USEFUL tokens agree, and single tokens agree or have a guard, else the last candidate.
    Raises ModelError."""
    source = files.target
    shapes = ()
    if isinstance(source, Path) and weights_size(source) in FIXED_SHAPE_WEIGHTS:
        costs = known.costs if known else {}
        shapes = FINE_SHAPES if costs.get(6, 0) > STEEP * costs.get(1, 0) else FIXED_SHAPES
    hidden = fractions(files.head, core) if files.head else None
    settings = ModelSettings(files.device, (), shapes, hidden)
    if exact and known is not None:
        tried, found = [known.properties], known.invariance
    else:
        tried = candidates(source, files.device, files.kv_cache, exact, core)
        found = Invariance(0, 0.0, 0, merging=True)
    for properties in tried:
        model = None  # before the next is made: two at once may not fit into memory
        model = open_model(source, replace(settings, properties=properties), core)
        if exact and known is None:
            found = measure_invariance(model)
            if found.tokens >= LEAST_USEFUL and (found.guard or not found.one_token):
                break
    return model, found


def measure_invariance(model: Model) -> Invariance:
    """Run the same made-up text in pieces of one token, of each checked size, and of as many tokens
    as there are threads, then in a forward of several requests, and compare the logits bitwise.
    Sets `model.least_tokens`. Takes a second, with billions of weights about ten."""
    began = perf_counter()
    most = max(CHECKED_SIZES)
    sizes = sorted(CHECKED_SIZES | ({model.threads} & set(range(2, most))))
    text = np.random.default_rng(0).integers(0, model.vocabulary_size, _CONTEXT + most).tolist()
    context, rest = text[:_CONTEXT], text[_CONTEXT:]
    model.least_tokens = 1
    with ExitStack() as held:
        base = held.enter_context(model.new_sequence())
        model.forward([Run(base, context, 1)])

        def in_pieces(size: int, total: int) -> np.ndarray:
            """Logits of the rest, `size` tokens a forward: [total - total % size, vocabulary]."""
            rows = []
            with model.fork(base, _CONTEXT) as sequence:
                for begin in range(0, total - total % size, size):
                    run = Run(sequence, rest[begin : begin + size], size, stepwise=True)
                    rows.append(model.forward([run])[0].rows.copy())
            return np.concatenate(rows)

        reference, reached = in_pieces(_REFERENCE, LEAST_USEFUL), 0
        one_token = float(np.abs(in_pieces(1, LEAST_USEFUL) - reference).max())
        for size in sizes:
            if reached >= LEAST_USEFUL and perf_counter() - began > CHECK_SECONDS:
                break
            # Of larger forwards only the first rows are compared.
            got = in_pieces(size, max(size, LEAST_USEFUL))[:LEAST_USEFUL]
            if not np.array_equal(got, reference[: len(got)]):
                break
            reached = size
        found = Invariance(reached, one_token, model.threads)
        model.least_tokens = found.least_tokens
        if not reached:
            return found
        # Verifications of several requests, and a prompt that begins beside them.
        runs = []
        for length, size in ((_CONTEXT, 2), (21, 1), (9, 5), (0, max(reached - 8, 2))):
            fork = held.enter_context(model.fork(base, length))
            runs.append(Run(fork, rest[:size], size if length else 1, stepwise=bool(length)))
        together = [logits.rows.copy() for logits in model.forward(runs)]
        for run in runs:
            run.sequence.truncate(run.sequence.length - len(run.tokens))
        alone = [model.forward([run])[0].rows.copy() for run in runs]
        return replace(found, merging=all(map(np.array_equal, together, alone)))


def step_seconds(model: Model, target: Model) -> float:
    """Median seconds of a draft step at a short context. A forward of `target` before each step
    evicts the draft model's weights from the processor's cache, as in decoding."""
    times = []
    with model.new_sequence() as sequence, target.new_sequence() as other:
        for tokens in ([1] * 32, *[[1]] * 6):
            target.forward([Run(other, [1, 1], 2, stepwise=True)])
            before = perf_counter()
            model.forward([Run(sequence, tokens, 1, stepwise=True)])
            times.append(perf_counter() - before)
    return statistics.median(times[2:])  # the first forward of a size compiles


def learn_costs(model: Model, costs: Costs, unpadded: bool) -> Generator[None]:
    """Measure a cost table with forwards of WARM_UP_SIZES tokens, interleaved against drift; with
    fixed shapes also what a context of FAR tokens adds to a row. With `unpadded` a single token
    runs unpadded, as with the guard."""
    several = [size for size in model.settings.fixed_shapes if size > 1] or [0]
    few, many = min(several), max(several)
    with model.new_sequence() as sequence:
        near = yield from _fastest(model, sequence, WARM_UP_SIZES, unpadded)
        attention = 0.0
        if few < many:
            for _ in range(FAR // PREFILL_CHUNK):
                model.forward([Run(sequence, [1] * PREFILL_CHUNK, 1)])
                yield
            far = yield from _fastest(model, sequence, (few, many))
            added = far[many] - near[many] - far[few] + near[few]
            attention = max(added, 0.0) / (many - few) / FAR
    costs.learn(near, attention)


def _fastest(
    model: Model, sequence: Sequence, sizes: tuple[int, ...], unpadded: bool = False
) -> Generator[None, None, dict[int, float]]:
    """The least seconds of forwards of these sizes after the tokens of `sequence`."""
    seconds, length = dict.fromkeys(sizes, math.inf), sequence.length
    for _ in range(3):  # the first ones compile
        for size in sizes:
            run = Run(sequence, [1] * size, size, True, unpadded and size == 1)
            for _ in range(2):  # in decoding an instance rarely changes its size
                before = perf_counter()
                model.forward([run])
                seconds[size] = min(perf_counter() - before, seconds[size])
                sequence.truncate(length)
            yield  # a request waits for a step: with billions of weights two forwards are enough
    return seconds
