"""The cost model of one model's forwards, learnt where they arise: in the alternation of draft and
target. Knows no models and no token ids."""

import math

import numpy as np

LARGEST = 16  # tokens. Costs of larger forwards, which several requests share, are extrapolated.

TYPICAL = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 6: 1.6, 8: 1.8, 12: 2.15, 16: 2.65}
"""Seconds of a forward by its number of tokens, relative to one token: about the means of
tools/cost_tables.json."""

LEVEL_RATE, SHAPE_RATE = 0.1, 0.02
"""Weights of a new measurement: in the machine's present speed, which varies, and in the relative
costs of sizes, which hardly do."""


class CostModel:
    """Seconds of forwards: T(s) of one of `s` tokens, and A more for each row and each token of the
    row's context.

    T and A come from `learn`, and each forward corrects T. The `level` (present seconds by learnt
    seconds) scales both and follows quickly; it is 0 before the first forward if T is a guess. What
    all sizes that are used have in common is the level's alone, so in the long run T keeps its
    scale, also for sizes that are not used. `lasting` are T and A as measured undisturbed, for
    later starts: corrections of a busy hour would mislead. A forward of less than half of the
    learnt time disproves them."""

    def __init__(self) -> None:
        self.lasting: tuple[dict[int, float], float] = {}, 0.0
        self.learn(TYPICAL)
        self.level = 0.0

    def learn(
        self, seconds: dict[int, float], attention: float = 0.0, *, lasting: bool = False
    ) -> None:
        """Replace T, known for some numbers of tokens, and A (`attention`)."""
        if lasting:
            self.lasting = seconds, attention
        self.seconds = _of_every_size(seconds)
        self.attention = attention
        self.level, self._common = 1.0, 0.0

    def record(self, tokens: int, seconds: float, attended: int = 0) -> None:
        """A forward of `tokens` tokens took `seconds`. `attended` adds up the context tokens of all
        its rows."""
        if tokens > LARGEST:
            return
        expected = self.seconds[tokens]
        # A is an estimate: at least a quarter of the time is T.
        measured = max(seconds - attended * self.attention * self.level, seconds / 4)
        level = self.level or measured / expected
        if seconds < level * expected / 2:
            level = seconds / expected  # other work makes forwards longer, and nothing shorter
            if level < 0.5:
                self.lasting = {}, 0.0  # what was learnt is wrong
        # The level first; a single measurement counts as at most twice it.
        ratio = min(measured / expected, level * 2)
        self.level = level + LEVEL_RATE * (ratio - level)
        # What the level does not explain corrects T, less the mean of such changes.
        change = SHAPE_RATE * (ratio / self.level - 1)
        self.seconds[tokens] *= math.exp(change - self._common)
        self._common += SHAPE_RATE * (change - self._common)

    def forward(self, tokens: int, context: int = 0) -> float:
        """Seconds of a forward of `tokens` tokens, each after `context` tokens."""
        beyond = max(tokens - LARGEST, 0)
        attending = tokens * self.attention * context
        return (self.seconds[tokens - beyond] + beyond * self._row + attending) * self.level

    def forwards(self, requests: int = 1, context: int = 0) -> list[float]:
        """Seconds of forwards of 0, 1, ... LARGEST tokens of each of so many `requests`, after
        `context` tokens: the share of one request."""
        level, row = self.level / requests, self.attention * self.level * context
        known = self.seconds[::requests]
        last, more = self.seconds[LARGEST], self._row
        beyond = range(len(known) * requests - LARGEST, LARGEST * requests, requests)
        known += [last + more * rows for rows in beyond]
        return [
            seconds * level + row * tokens for tokens, seconds in enumerate(known[: LARGEST + 1])
        ]

    def fair_chunk(self, tokens: int, context: int) -> int:
        """The most tokens (at least 2) whose forward after `context` tokens takes no longer than
        one of `tokens` tokens does without."""
        row = self._row
        return max(int(tokens / (1 + self.attention * context / row)), 2) if row else tokens

    @property
    def _row(self) -> float:
        """Seconds of one more token in a large forward."""
        more = self.seconds[LARGEST] - self.seconds[LARGEST // 2]
        return max(more, 0.0) / (LARGEST - LARGEST // 2)


def _of_every_size(seconds: dict[int, float]) -> list[float]:
    """Seconds of 0, 1, ... LARGEST tokens, in proportion between those that are known; beyond, as
    from the last but one to the last."""
    known = sorted(seconds.items())
    (size, before), (largest, most) = (known[0], *known)[-2:]
    row = max(most - before, 0.0) / max(largest - size, 1)
    known.append((largest + LARGEST, most + LARGEST * row))
    sizes, times = zip(*known, strict=True)
    return list(map(float, np.interp(range(LARGEST + 1), sizes, times)))
