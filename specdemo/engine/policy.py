"""Decides how many tokens to draft: a fixed number, or the number with the best expected speed.
Counts acceptance rates during decoding. Knows no models and no token ids."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

from .cost_model import LARGEST, CostModel

MAX_DRAFT = LARGEST - 1  # tokens of the longest draft, verified together with the token before it

PAUSE_ROUNDS, MAX_PAUSE = 64.0, 1024.0  # without drafts, after they have lost
RISK = 6.0
"""Rounds that drafts may lose before they are left: fewer would be chance, since a round gives one
token or ten."""
MAX_LOSS = 2.0
"""Rounds that one round may count as lost: what takes much longer was slowed by other programs."""

DECAY, FADING = 0.98, 0.9995  # weight that a new observation, and a round, leave to earlier ones


class Rate:
    """A share of successes. At first there are `weight` observations of `prior`."""

    def __init__(self, prior: float, weight: float):
        self.accepted = prior * weight
        self.seen = weight

    @property
    def value(self) -> float:
        return self.accepted / self.seen

    @property
    def upper_bound(self) -> float:
        """The share plus one standard error: dropping a good source after a bad run costs more than
        asking a few times too often."""
        return min(self.value + math.sqrt(self.value * (1 - self.value) / self.seen), 1.0)

    def fade(self) -> None:
        """Make it less certain, so that a source that is not asked will be asked again."""
        self.accepted *= FADING
        self.seen *= FADING

    def record(self, accepted: float) -> None:
        self.accepted = self.accepted * DECAY + accepted
        self.seen = self.seen * DECAY + 1


class Acceptance:
    """The acceptance rate of one source: in total, and in each band of its confidence."""

    BANDS = 8

    def __init__(self, counts: list[tuple[float, float]] | None = None):
        self.bands = [Rate((band + 0.5) / self.BANDS, 2.0) for band in range(self.BANDS)]
        self.total = Rate(0.75, 4.0)
        self.unasked = 0.0  # rounds since the source was asked
        for rate, (accepted, seen) in zip([*self.bands, self.total], counts or [], strict=False):
            rate.accepted, rate.seen = min(accepted, seen), seen

    @property
    def counts(self) -> list[tuple[float, float]]:
        """(accepted, seen) of each band, then of the total."""
        return [(rate.accepted, rate.seen) for rate in [*self.bands, self.total]]

    def __call__(self, confidence: float) -> float:
        """Expected acceptance of a token proposed with this confidence, in [0, 1]."""
        return self._band(confidence).value

    def record(self, confidence: float, accepted: bool) -> None:
        self._band(confidence).record(accepted)
        self.total.record(accepted)

    def _band(self, confidence: float) -> Rate:
        if math.isnan(confidence):  # of a damaged head; a draft never ends an answer
            return self.bands[0]
        return self.bands[min(int(confidence * self.BANDS), self.BANDS - 1)]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What is expected of one round, and how many tokens to draft in it. All requests that share
    its forwards are expected to do as this one does, and each counts its share of the seconds.

    With the letters of Leviathan et al.: a draft of gamma tokens, each accepted with its own chance
    alpha, gives E = 1 + alpha_1 + alpha_1 alpha_2 + ... expected tokens (equation 1) in D seconds
    of drafting and V(gamma + 1) of verification. The adaptive rule maximises E / (D + V(gamma + 1))
    and drafts nothing where that is below 1 / V(1), autoregressive decoding.
    """

    fixed: int | None  # draft length
    limit: int  # of the draft length, if none is fixed
    rows: list[float]  # seconds of the forward in which each verifies 0, 1, ... tokens
    pace: float  # recent seconds a token, at most those of autoregressive decoding
    tokens_left: int  # at most so many follow

    @property
    def worth_drafting(self) -> bool:
        """Whether tokens that are certain and cost nothing would save time."""
        return self.fixed is not None or self.gain(0, 1.0, 1.0, 0.0) > 0

    def gain(self, drafted: int, survival: float, acceptance: float, step: float) -> float:
        """Seconds that drafting on is expected to save, 0 if it saves none. `survival` is the
        chance that all `drafted` tokens are accepted. Each further token is accepted with chance
        `acceptance` and takes `step` seconds to draft. Looks ahead to the longest draft, since
        costs rise in steps."""
        here = self.rows[drafted + 1]
        best = worth = 0.0
        for count in range(drafted + 1, self.limit + 1):
            survival *= acceptance
            worth += survival * self.pace - step
            gain = worth - self.rows[count + 1] + here
            if gain > best:
                best = gain
        return best


