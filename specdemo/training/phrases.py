"""Count the phrases of a target's text: the table that `zoo.embedded_draft.phrases` looks up while drafting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from specdemo.training.corpus import Conversation
from specdemo.models.embedded_draft.phrases import LONGEST, Phrases, pack

LEAST = 2
"""A context seen less often than this is left out, unless it is a single token."""
SAME = 0.08
"""A longer context is left out if it says what the shorter one says, with a confidence that differs less."""


def count_phrases(conversations: Sequence[Conversation]) -> Phrases:
    """The likeliest continuation of every context in the answers, with Witten-Bell smoothing over shorter contexts."""
    seen: list[defaultdict[tuple[int, ...], Counter[int]]] = [defaultdict(Counter) for _ in range(LONGEST + 1)]
    for conversation in conversations:
        text = conversation.prompt[-LONGEST:] + conversation.answer
        for at in range(LONGEST, len(text)):
            for length in range(1, LONGEST + 1):
                seen[length][text[at - length : at]][text[at]] += 1
    best: list[dict[tuple[int, ...], tuple[int, float]]] = [{} for _ in range(LONGEST + 1)]
    for length in range(1, LONGEST + 1):
        for context, nexts in seen[length].items():
            if length == 1 or nexts.total() >= LEAST:
                best[length][context] = _likeliest(seen, best, context)
    kept = [
        {context: guess for context, guess in best[length].items() if _says_more(best, context, guess)}
        for length in range(1, LONGEST + 1)
    ]
    return _table(kept)


def _likeliest(seen, best, context: tuple[int, ...]) -> tuple[int, float]:
    """Among the context's own continuations and the shorter context's best one."""
    candidates = dict.fromkeys(token for token, _ in seen[len(context)][context].most_common(4))
    if shorter := best[len(context) - 1].get(context[1:]):
        candidates[shorter[0]] = None
    return max(((token, _probability(seen, context, token)) for token in candidates), key=lambda guess: guess[1])


def _probability(seen, context: tuple[int, ...], token: int) -> float:
    probability = 0.0
    for start in range(len(context) - 1, -1, -1):
        nexts = seen[len(context) - start][context[start:]]
        total = nexts.total()
        own = total / (total + len(nexts))
        probability = own * nexts[token] / total + (1 - own) * probability if total else probability
    return probability


def _says_more(best, context: tuple[int, ...], guess: tuple[int, float]) -> bool:
    for shorter in range(len(context) - 1, 0, -1):
        if known := best[shorter].get(context[-shorter:]):
            return known[0] != guess[0] or abs(known[1] - guess[1]) > SAME
    return True


def _table(kept: Sequence[dict[tuple[int, ...], tuple[int, float]]]) -> Phrases:
    contexts, tokens, confidences = [], [], []
    for guesses in kept:
        keys = np.array([pack(context) for context in guesses], np.uint64)
        order = np.argsort(keys)
        contexts.append(keys[order])
        tokens.append(np.array([token for token, _ in guesses.values()], np.uint16)[order])
        confidences.append(np.array([round(255 * share) for _, share in guesses.values()], np.uint8)[order])
    return Phrases(tuple(contexts), tuple(tokens), tuple(confidences))
