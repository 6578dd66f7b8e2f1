"""How many tokens to draft: a fixed number, or as many as are expected to pay for themselves.

Knows costs (seconds, measured as it runs) and acceptance rates (counted as it runs); no models, no
tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

TYPICAL = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 6: 1.6, 8: 1.8, 12: 2.15, 16: 2.65}
"""Cost by tokens, relative to one token: about the means of bench/cost_tables.json. Sizes beyond
those that were seen are extrapolated with it."""

MAX_DRAFT = 15
"""Longest draft, tokens: with the token before it, 16 rows of verification."""

_SIZES = np.arange(MAX_DRAFT + 2)
_TYPICAL = np.interp(_SIZES, list(TYPICAL), list(TYPICAL.values()))

LEVEL_RATE, SHAPE_RATE = 0.1, 0.02
"""Weights of a new measurement: in the machine's present speed, and in the cost of its size
relative to others."""

REDRAWN = 16
"""Forwards after which the table of costs follows the sizes' relation, which changes slowly."""

PROBE_SHARE = 0.005
"""Of the time spent without a source, what may go into asking it all the same."""

UNLIKELY = 0.15
"""Chance of being reached below which no further token is drafted."""


class Costs:
    """Seconds of a target forward by its number of tokens, and of a draft step: a cost model kept
    up to date.

    Sizes keep their relation from the measurement at load (`saw_verify` at first), which is
    corrected slowly; the machine's present speed scales all of them and is followed quickly. A
    forward may be padded to a larger size, so none costs more than a larger one.
    """

    LARGEST = MAX_DRAFT + 1
    """Tokens; larger forwards, which several requests share, are extrapolated."""

    def __init__(self):
        self.draft_step = 0.0
        """Seconds of one draft token; 0 until one was seen, so that it is tried."""
        self.since_probe = 0.0
        """Seconds of decoding since a source that does not seem to pay was asked all the same."""
        self._seen = 0
        self.level = 1.0
        """The machine's present speed, as a multiple of the seconds that were learnt."""
        self._known: dict[int, float] = {}
        self._table = [0.0] * (self.LARGEST + 1)

    def saw_verify(self, tokens: int, seconds: float) -> None:
        """A target forward of `tokens` tokens took `seconds`."""
        if tokens > self.LARGEST:
            return
        new = tokens not in self._known
        known = self._known.setdefault(tokens, seconds / self.level)
        ratio = min(max(seconds / known, self.level / 2), self.level * 2)
        self.level += LEVEL_RATE * (ratio - self.level)
        self._known[tokens] += SHAPE_RATE * (seconds / self.level - known)
        self._seen += 1
        if new or self._seen % REDRAWN == 0:
            self._draw_up()

    def learn(self, seconds: dict[int, float]) -> None:
        """Replace the table: `seconds` by number of tokens."""
        self._known, self.level = dict(seconds), 1.0
        self._draw_up()

    @property
    def seconds(self) -> dict[int, float]:
        """The table as it is now, to be learnt again another time."""
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
        """Seconds for one target forward of `tokens` tokens; 0 until any was seen."""
        beyond = max(tokens - self.LARGEST, 0)
        return (self._table[tokens - beyond] + beyond * self._row()) * self.level

    def steady_size(self) -> int:
        """The number of tokens that gives the most tokens a second if all forwards have it and half
        of the draft tokens are accepted (Leviathan et al., equation 1)."""
        seconds = self._table if self._known else [0.0, *TYPICAL.values()]
        return max(range(1, 5), key=lambda size: (2 - 0.5 ** (size - 1)) / seconds[size])

    def verifications(self, others: int = 0) -> list[float]:
        """`verify` of 0 to LARGEST tokens. Beside the tokens of `others` in the same forward each
        row is charged what a row of a large forward costs: costs rise in steps, and every request
        would think that its rows cost nothing."""
        if not others:
            return [seconds * self.level for seconds in self._table]
        first, row = self.verify(others + 1), self._row() * self.level
        return [first + (tokens - 1) * row for tokens in range(self.LARGEST + 1)]

    def _row(self) -> float:
        """Seconds that one token more adds to a large forward."""
        half = self.LARGEST // 2
        return (self._table[-1] - self._table[half]) / half


class Rate:
    """A share of successes of which each new observation leaves `decay`; begins as `prior` seen
    `weight` times."""

    def __init__(self, prior: float, weight: float, decay: float):
        self.decay = decay
        self.accepted = prior * weight
        self.seen = weight

    @property
    def value(self) -> float:
        return self.accepted / self.seen

    @property
    def hopeful(self) -> float:
        """The share and one standard error more: giving up on a good source after a bad run
        costs more than asking a few times too often."""
        return min(self.value + math.sqrt(self.value * (1 - self.value) / self.seen), 1.0)

    def saw(self, accepted: float) -> None:
        self.accepted = self.accepted * self.decay + accepted
        self.seen = self.seen * self.decay + 1


class Acceptance:
    """How often what one source proposes is accepted: over all, and in each band of its
    confidence."""

    BANDS = 8

    def __init__(self, counts: list[tuple[float, float]] | None = None):
        self.bands = [Rate((band + 0.5) / self.BANDS, 2.0, 0.98) for band in range(self.BANDS)]
        self.total = Rate(0.75, 4.0, 0.98)
        for rate, count in zip([*self.bands, self.total], counts or [], strict=False):
            rate.accepted, rate.seen = count

    @property
    def counts(self) -> list[tuple[float, float]]:
        """(accepted, seen) of each band, and last of all together."""
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
    """Decides draft lengths. `fixed` is a number of tokens, or None to adapt; `others` how many
    tokens of other requests the same forwards verify.

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

    def begin_round(self) -> None:
        self.rows = self.costs.verifications(self.others)

    def for_request(self, fixed: int | None) -> Policy:
        """A policy for one more request: what was learnt is shared, and goes on growing from
        request to request."""
        return Policy(fixed, self.limit, self.costs, self.acceptance)

    def accepted(self, source: str) -> Acceptance:
        """The acceptance rates of a source."""
        if source not in self.acceptance:
            self.acceptance[source] = Acceptance()
        return self.acceptance[source]

    @property
    def pace(self) -> float:
        """Seconds a token of late; before the first round, and at most, those of autoregressive
        decoding. Of a shared forward, what falls to one of its tokens."""
        baseline = self.rows[1] / (self.others + 1)
        return min(baseline, self._seconds / self._tokens) if self._tokens else baseline

    def saw_round(self, seconds: float, tokens: int) -> None:
        """A round took `seconds` and gave `tokens` tokens."""
        seconds /= self.others + 1
        self.costs.since_probe += seconds
        self._seconds = 0.9 * self._seconds + seconds
        self._tokens = 0.9 * self._tokens + tokens

    def probe_due(self, seconds: float) -> bool:
        """Whether to ask a source that does not seem to pay, which takes `seconds`, in order to
        notice a change: when that is a small enough share of the time since it was asked last."""
        if seconds > PROBE_SHARE * self.costs.since_probe:
            return False
        self.costs.since_probe = 0.0
        return True

    def gain(self, drafted: int, survival: float, acceptance: float, step: float) -> float:
        """Seconds that drafting on is expected to save: after `drafted` tokens, all accepted
        with chance `survival`, by tokens accepted with chance `acceptance` each that take `step`
        seconds each to draft. 0 if none pays. Looks as far ahead as drafts may go, since costs
        rise in steps."""
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
        """How many of these drafted tokens to have verified, given each one's chance to be
        accepted if all before it are and the seconds `spent` on drafting: the number that
        maximises the expected tokens of the round over its seconds."""
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