def shared_lengths(
    acceptances: Sequence[Sequence[float]], seconds: Sequence[float], spent: float = 0.0
) -> list[int]:
    """How many draft tokens of each request to verify in the forward that they share, so that all
    together get the most tokens a second. `acceptances` are the chances of each token if all before
    it are accepted; `seconds` are of forwards with 0, 1, ... of the draft tokens, and `spent` those
    of drafting."""
    survivals = [
        (-survival, position, request)
        for request, chances in enumerate(acceptances)
        for position, survival in enumerate(accumulate(chances, mul))
    ]
    expected = float(len(acceptances))
    best, count = expected / (spent + seconds[0] or 1.0), 0
    # No token is likelier than one before it in its draft.
    survivals.sort()
    for rows, (survival, _, _) in enumerate(survivals, start=1):
        expected -= survival
        rate = expected / (spent + seconds[rows] or 1.0)
        if rate > best:
            best, count = rate, rows
    lengths = Counter(request for _, _, request in survivals[:count])
    return [lengths[request] for request in range(len(acceptances))]


@dataclass(slots=True)
class Outcome:
    """What drafting has brought, beside what was planned. Where it has lost, drafts are left for
    some rounds, then tried again, and left for twice as many."""

    lost: float = 0.0  # by all requests, in rounds without drafts, at most RISK either way
    paused: float = 0.0  # rounds of the pause that are still to come
    pause: float = PAUSE_ROUNDS

    def record(self, lost: float, share: float) -> None:
        """A round of one request, of the pause the `share` of one that all run together: the more
        requests there are, the sooner they know."""
        if self.paused > 0:
            self.paused -= share
            return
        self.lost += min(lost, MAX_LOSS)
        if self.lost > RISK:
            self.lost, self.paused, self.pause = 0.0, self.pause, min(2 * self.pause, MAX_PAUSE)
        elif self.lost < -RISK:
            self.lost, self.pause = -RISK, PAUSE_ROUNDS


@dataclass(slots=True)
class Policy:
    """Plans the rounds of one request."""

    fixed: int | None = None  # draft length; None: it adapts
    limit: int = MAX_DRAFT  # of the draft length

    # All requests share the rest and learn from each other.
    costs: CostModel = field(default_factory=CostModel)  # of the target model
    acceptance: dict[str, Acceptance] = field(default_factory=dict)  # by source
    answering: set[int] = field(default_factory=set)  # ids of requests
    outcomes: dict[tuple[int, bool], Outcome] = field(default_factory=lambda: defaultdict(Outcome))
    """Of drafting, by the number of requests and whether a draft model was asked."""

    undrafted: dict[int, float] = field(default_factory=dict)
    """A request's own seconds in a recent round that sought no draft, by the number of requests."""

    _seconds: float = 0.0
    _tokens: float = 0.0

    def for_request(self, fixed: int | None, rates: dict[str, Acceptance] | None = None) -> Policy:
        """A policy for one more request. With `rates` of its own it shares all but these."""
        return replace(self, fixed=fixed, acceptance=self.acceptance if rates is None else rates)

    @property
    def requests(self) -> int:
        """How many requests share forwards."""
        return max(len(self.answering), 1)

    def paused(self, asks: bool) -> bool:
        """Whether drafts are left for now: all, or those that ask a draft model."""
        return self.fixed is None and self.outcomes[self.requests, asks].paused > 0

    def plan(self, context: int = 0, tokens_left: int = 0) -> RoundPlan:
        """The plan of a round after `context` tokens, with at most `tokens_left` to come."""
        rows = self.costs.forwards(self.requests, context)
        pace = rows[1]
        if self._tokens:
            pace = min(pace, self._seconds / self._tokens)
        return RoundPlan(self.fixed, self.limit, rows, pace, tokens_left)

    def accepted(self, source: str) -> Acceptance:
        """The acceptance rates of a source."""
        if source not in self.acceptance:
            self.acceptance[source] = Acceptance()
        return self.acceptance[source]

    def record_round(
        self,
        seconds: float,
        tokens: int,
        context: int = 0,
        drafting: float | None = None,
        own: float = 0.0,
    ) -> None:
        """A round after `context` tokens took `seconds` and gave `tokens` tokens. Draft models
        spent `drafting` of the seconds; None: no draft was sought. All requests have spent them
        together; each has spent its `own` seconds besides, one after another."""
        requests = self.requests
        share = 1 / requests
        for rates in self.acceptance.values():
            rates.total.fade()
            rates.unasked += share
        self._seconds = 0.9 * self._seconds + seconds * share
        self._tokens = 0.9 * self._tokens + tokens
        plain = self.costs.forward(requests, context)
        if not plain or self.fixed is not None:
            return  # no forward has been timed, or the length was not planned
        usual = self.undrafted.setdefault(requests, own)
        if drafting is None:
            self.undrafted[requests] = 0.9 * usual + 0.1 * own
        seconds += (requests - 1) * (own - usual)  # in which the others wait
        for asks in (True, False):
            sought = drafting is not None and asks == (drafting > 0)
            if sought or self.paused(asks):
                self.outcomes[requests, asks].record(seconds / plain - tokens, share)
