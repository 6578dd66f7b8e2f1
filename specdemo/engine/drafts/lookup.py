"""N-gram lookup (prompt lookup): draft tokens from the text so far, which cost nothing."""

import math
from collections.abc import Sequence

from ..constraint import Mask
from ..rounds import Proposal, Source
from .draft_sources import DraftRequest, DraftSource, Step, TokenDrafter

ORDERS = 4  # tokens of the longest context that is looked up
RECENCY = 0.7  # factor on the earlier counts of a context when the context occurs again
FORGOTTEN = 0.02  # counts at or below it are dropped: a dozen occurrences of a context count
DOUBT = 2.0  # weight of a shorter context beside a longer one, in occurrences
MIN_LOGIT, MAX_LOGIT = -3.0, 5.0  # of a probability at confidence 0 and 1


class LookupDrafter(TokenDrafter):
    """Finds what followed the last tokens earlier in the text.

    With c_n(t) the count of token t after the last n tokens (recent ones count more), p_n(t) =
    (c_n(t) + DOUBT p_{n-1}(t)) / (sum of c_n + DOUBT), from p_0 = 0 to the longest context that
    occurred: interpolated back-off as in Jelinek and Mercer."""

    name: Source = "lookup"
    free = True

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self._prediction: Sequence[int] = ()  # in the place of the text
        self._after: dict[tuple[int, ...], dict[int, float]] = {}
        self._length = 0

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        yield from ()  # no forwards
        self.read(self._prediction or context)
        guess = self.guess([*context[-ORDERS:], *drafted], mask)
        if guess is None:
            return None, 0.0
        token, confidence = guess
        acceptance = self.policy.accepted(self.name)(confidence)
        return Proposal(token, self.name, confidence, acceptance), 0.0

    def guess(self, text: list[int], mask: Mask = None) -> tuple[int, float] | None:
        """The likeliest allowed token after `text` with a confidence in [0, 1]; None if none is
        known."""
        context = text[-ORDERS:]
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
        best = max(chances, key=chances.__getitem__)
        chance = chances[best]
        logit = math.log(max(chance, 1e-9) / max(1 - chance, 1e-9))
        confidence = (logit - MIN_LOGIT) / (MAX_LOGIT - MIN_LOGIT)
        return best, min(max(confidence, 0.0), 1.0)

    def read(self, text: Sequence[int]) -> None:
        """Count what follows each context in the part of `text` that was not counted."""
        for position in range(self._length, len(text)):
            token = text[position]
            for n in range(1, min(position, ORDERS) + 1):
                counts = {token: 1.0}
                context = tuple(text[position - n : position])
                if known := self._after.get(context):
                    counts = {t: count * RECENCY for t, count in known.items() if count > FORGOTTEN}
                    counts[token] = known.get(token, 0.0) * RECENCY + 1.0
                self._after[context] = counts
        self._length = len(text)


class PredictionDrafter(LookupDrafter):
    """Finds what follows the last tokens in the request's prediction."""

    name = "prediction"

    @classmethod
    def open(cls, source: DraftSource, request: DraftRequest) -> TokenDrafter | None:
        return cls(source, request) if request.prediction else None

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self._prediction = request.prediction


LOOKUPS = tuple(
    DraftSource(kind, drafters=("auto", "lookup")) for kind in (PredictionDrafter, LookupDrafter)
)
