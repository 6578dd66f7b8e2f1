"""The cost model of one model's forwards, learnt where they arise: in the alternation of draft and
target. Also chooses the sizes of forwards. Knows no models and no token ids."""

from __future__ import annotations

import math
from itertools import accumulate

LARGEST = 16  # tokens. Costs of larger forwards, which several requests share, are extrapolated.

TYPICAL = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 6: 1.6, 8: 1.8, 12: 2.15, 16: 2.65}
"""Seconds of a forward by its number of tokens, relative to one token: about the means of
tools/cost_tables.json."""

TYPICAL_CHANGE = 0.3
"""Seconds of a change of size relative to a forward of one token: 0.2 to 0.6 were measured."""

LEVEL_RATE, SHAPE_RATE = 0.1, 0.02
"""Weights of a new measurement: in the machine's present speed and in the cost of a change, which
vary, and in the relative costs of sizes, which hardly do."""


class CostModel:
    """Seconds of forwards: T(s) of one of `s` tokens, C more when the forward before it had another
    size, and A more for each row and each token of the row's context.

    C has two causes. A dynamic instance prepares every layer anew for a new size, and the weights
    of a fixed-shape instance leave the processor's cache while another one runs. A forward of n
    tokens may be padded to any known size s >= n, so a change that costs more than the padding is
    not made.

    T, C and A come from `learn`. Each forward corrects T where the size stayed, and C where it
    changed. The `level` (present seconds by learnt seconds) scales all of them and follows quickly;
    it is 0 before the first forward if T is a guess (not `measured`). `lasting` are T, C and A as
    measured undisturbed, for later starts: corrections of a busy hour would mislead. A forward of
    less than half of the expected time disproves them."""

    def __init__(self) -> None:
        self.lasting: tuple[dict[int, float], float, float] = {}, 0.0, 0.0
        self.learn(TYPICAL, TYPICAL_CHANGE)
        self.level, self.measured = 0.0, False

    def learn(
        self,
        seconds: dict[int, float],
        change: float = 0.0,
        attention: float = 0.0,
        *,
        lasting: bool = False,
    ) -> None:
        """Replace T (`seconds` by size), C (`change`) and A (`attention`)."""
        if lasting:
            self.lasting = seconds, change, attention
        self.measured = True
        self.seconds = dict(sorted(seconds.items()))
        self.change, self.attention = change, attention
        self.level = 1.0
        self.last = 0  # size of the last forward
        self._work = dict.fromkeys(self.seconds, 0.0)
        self._sum_up()

    def choose(self, tokens: int) -> int:
        """The size of the next forward, of `tokens` tokens: at least `tokens`.

        Work function algorithm (Borodin, Linial and Saks, 1992). `_work[s]` is the least time in
        which all forwards so far could have run, the last one with size s.
        """
        if tokens > max(self.seconds, default=0):
            return tokens
        moved = min(self._work.values()) + self.change
        for size, seconds in self.seconds.items():
            stayed = min(self._work[size], moved)
            self._work[size] = stayed + seconds if size >= tokens else math.inf
        lowest = min(self._work.values())
        self._work = {size: work - lowest for size, work in self._work.items()}
        return min(
            self._work, key=lambda size: self._work[size] + self.change * (size != self.last)
        )

    def record(self, size: int, seconds: float, attended: int = 0) -> None:
        """A forward of `size` tokens took `seconds`. `attended` adds up the context tokens of all
        its rows."""
        changed, self.last = size != self.last, size
        if size not in self.seconds:
            return
        expected = self.seconds[size] + (self.change if changed else 0.0)
        # A is an estimate: at least a quarter of the time is T and C.
        measured = max(seconds - attended * self.attention * self.level, seconds / 4)
        level = self.level or measured / expected
        if seconds < level * expected / 2:
            # Other work makes forwards longer, and nothing shorter: what was learnt is wrong.
            self.lasting = {}, 0.0, 0.0
            level = seconds / expected
        # The level first; a single measurement counts as at most twice it.
        ratio = min(measured / expected, level * 2)
        self.level = level + LEVEL_RATE * (ratio - level)
        # What the level does not explain corrects C or T.
        unexplained = expected * (ratio / self.level - 1)
        if changed and self.change:
            self.change = max(self.change + LEVEL_RATE * unexplained, 0.0)
        else:
            rate = SHAPE_RATE if self.measured else LEVEL_RATE
            self.seconds[size] += rate * unexplained
            self._sum_up()

    @property
    def single_token_size(self) -> int:
        """The fastest size for one token a forward: 2 where the kernel for one row is slower."""
        return min(self.seconds, key=self.seconds.__getitem__, default=1)

    def baseline(self, context: int = 0) -> float:
        """Seconds of one token of autoregressive decoding, whose forwards have one size."""
        seconds = self.seconds.get(self.single_token_size, 0.0)
        return (seconds + self.attention * context) * self.level

    def forward(self, tokens: int) -> float:
        """Seconds of the next forward if it has `tokens` tokens, at a short context."""
        beyond = max(tokens - LARGEST, 0)
        seconds = self._least[tokens - beyond] + self.change
        if self.last >= tokens - beyond:
            seconds = min(seconds, self.seconds.get(self.last, math.inf))
        return (seconds + beyond * self._row) * self.level

    def forwards(self, others: int = 0, context: int = 0) -> list[float]:
        """Seconds of the next forward if it has 0, 1, ... LARGEST tokens after `context` tokens.
        With `others` tokens of other requests in the same forward, each row costs at least what a
        row of a large forward costs: costs rise in steps, and otherwise the rows of every request
        would seem free."""
        seconds = [self.forward(others + tokens) for tokens in range(LARGEST + 1)]
        if others:
            first, more = seconds[1], self._row * self.level
            for tokens, spent in enumerate(seconds):
                seconds[tokens] = max(spent, first + (tokens - 1) * more)
        row = self.attention * self.level * context
        return [spent + tokens * row for tokens, spent in enumerate(seconds)]

    def fair_chunk(self, tokens: int, context: int) -> int:
        """The most tokens (at least 2) whose forward after `context` tokens takes no longer than
        one of `tokens` tokens does without."""
        row = self._row
        return max(int(tokens / (1 + self.attention * context / row)), 2) if row else tokens

    def _sum_up(self) -> None:
        """What is read of T many times a round: `_least`, the seconds of the fastest size for 0, 1,
        ... LARGEST tokens, and `_row`, those of one more token in a large forward: the slope from
        LARGEST / 2 tokens, or the next smaller size that is known, to the largest one."""
        known = [self.seconds.get(size, math.inf) for size in range(LARGEST + 1)]
        self._least = [*accumulate(known[::-1], min)][::-1]
        sizes = list(self.seconds)
        small = [size for size in sizes if size <= LARGEST // 2]
        self._row = 0.0
        if small and small[-1] != sizes[-1]:
            difference = self.seconds[sizes[-1]] - self.seconds[small[-1]]
            self._row = difference / (sizes[-1] - small[-1])
