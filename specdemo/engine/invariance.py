"""Measures how far the logits of a compiled model depend on how many tokens run together."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np

from .cache import KVSequence
from .messages import PREFILL_CHUNK, Model, Run
from .profile import Invariance

CHECKED_SIZES = {2, 3, 5, 6, 8, 12, 16, 32, 64}  # tokens of a forward

REFERENCE_SIZE = 4
"""Tokens of the forwards with which those of all other sizes are compared."""

LEAST_USEFUL, CHECK_SECONDS = 8, 8.0
"""The check goes on to larger sizes than LEAST_USEFUL until it has taken CHECK_SECONDS: with 3
billion weights and no VNNI the largest two and their merging took 17 of its 26 s."""

CONTEXT = 40  # tokens before those whose logits are compared

CHUNKS = (0, 2, 9, 41)  # where they begin

VERIFICATIONS = ((CONTEXT, 2), (21, 1), (9, 5))
"""Of the requests that share a forward: tokens of context, and tokens verified after it."""


def measure_invariance(model: Model) -> Invariance:
    """Compare the logits of a made-up text between forwards of all sizes, bitwise. Takes a second,
    with billions of weights about ten."""
    size = CONTEXT + max(CHECKED_SIZES)
    text = np.random.default_rng(0).integers(0, model.vocabulary_size, size).tolist()
    restored = model.least_tokens
    with model.new_sequence() as context:
        try:
            model.forward([Run(context, text[:CONTEXT], 1)])
            model.least_tokens = 1
            tokens, one_token = _equal_sizes(model, context, text[CONTEXT:])
            invariance = Invariance(tokens, one_token, model.threads)
            model.least_tokens = invariance.least_tokens
            merging = tokens > 0 and _can_merge(model, context, text[CONTEXT:], tokens)
            chunks = tokens > PREFILL_CHUNK and _equal_chunks(model, context, text[CONTEXT:])
            return replace(invariance, merging=merging, chunks=chunks)
        finally:
            model.least_tokens = restored


def _equal_sizes(model: Model, context: KVSequence, tokens: list[int]) -> tuple[int, float]:
    """The largest size up to which forwards give the same logits of `tokens` after `context`, 0 if
    none do; and by how much those of single tokens differ."""
    began = perf_counter()
    most = max(CHECKED_SIZES)
    # Kernels are chosen by the number of threads too.
    sizes = sorted(CHECKED_SIZES | ({model.threads} & set(range(2, most))))

    def in_pieces(size: int, total: int) -> np.ndarray:
        """Logits of the first tokens, `size` a forward: [total - total % size, vocabulary]."""
        rows = []
        with model.fork(context, context.length) as sequence:
            for begin in range(0, total - total % size, size):
                piece = tokens[begin : begin + size]
                # Padded to the size that is cheapest at the moment, single tokens would seem equal.
                run = Run(sequence, piece, size, stepwise=True, unpadded=True)
                rows.append(model.forward([run])[0].rows.copy())
        return np.concatenate(rows)

    reference = in_pieces(REFERENCE_SIZE, LEAST_USEFUL)
    one_token = float(np.abs(in_pieces(1, LEAST_USEFUL) - reference).max())
    equal = 0
    for size in sizes:
        if equal >= LEAST_USEFUL and perf_counter() - began > CHECK_SECONDS:
            break
        # Of larger forwards only the first rows are compared.
        rows = in_pieces(size, max(size, LEAST_USEFUL))[:LEAST_USEFUL]
        if not np.array_equal(rows, reference[: len(rows)]):
            break
        equal = size
    return equal, one_token


def _equal_chunks(model: Model, context: KVSequence, tokens: list[int]) -> bool:
    """Whether a chunk of a prompt and the shorter ones in CHUNKS give the same logits."""
    rows = []
    for begins in ((0,), CHUNKS):
        with model.fork(context, context.length) as sequence:
            for begin, end in pairwise((*begins, PREFILL_CHUNK)):
                logits = model.forward([Run(sequence, tokens[begin:end], 1)])
            rows.append(logits[0].rows.copy())
    return np.array_equal(rows[0], rows[1])


def _can_merge(model: Model, context: KVSequence, tokens: list[int], largest: int) -> bool:
    """Whether requests that share a forward of `largest` tokens get the logits that each gets by
    itself: VERIFICATIONS, and a prompt that begins beside them."""
    with ExitStack() as sequences:
        runs = []
        for length, size in VERIFICATIONS:
            sequence = sequences.enter_context(model.fork(context, length))
            runs.append(Run(sequence, tokens[:size], size, stepwise=True))
        verified = sum(size for _, size in VERIFICATIONS)
        prompt = tokens[: max(largest - verified, 2)]
        runs.append(Run(sequences.enter_context(model.fork(context, 0)), prompt, 1))
        together = [logits.rows.copy() for logits in model.forward(runs)]
        for run in runs:
            run.sequence.truncate(run.sequence.length - len(run.tokens))
        separate = [model.forward([run])[0].rows.copy() for run in runs]
    return all(map(np.array_equal, together, separate))
