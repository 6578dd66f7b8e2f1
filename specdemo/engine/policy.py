"""Decides how many tokens to draft: a fixed number, or the number with the best expected speed.

Measures costs (seconds) and counts acceptance rates during decoding. Knows no models and no token
ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

TYPICAL = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 6: 1.6, 8: 1.8, 12: 2.15, 16: 2.65}
"""Cost of a forward by its number of tokens, relative to one token: about the means of
tools/cost_tables.json. Costs of sizes beyond those that were seen are extrapolated with it."""

MAX_DRAFT = 15
"""Tokens of the longest draft: 16 rows of verification with the token before it."""

_SIZES = np.arange(MAX_DRAFT + 2)
_TYPICAL = np.interp(_SIZES, list(TYPICAL), list(TYPICAL.values()))

LEVEL_RATE, SHAPE_RATE = 0.1, 0.02
"""Weights of a new measurement: in the machine's present speed, and in the cost of its size
relative to others."""

REDRAWN = 16
"""Forwards between two updates of the cost table, whose relative costs change slowly."""

PROBE_SHARE = 0.005
"""The most time for probes of a source, as a share of the time decoded without it."""

UNLIKELY = 0.15
"""No further token is drafted when the chance to reach it is below this."""


class Costs:
    """The cost model: seconds of a target forward by its number of tokens, and of a draft step.

    The relative costs of the sizes come from `learn` or from the first `saw_verify`, and are
    corrected slowly. The machine's present speed scales all of them and is followed quickly. A
    forward can be padded to a larger size, so no size costs more than a larger one. To these, which
    are without context, comes the `attention` of each row to its context.
    """

    LARGEST = MAX_DRAFT + 1
    """Tokens. Costs of larger forwards, which several requests share, are extrapolated."""

    def __init__(self):
        self.draft_step = 0.0
        """Seconds of one draft step; 0 until one was seen, so that it is tried."""
        self.since_probe = 0.0
        """Seconds of decoding since the last probe of a source that does not seem to pay."""
        self._seen = 0
        self.level = 1.0
        """Present seconds of a forward relative to the learnt seconds."""
        self.attention = 0.0
        """Learnt seconds that each token of its context adds to a row."""
        self._known: dict[int, float] = {}
        self._table = [0.0] * (self.LARGEST + 1)

    def saw_verify(self, tokens: int, seconds: float, attended: int = 0) -> None:
        """A target forward of `tokens` tokens took `seconds`. `attended` adds up the context tokens
        of all rows."""
        if tokens > self.LARGEST:
            return
        seconds = max(seconds - attended * self.attention * self.level, seconds / 4)
        new = tokens not in self._known
        known = self._known.setdefault(tokens, seconds / self.level)
        ratio = min(max(seconds / known, self.level / 2), self.level * 2)
        self.level += LEVEL_RATE * (ratio - self.level)
        self._known[tokens] += SHAPE_RATE * (seconds / self.level - known)
        self._seen += 1
        if new or self._seen % REDRAWN == 0:
            self._draw_up()

    def learn(self, seconds: dict[int, float], attention: float = 0.0) -> None:
        """Replace the table with `seconds` by number of tokens, and `attention`."""
        self._known, self.attention, self.level = dict(seconds), attention, 1.0
        self._draw_up()

    @property
    def seconds(self) -> dict[int, float]:
        """Present seconds by number of tokens, for `learn` at a later start."""
        return {size: seconds * self.level for size, seconds in self._known.items()}

    def _draw_up(self) -> None:
        sizes = sorted(self._known)
        table = np.interp(_SIZES, sizes, [self._known[size] for size in sizes])
        table[sizes[-1] :] *= _TYPICAL[sizes[-1] :] / _TYPICAL[sizes[-1]]
        self._table = np.minimum.accumulate(table[::-1])[::-1].tolist()

    def saw_draft(self, seconds: float) -> None:
        """A draft step took `seconds`."""
        step = self.draft_step or seconds
        self.draft_step = step + LEVEL_RATE * (min(seconds, 2 * step) - step)

    def verify(self, tokens: int) -> float:
        """Seconds for one target forward of `tokens` tokens; 0 before the first measurement."""
        beyond = max(tokens - self.LARGEST, 0)
        return (self._table[tokens - beyond] + beyond * self._row()) * self.level

    def steady_size(self) -> int:
        """The size of forward, 1 to 4 tokens, that gives the most tokens a second if all forwards
        have it and half of the draft tokens are accepted (Leviathan et al., equation 1)."""
        seconds = self._table if self._known else [0.0, *TYPICAL.values()]
        return max(range(1, 5), key=lambda size: (2 - 0.5 ** (size - 1)) / seconds[size])

    def verifications(self, others: int = 0, context: int = 0) -> list[float]:
        """`verify` of 0 to LARGEST tokens after `context` tokens. With `others` tokens of other
        requests in the same forward, each row costs what a row of a large forward costs. Costs rise
        in steps, and otherwise the rows of every request would seem free."""
        row = self.attention * self.level * context
        if not others:
            return [one * self.level + at * row for at, one in enumerate(self._table)]
        first, more = self.verify(others + 1) + row, self._row() * self.level + row
        return [first + (tokens - 1) * more for tokens in range(self.LARGEST + 1)]

    def _row(self) -> float:
        """Learnt seconds that one more token adds to a large forward."""
        half = self.LARGEST // 2
        return (self._table[-1] - self._table[half]) / half


class Rate:
    """A share of successes. Each new observation multiplies the weight of earlier ones by `decay`;
    at first there are `weight` observations of `prior`."""

    def __init__(self, prior: float, weight: float, decay: float):
        self.decay = decay
        self.accepted = prior * weight
        self.seen = weight

    @property
    def value(self) -> float:
        return self.accepted / self.seen

    @property
    def hopeful(self) -> float:
        """The share plus one standard error: dropping a good source after a bad run costs more than
        asking a few times too often."""
        return min(self.value + math.sqrt(self.value * (1 - self.value) / self.seen), 1.0)

    def saw(self, accepted: float) -> None:
        self.accepted = self.accepted * self.decay + accepted
        self.seen = self.seen * self.decay + 1


class Acceptance:
    """The acceptance rate of one source: in total, and in each band of its confidence."""

    BANDS = 8

    def __init__(self, counts: list[tuple[float, float]] | None = None):
        self.bands = [Rate((band + 0.5) / self.BANDS, 2.0, 0.98) for band in range(self.BANDS)]
        self.total = Rate(0.75, 4.0, 0.98)
        for rate, count in zip([*self.bands, self.total], counts or [], strict=False):
            rate.accepted, rate.seen = count

    @property
    def counts(self) -> list[tuple[float, float]]:
        """(accepted, seen) of each band, then of the total."""
        return [(rate.accepted, rate.seen) for rate in [*self.bands, self.total]]

    def __call__(self, confidence: float) -> float:
        """Expected acceptance of a token proposed with this confidence, in [0, 1]."""
        return self._band(confidence).value

    def saw(self, confidence: float, accepted: bool) -> None:
        self._band(confidence).saw(accepted)
        self.total.saw(accepted)

    def _band(self, confidence: float) -> Rate:
        return self.bands[min(int(confidence * self.BANDS), self.BANDS - 1)]


@dataclass(slots=True)
class Policy:
    """Decides draft lengths. `fixed` is a number of tokens, or None to adapt. `others` is the
    number of tokens of other requests in the same forward.

    The adaptive rule maximises the expected tokens a second of the coming round. Leviathan et al.
    (section 3.5) choose one length from one acceptance rate; here both vary token by token, and the
    costs are measured.
    """

    fixed: int | None = None
    limit: int = MAX_DRAFT
    costs: Costs = field(default_factory=Costs)
    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    others: int = 0
    _seconds: float = 0.0
    _tokens: float = 0.0
    rows: list[float] = field(default_factory=list)
    """Seconds of the forward in which 0, 1, ... tokens of this request are verified."""

    def begin_round(self, context: int = 0) -> None:
        """Begin a round after `context` tokens."""
        self.rows = self.costs.verifications(self.others, context)

    def for_request(self, fixed: int | None, rates: dict[str, Acceptance] | None = None) -> Policy:
        """A policy for one more request. All share the costs and acceptance rates, so they learn
        from every request; one with `rates` of its own shares the costs only."""
        return Policy(fixed, self.limit, self.costs, self.acceptance if rates is None else rates)

    def accepted(self, source: str) -> Acceptance:
        """The acceptance rates of a source."""
        if source not in self.acceptance:
            self.acceptance[source] = Acceptance()
        return self.acceptance[source]

    @property
    def pace(self) -> float:
        """Recent seconds a token, at most those of autoregressive decoding, which also stand in
        before the first round. The seconds of a forward are divided by `others` + 1."""
        baseline = self.rows[1] / (self.others + 1)
        return min(baseline, self._seconds / self._tokens) if self._tokens else baseline

    def saw_round(self, seconds: float, tokens: int) -> None:
        """A round took `seconds` and gave `tokens` tokens."""
        seconds /= self.others + 1
        self.costs.since_probe += seconds
        self._seconds = 0.9 * self._seconds + seconds
        self._tokens = 0.9 * self._tokens + tokens

    def probe_due(self, seconds: float) -> bool:
        """Whether to ask a source that does not seem to pay, in order to notice a change. True if
        the `seconds` of asking are at most PROBE_SHARE of those since the last probe."""
        if seconds > PROBE_SHARE * self.costs.since_probe:
            return False
        self.costs.since_probe = 0.0
        return True

    def gain(self, drafted: int, survival: float, acceptance: float, step: float) -> float:
        """Seconds that drafting on is expected to save, 0 if it saves none. `survival` is the
        chance that all `drafted` tokens are accepted. Each further token is accepted with chance
        `acceptance` and takes `step` seconds to draft. Looks ahead to the longest draft, since
        costs rise in steps."""
        rows, pace = self.rows, self.pace
        here = rows[drafted + 1]
        best = worth = 0.0
        for count in range(drafted + 1, self.limit + 1):
            survival *= acceptance
            worth += survival * pace - step
            best = max(best, worth - rows[count + 1] + here)
            if survival < UNLIKELY:
                break
        return best

    def best_length(self, acceptances: list[float], spent: float = 0.0) -> int:
        """The number of draft tokens to verify: the one that maximises the expected tokens of the
        round over its seconds. `acceptances` are the chances of each token if all before it are
        accepted; `spent` is the seconds of drafting."""
        if self.fixed is not None:
            return min(self.fixed, len(acceptances))
        rows = self.rows
        expected = 1.0 + self.others  # the tokens of all requests that share the forward
        best, length = expected / (spent + rows[1] or 1.0), 0
        survival = 1.0
        for count, acceptance in enumerate(acceptances, start=1):
            survival *= acceptance
            expected += survival
            rate = expected / (spent + rows[count + 1] or 1.0)
            if rate > best:
                best, length = rate, count
        return length
