"""Finds plugin settings with which logits do not depend on how many tokens run together, and
measures how far they do. Speculative decoding is lossless in practice only with them
(docs/reference/numerics.md)."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import TypeVar

import numpy as np
import openvino as ov

from ..cache import KVSequence
from ..faults import ModelError
from ..forwards import PREFILL_CHUNK, Model, ModelSettings, Run, Taps
from ..pair_files import Checkpoint, PairFiles, weights_size
from ..profile import Invariance, ModelProfile, Properties
from . import graph, kernels
from .draft_head import fractions
from .paged import CACHE, open_model

Opened = TypeVar("Opened")

KERNEL_WEIGHTS = 20_000_000
"""Bytes of weights from which `kernels` are used: their code is compiled in a second."""

MIN_GROUP, MAX_GROUP = 32, 128  # activations that share a scale; 32 is the plugin's number

CHECKED_SIZES = {2, 3, 5, 6, 8, 12, 16, 32, 64}  # tokens of a forward
REFERENCE_SIZE = 4  # tokens of the forwards with which those of other sizes are compared

USEFUL_TOKENS, CHECK_SECONDS = 8, 2.0
"""The check before the first token ends at USEFUL_TOKENS if each thread has used CHECK_SECONDS of
its processor by then, whatever else the machine does. The rest comes in a quiet moment: with 3
billion weights and no VNNI it takes 17 of 24 s."""

CONTEXT = 40  # tokens before those whose logits are compared
WHOLE = (0, PREFILL_CHUNK)  # where the forwards begin that read a chunk, and where the last ends
CHUNKS = (0, 2, 9, 41, PREFILL_CHUNK)
DECODED = (0, 1, 2, 5, 13, 29, 45, PREFILL_CHUNK)  # of forwards that decode as many tokens

VERIFICATIONS = ((CONTEXT, 2), (21, 1), (9, 5))
"""Of the requests that share a forward: tokens of context, and tokens verified after it."""


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
    cache = "KV_CACHE_PRECISION", "f16" if kv_cache == "auto" else kv_cache
    group = kernels.GROUP, str(activation_group(graph.read_ir(core, source)))
    tried: list[Properties] = [(kernels.F32, cache, group)]
    # Scales of u8 depend on the other tokens in a block, with and without dynamic quantization.
    if kv_cache != "u8":
        tried.append((kernels.F32, cache, (kernels.GROUP, "0")))
    if not uses_kernels(source) or cache != CACHE:
        return tried
    own = kernels.F32, cache, (kernels.GROUP, "0"), kernels.forward_by(kernels.KERNELS)
    otherwise = kernels.forward_by(kernels.PLUGIN)
    return [own, *((*properties, otherwise) for properties in tried)]


def uses_kernels(source: Path | Checkpoint) -> bool:
    """Whether `kernels` compute a model with exact numerics here, if they can. Not timed: the
    answers of a target must not depend on a near tie."""
    ir = isinstance(source, Path)
    return ir and weights_size(source) >= KERNEL_WEIGHTS and kernels.available()


def open_first(open_with: Callable[[Properties], Opened], tried: list[Properties]) -> Opened:
    """Open a model with the first of these properties that are not refused. Raises ModelError."""
    for properties in tried[:-1]:
        with suppress(ModelError):
            return open_with(properties)
    return open_with(tried[-1])


def activation_group(model: ov.Model) -> int:
    """The number of activations that share a scale: the most that divide the columns of every
    compressed matrix of `model` and are no more than its weights that share one. Larger groups are
    faster; where weights share fewer, the plugin unpacks them to floats, and beyond MAX_GROUP too
    much is rounded. Not timed: the answers of a target must not depend on a near tie."""
    compressed = (ov.Type.u4, ov.Type.i4, ov.Type.u8, ov.Type.i8)
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    shapes = [constant.shape for constant in constants if constant.get_element_type() in compressed]
    # [rows, weights] or [rows, groups, weights]; zero points have one column.
    shared = [shape[-1] for shape in shapes if len(shape) > 1 and shape[-1] > 1]
    return max(math.gcd(MAX_GROUP, *shared), MIN_GROUP)


def open_target(
    files: PairFiles, core: ov.Core, exact: bool = True, known: ModelProfile | None = None
) -> tuple[Model, Invariance]:
    """Compile a target model. Gives it, with the padding that its invariance demands, and its
    invariance. Fast numerics take the plugin's own setting. `exact` ones take the `known` setting,
    else the first candidate in which forwards of USEFUL_TOKENS agree, else the last one. One that
    the plugin refuses is passed over if another follows. Raises ModelError."""
    source, hidden, layers = files.target, None, files.head_layers
    if files.head is not None:
        hidden = Taps(layers, () if layers else fractions(files.head, core))
    given = None if exact else Invariance(merging=True, chunks=True, decoded=True)
    if exact and known is not None:
        tried, given = [known.properties], known.invariance
    else:
        tried = candidates(source, files.device, files.kv_cache, exact, core)

    def open_with(properties: Properties) -> tuple[Model, Invariance]:
        model = open_model(source, ModelSettings(files.device, properties, hidden), core)
        invariance = given or _quickly_measured(model)
        if invariance.tokens < USEFUL_TOKENS and properties != tried[-1]:
            raise ModelError("Logits depend on how many tokens run together.")
        model.min_tokens = invariance.min_tokens
        return model, invariance

    return open_first(open_with, tried)


def _quickly_measured(model: Model) -> Invariance:
    """What `measure_invariance` finds in CHECK_SECONDS, at least up to USEFUL_TOKENS."""
    until, checking = process_time() + CHECK_SECONDS * model.threads, measure_invariance(model)
    invariance = next(checking)
    while not invariance.complete and process_time() <= until:
        invariance = next(checking)
    return invariance


def measure_invariance(model: Model, known: Invariance | None = None) -> Iterator[Invariance]:
    """Compare the logits of a made-up text between forwards of all sizes, bitwise. Takes a second,
    with billions of weights about ten. Goes on from what is `known`. Yields what was found after
    USEFUL_TOKENS and each larger size; the last one is `complete`. Sets `model.min_tokens`."""
    invariance = known or Invariance(threads=model.threads, complete=False)
    model.min_tokens = invariance.min_tokens
    size = CONTEXT + max(CHECKED_SIZES)
    text = np.random.default_rng(0).integers(0, model.vocabulary_size, size).tolist()
    tokens = text[CONTEXT:]
    # Kernels are chosen by the number of threads too.
    sizes = CHECKED_SIZES | ({model.threads} & set(range(2, max(CHECKED_SIZES))))
    with model.new_sequence() as context:
        # Sequences with recurrent states fork where a forward ended.
        for begin, end in pairwise((0, *sorted(length for length, _ in VERIFICATIONS))):
            model.forward([Run(context, text[begin:end], 1)])
        read = partial(_rows, model, context, tokens)
        reference = _first_rows(read, REFERENCE_SIZE)
        if known is None:
            single = _first_rows(read, 1)
            invariance = replace(invariance, one_token=float(np.abs(single - reference).max()))
        for size in sorted(size for size in sizes if size > invariance.tokens):
            if size > USEFUL_TOKENS:
                yield invariance
            rows = _first_rows(read, size)
            if not np.array_equal(rows, reference[: len(rows)]):
                break
            invariance = replace(invariance, tokens=size)
        model.min_tokens = invariance.min_tokens
        equal = invariance.tokens
        merging = equal > 0 and _can_merge(model, context, tokens, equal)
        chunks = equal > PREFILL_CHUNK and np.array_equal(read(WHOLE), read(CHUNKS))
        decoded = chunks and np.array_equal(read(WHOLE), read(DECODED, stepwise=True))
        yield replace(invariance, merging=merging, chunks=chunks, decoded=decoded, complete=True)


def _first_rows(read: Callable[..., np.ndarray], size: int) -> np.ndarray:
    """Logits of the first tokens that `_rows` reads, `size` a forward: at most [USEFUL_TOKENS,
    vocabulary]."""
    return read(range(0, max(USEFUL_TOKENS, size) + 1, size), stepwise=True)[:USEFUL_TOKENS]


def _rows(
    model: Model,
    context: KVSequence,
    tokens: list[int],
    bounds: Iterable[int],
    stepwise: bool = False,
) -> np.ndarray:
    """Logits of `tokens` after `context`, read in forwards from each of the `bounds` to the next:
    [tokens, vocabulary]. Where those of a chunk differ, many rows do."""
    rows = []
    with model.fork(context, context.length) as sequence:
        for begin, end in pairwise(bounds):
            run = Run(sequence, tokens[begin:end], end - begin, stepwise)
            rows.append(model.forward([run])[0].rows.copy())
    return np.concatenate(rows)


def _can_merge(model: Model, context: KVSequence, tokens: list[int], largest: int) -> bool:
    """Whether requests that share a forward of `largest` tokens get the logits that each gets by
    itself: VERIFICATIONS, and a prompt that begins beside them."""
    with ExitStack() as sequences:
        runs = []
        for length, size in VERIFICATIONS:
            sequence = sequences.enter_context(model.fork(context, length))
            runs.append(Run(sequence, tokens[:size], size, stepwise=True))
        prompt = tokens[: max(largest - sum(size for _, size in VERIFICATIONS), 2)]
        runs.append(Run(sequences.enter_context(model.fork(context, 0)), prompt, 1))
        together = [logits.rows.copy() for logits in model.forward(runs)]
        for run in runs:
            run.sequence.truncate(run.sequence.length - len(run.tokens))
        separate = [model.forward([run])[0].rows.copy() for run in runs]
    return all(map(np.array_equal, together, separate))
