"""The n-gram table of a target's text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter

from specdemo.models.ngrams import NGramTable

RARE = 2
"""A context seen less often is left out, unless it is a single token."""
SAME = 0.08
"""A longer context is left out if it proposes the shorter one's token, with a probability that
differs less."""

Context = tuple[int, ...]


def count(answers: Iterable[Sequence[int]], vocabulary_size: int) -> NGramTable:
    """The likeliest token after one to four tokens of the answers (three, for a vocabulary beyond
    65,536). Its probability is smoothed over shorter contexts."""
    table = NGramTable.empty(vocabulary_size)
    following: defaultdict[Context, Counter[int]] = defaultdict(Counter)
    for answer in answers:
        for at in range(1, len(answer)):
            for length in range(1, min(len(table.known), at) + 1):
                following[tuple(answer[at - length : at])][answer[at]] += 1
    best: dict[Context, tuple[int, float]] = {(): (-1, 0.0)}
    for context in sorted(following, key=len):
        if len(context) > 1 and following[context].total() < RARE:
            continue
        shorter = best.get(context[1:], (-1, 0.0))
        candidates = [token for token, _ in following[context].most_common(4)]
        guesses = [
            (token, _smoothed(following, context, token)) for token in [*candidates, shorter[0]]
        ]
        token, probability = best[context] = max(guesses, key=itemgetter(1))
        if shorter[0] != token or abs(shorter[1] - probability) > SAME:
            entry = token, round(255 * probability)
            table.known[len(context) - 1][table.pack(context)] = entry
    return table


def _smoothed(following: dict[Context, Counter[int]], context: Context, token: int) -> float:
    """The probability of `token` after `context` by Witten and Bell's smoothing."""
    if not context:
        return 0.0
    counts = following[context]
    own = counts.total() / (counts.total() + len(counts))
    shorter = _smoothed(following, context[1:], token)
    return own * counts[token] / counts.total() + (1 - own) * shorter
