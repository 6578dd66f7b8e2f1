"""N-gram lookup (prompt lookup): draft tokens from the text so far, which cost nothing."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .constraint import Mask

ORDERS = 4  # tokens of the longest context that is looked up
RECENCY = 0.7  # factor on the earlier counts of a context when the context occurs again
FORGOTTEN = 0.02  # counts at or below it are dropped: a dozen occurrences of a context count
DOUBT = 2.0  # weight of a shorter context beside a longer one, in occurrences
LEAST_LOGIT, MOST_LOGIT = -3.0, 5.0  # of a probability at confidence 0 and 1


class Guess(NamedTuple):
    """A token, and a confidence in [0, 1]."""

    token: int
    confidence: float


class Lookup:
    """Finds what followed the last tokens earlier in the text.

    With c_n(t) the count of token t after the last n tokens (recent ones count more), p_n(t) =
    (c_n(t) + DOUBT p_{n-1}(t)) / (sum of c_n + DOUBT), from p_0 = 0 to the longest context that
    occurred: interpolated back-off as in Jelinek and Mercer.

    With a `prediction` of the text, finds what followed there instead."""

    def __init__(self, prediction: Sequence[int] = ()) -> None:
        self._ending: list[int] = []
        self._after: dict[tuple[int, ...], dict[int, float]] = {}
        self._predicted = False
        self.read(prediction)
        self._ending.clear()
        self._predicted = len(prediction) > 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read the text that follows."""
        if self._predicted:
            self._ending = [*self._ending, *tokens][-ORDERS:]
            return
        ending, after = self._ending, self._after
        for token in tokens:
            for n in range(1, len(ending) + 1):
                context = tuple(ending[-n:])
                known = after.get(context, {})
                counts = {
                    other: count * RECENCY for other, count in known.items() if count > FORGOTTEN
                }
                counts[token] = known.get(token, 0.0) * RECENCY + 1.0
                after[context] = counts
            ending.append(token)
            del ending[:-ORDERS]

    def guess(self, drafted: list[int], mask: Mask = None) -> Guess | None:
        """The likeliest allowed token after the text and `drafted`; None if none is known."""
        context = [*self._ending, *drafted][-ORDERS:]
        matches = []
        for n in range(1, len(context) + 1):
            known = self._after.get(tuple(context[-n:]))
            if known is None:
                break
            matches.append(known)
        chances: dict[int, float] = {}
        left = 1.0
        for known in reversed(matches):
            share = left / (sum(known.values()) + DOUBT)
            for token, count in known.items():
                chances[token] = chances.get(token, 0.0) + share * count
            left = share * DOUBT
        if mask is not None:
            chances = {t: chance for t, chance in chances.items() if t < len(mask) and mask[t]}
        if not chances:
            return None
        best = max(chances, key=lambda token: chances[token])
        chance = chances[best]
        logit = math.log(max(chance, 1e-9) / max(1 - chance, 1e-9))
        confidence = (logit - LEAST_LOGIT) / (MOST_LOGIT - LEAST_LOGIT)
        return Guess(best, min(max(confidence, 0.0), 1.0))
