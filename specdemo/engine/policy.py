"""How many tokens to draft: a fixed number, or as many as are expected to pay for themselves.

Knows costs (seconds, measured as it runs) and acceptance rates (counted as it runs); no models, no tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

import numpy as np

MAX_DRAFT = 15
"""Longest adaptive draft: with the token before it, 16 rows of verification."""


PROBE_SHARE = 0.015
"""Of the time spent decoding plainly, what may go into looking whether drafting would pay by now."""


LEVEL_RATE = 0.05
"""How fast the machine's present speed is followed: the weight of each new measurement."""


FRESH, OPTIMISM, HALF = 200, 0.998, 0.5
"""For how many forwards a measurement is believed as it is, and how its cost shrinks with each one after that, down to
half."""


CONTEXT_STEP = 16
"""Tokens of context that costs are told for together."""


READ_EVERY = 6
"""Measurements after which the table of costs is made anew: medians hardly move, and making it takes a while."""


class Costs:
    """Seconds a draft step and a verification of n tokens take here, from medians of the last measurements.

    A size that was not seen yet is interpolated between its neighbours, or extended from the last slope: never below
    the cost of a smaller one. Two things change all sizes together, whether or not they are being used: the length of
    the context (`grew` says how fast) and what else the machine is doing, of which each measurement is a sign. A size
    that is not used any more is believed to become cheaper, until it is used again: a measurement that something else
    on the machine spoiled must not keep it from ever being tried.
    """

    LARGEST = MAX_DRAFT + 1
    """Tokens; larger forwards, which several requests share, are reckoned by the row."""

    def __init__(self, window: int = 9):
        self._verify: dict[int, deque[float]] = {}
        self._growth: dict[int, float] = {}
        self._growths = [0.0] * (self.LARGEST + 1)
        self._draft: deque[float] = deque(maxlen=window)
        self._draft_step = 0.0
        self._window = window
        self._table: list[float] = []
        self._slopes: list[float] = []
        self.version = 0
        """Changes whenever the costs that are told do."""
        self._unread = 0
        self._read_tokens = 0
        self._read_seconds = 0.0
        self._level = 1.0
        self._first: dict[int, float] = {}
        self._forwards = 0
        self._large: deque[float] = deque(maxlen=window)
        self._large_at = 0
        self._seen_at: dict[int, int] = {}
        self._level_at: dict[int, float] = {}

    def saw_verify(self, tokens: int, seconds: float, context: int = 0) -> None:
        """A target forward of `tokens` tokens after `context` others took `seconds`."""
        if tokens > self.LARGEST:
            self._large.append(seconds / tokens / (1 + self._growths[self.LARGEST] * context))
            self._large_at = self._forwards
            self.version += 1
            return
        usual = seconds / (1 + self._growths[tokens] * context)
        self._forwards += 1
        # Against the first measurement ever and not the last ones: two levels that follow each other run away together.
        ratio = usual / self._first.setdefault(tokens, usual)
        self._level += LEVEL_RATE * (min(max(ratio, self._level / 2), self._level * 2) - self._level)
        known = self._verify.setdefault(tokens, deque(maxlen=self._window))
        if self._age(tokens) > 2 * FRESH:
            known.clear()
        self._seen_at[tokens] = self._forwards
        self._level_at[tokens] = self._level
        known.append(usual)
        self._unread += 1
        if len(known) < 3 or self._unread >= READ_EVERY:
            self._table = []
            self._unread = 0
            self.version += 1

    def grew(self, tokens: int, share: float) -> None:
        """A forward of `tokens` tokens takes `share` longer for each token of context."""
        self._growth[tokens] = max(share, 0.0)
        sizes = sorted(self._growth)
        known = [self._growth[size] for size in sizes]
        self._growths = np.interp(range(self.LARGEST + 1), sizes, known).tolist()
        self.version += 1

    def saw_draft(self, seconds: float) -> None:
        self._draft.append(seconds)
        self._draft_step = _median(self._draft)

    def saw_reading(self, tokens: int, seconds: float) -> None:
        """The draft model read `tokens` tokens of text that others had written."""
        self._read_tokens += tokens
        self._read_seconds += seconds

    @property
    def draft_step(self) -> float:
        """Seconds for one draft token; 0 until one was seen (so that it is tried)."""
        return self._draft_step

    def reading(self, tokens: int) -> float:
        """Seconds for the draft model to read `tokens` tokens; before it ever did, an eighth of a step each."""
        each = self._read_seconds / self._read_tokens if self._read_tokens else self.draft_step / 8
        return tokens * each

    def verify(self, tokens: int, context: int = 0) -> float:
        """Seconds for one target forward of `tokens` tokens after `context` others; 0 until any was seen."""
        table = self._known()
        size = min(tokens, self.LARGEST)
        seconds = table[size]
        seconds *= 1 + self._growths[size] * context
        return seconds + (tokens - size) * self.row(context) if tokens > size else seconds

    def verifications(self, context: int) -> list[float]:
        """`verify` of 0 to LARGEST tokens after `context` others."""
        return [seconds * (1 + growth * context) for seconds, growth in zip(self._known(), self._growths, strict=True)]

    def least_row(self, tokens: int) -> float:
        """Seconds that each token more adds at least to a forward of `tokens`, however many more there are."""
        self._known()
        return self._slopes[tokens]

    def row(self, context: int = 0) -> float:
        """Seconds that one token more adds to a large forward: what the tokens of such ones took lately, if any were run."""
        table, half = self._known(), self.LARGEST // 2
        seconds = (table[self.LARGEST] - table[half]) / half
        if self._large and self._forwards - self._large_at < FRESH:
            seconds = max(seconds, _median(self._large))
        return seconds * (1 + self._growths[self.LARGEST] * context)

    def _known(self) -> list[float]:
        if not self._table:
            table = self._table = self._interpolate()
            self._slopes = [
                min(((table[more] - here) / (more - size) for more in range(size + 1, len(table))), default=0.0)
                for size, here in enumerate(table)
            ]
        return self._table

    def _age(self, tokens: int) -> int:
        return self._forwards - self._seen_at.get(tokens, self._forwards)

    def _usual(self, tokens: int) -> float:
        """What forwards of `tokens` tokens take now, by their last measurements and by what happened to others since."""
        return _median(self._verify[tokens]) * self._level / self._level_at[tokens]

    def _interpolate(self) -> list[float]:
        sizes = sorted(self._verify)
        every = range(self.LARGEST + 1)
        if not sizes:
            return [0.0] * len(every)
        hopes = [max(OPTIMISM ** max(self._age(size) - FRESH, 0), HALF) for size in sizes]
        hope = np.interp(every, sizes, hopes)
        seconds = [self._usual(size) for size in sizes]
        if sizes[-1] < self.LARGEST:
            slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.1 * seconds[0]
            seconds.append(seconds[-1] + max(slope, 0.0) * (self.LARGEST - sizes[-1]))
            sizes.append(self.LARGEST)
        # A larger verification cannot truly be cheaper, nor dearer than two of half its size: other figures are noise.
        table = np.maximum.accumulate(np.interp(every, sizes, seconds)).tolist()
        for tokens in every[2:]:
            table[tokens] = min(table[tokens], table[tokens // 2] + table[tokens - tokens // 2])
        return np.maximum.accumulate(table * hope).tolist()


@dataclass(slots=True)
class Rate:
    """A share of successes that forgets: counts of which each new observation leaves `decay`."""

    decay: float
    accepted: float = 0.0
    seen: float = 0.0

    def saw(self, accepted: float) -> None:
        self.accepted = self.accepted * self.decay + accepted
        self.seen = self.seen * self.decay + 1

    def fade(self, weight: float) -> None:
        """Count all that was seen as `weight` observations at most."""
        if self.seen > weight:
            self.accepted *= weight / self.seen
            self.seen = weight

    def value(self, prior: float = 0.0, weight: float = 0.0) -> float:
        """The share, with `prior` counted as `weight` observations more."""
        return (self.accepted + prior * weight) / (self.seen + weight)


class Calibration:
    """What a drafter's confidence is worth: the observed acceptance rate in each band of confidence.

    A drafter's own probability is only a hint, since drafts are over-confident off their training text. A band that
    has seen little leans on that hint, put right by what hints were worth over all; and that, at first, on hope, which
    is forgotten like everything else: a draft that is never tried teaches nothing.
    """

    FIRST_HOPE = 0.75
    HOPES = 6.0
    BANDS = 8
    OTHER_TEXTS = 8.0
    """Observations as which all that was learnt on other texts counts when a new one begins."""

    def __init__(self):
        self.bands = [Rate(decay=0.98) for _ in range(self.BANDS)]
        self.total = Rate(0.985, self.FIRST_HOPE * self.HOPES, self.HOPES)
        self.claimed = Rate(0.985, self.FIRST_HOPE * self.HOPES, self.HOPES)
        self._worth = 1.0
        """Of a hint, over all."""

    @property
    def overall(self) -> float:
        """Expected acceptance of a token about which nothing is known yet."""
        return self.total.value()

    @property
    def hopeful(self) -> float:
        """`overall` and one standard error more: what decides whether to go on drafting at all, since giving up on a
        good draft because of a bad run is dearer than a few drafts too many."""
        rate = self.overall
        return min(rate + math.sqrt(rate * (1 - rate) / max(self.total.seen, 1.0)), 1.0)

    def __call__(self, confidence: float) -> float:
        """Expected acceptance of a token drafted with this confidence."""
        return self._band(confidence).value(min(confidence * self._worth, 1.0), 1.0)

    def saw(self, confidence: float, accepted: bool) -> None:
        self._band(confidence).saw(accepted)
        self.total.saw(accepted)
        self.claimed.saw(confidence)
        self._worth = self.overall / self.claimed.value()

    def begin_text(self) -> None:
        """What comes now may be guessed better or worse than what came before."""
        for rate in (*self.bands, self.total, self.claimed):
            rate.fade(self.OTHER_TEXTS)
        self._worth = self.overall / self.claimed.value()

    def _band(self, confidence: float) -> Rate:
        return self.bands[min(int(confidence * self.BANDS), self.BANDS - 1)]


class Improvement:
    """How much likelier to be accepted a token becomes by asking the draft model, by how likely a free guess was.

    Starts on hope, like a calibration.
    """

    BANDS = (0.1, 0.25, 0.5, 1.01)

    def __init__(self):
        self.bands = [Rate(0.98, 0.3 * 4 * (1 - band), 4.0) for band in self.BANDS]

    def __call__(self, free: float) -> float:
        """What to expect of asking, given a free guess that is accepted with chance `free` (0 for none)."""
        return self._band(free).value()

    def saw(self, free: float, gained: float) -> None:
        """Asking raised the chance by `gained`: 0 where the guess stayed the better one."""
        self._band(free).saw(gained)

    def _band(self, free: float) -> Rate:
        return self.bands[bisect_right(self.BANDS, free)]


@dataclass(slots=True)
class Policy:
    """Decides draft lengths. `fixed` is a number of tokens, or None to adapt; `context` how many tokens come before,
    and `others` how many tokens of other requests the same forwards verify.

    The adaptive rule is the renewal-reward one: while decoding runs at `pace` seconds a token, a draft token is
    worth drafting when the chance that it ends up in the answer, times `pace`, exceeds the seconds it adds.
    Leviathan et al. (section 3.5) choose one length from one acceptance rate; here both vary token by token.
    """

    fixed: int | None = None
    limit: int = MAX_DRAFT
    costs: Costs = field(default_factory=Costs)
    calibration: dict[str, Calibration] = field(default_factory=dict)
    improvement: Improvement = field(default_factory=Improvement)
    context: int = 0
    others: int = 0
    _seconds: float = 0.0
    _tokens: float = 0.0
    _since_probe: float = 0.0
    _rows: list[float] = field(default_factory=list)
    _rows_for: tuple[int, int, int] | None = None

    def calibrated(self, source: str) -> Calibration:
        found = self.calibration.get(source)
        if found is None:
            found = self.calibration[source] = Calibration()
        return found

    def begin_text(self) -> None:
        """A new answer begins."""
        for calibration in self.calibration.values():
            calibration.begin_text()

    def verify(self, tokens: int) -> float:
        """Seconds of the forward in which `tokens` tokens are verified, those of others included."""
        return self._verifications()[tokens]

    def _verifications(self) -> list[float]:
        """`verify` of 0 to MAX_DRAFT + 1 tokens: asked for many times a round, and made once."""
        context = self.context // CONTEXT_STEP * CONTEXT_STEP
        wanted = (self.costs.version, context, self.others)
        if wanted != self._rows_for:
            self._rows_for = wanted
            if self.others:
                # Costs rise in steps. Alone, a token that stays below the next step is free; of those who share a forward
                # each would think so, and together they would take the step. So each pays for its rows, and for the whole
                # step where it would be the one to take it.
                costs, others = self.costs, self.others
                first, row = costs.verify(others + 1, context), costs.row(context)
                self._rows = [
                    max(first + (tokens - 1) * row, costs.verify(others + tokens, context))
                    for tokens in range(MAX_DRAFT + 2)
                ]
            else:
                self._rows = self.costs.verifications(context)
        return self._rows

    def row(self, tokens: int) -> float:
        """Seconds that one token more adds to the verification of `tokens`."""
        rows = self._verifications()
        return rows[tokens + 1] - rows[tokens]

    def pays(self, drafted: int, worth: float) -> bool:
        """Whether any token after `drafted` others could pay, even if it were sure to be right: it is then `worth` so many
        seconds."""
        if self.others:
            return worth > self.costs.row(self.context)
        return worth > self.costs.least_row(drafted + 1)

    @property
    def pace(self) -> float:
        """Seconds a token of late; before the first round, those of plain decoding. Of a forward that is shared, what
        falls to one of its tokens."""
        plain = self.verify(1) / (self.others + 1)
        return min(plain, self._seconds / self._tokens) if self._tokens else plain

    def saw_round(self, seconds: float, tokens: int) -> None:
        """A round took `seconds` and gave `tokens` tokens."""
        seconds /= self.others + 1
        self._since_probe += seconds
        self._seconds = 0.9 * self._seconds + seconds
        self._tokens = 0.9 * self._tokens + tokens

    def worth_drafting(self, *, drafted: int, survival: float, expected: float, step: float) -> bool:
        """Whether to draft one more token, after `drafted` of which all are accepted with chance `survival`.

        `expected` is the acceptance to expect of each further token and `step` the seconds to draft it. Looks as
        far ahead as the limit, since verification costs rise in steps.
        """
        if self.fixed is not None:
            return drafted < self.fixed
        rows, pace = self._verifications(), self.pace
        here = rows[drafted + 1]
        gain = 0.0
        for further in range(1, self.limit - drafted + 1):
            survival *= expected
            gain += survival * pace
            if gain > further * step + rows[drafted + further + 1] - here:
                return True
            if survival < 0.02:
                break
        return False

    def best_draft(self, acceptances: list[float], step: float = 0.0) -> tuple[int, float]:
        """The best number of tokens to have verified, and the seconds that is expected to save over none.

        `acceptances` are each token's chance to be accepted if all before it are; `step` the seconds each one
        still costs to draft (0 for tokens that are there already).
        """
        best, saved = 0, 0.0
        rows = self._verifications()
        plain = rows[1]
        survival, expected = 1.0, 1.0
        gains, pace = [], self.pace
        for length, acceptance in enumerate(acceptances[: self.limit], start=1):
            survival *= acceptance
            expected += survival
            gains.append(survival)
            # Where the text is easy, the next round would have it easy too: a token saves what one costs there.
            pace = min(pace, (length * step + rows[length + 1]) / expected)
            if survival < 0.02:
                break
        gain = 0.0
        for length, survival in enumerate(gains, start=1):
            gain += survival * pace
            value = gain - length * step - (rows[length + 1] - plain)
            if value > saved:
                best, saved = length, value
        if self.fixed is not None:
            best = min(self.fixed, len(acceptances))
        return best, saved

    def affords_probe(self, seconds: float) -> bool:
        return seconds <= PROBE_SHARE * self._since_probe

    def probe_due(self, seconds: float) -> bool:
        """Called when nothing seems worth drafting: true now and then, to notice a change.

        A probe that will take `seconds` is due once it is a small enough share of the time since the last one.
        """
        if not self.affords_probe(seconds):
            return False
        self._since_probe = 0.0
        return True


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens a round yields: (1 - a^(k+1)) / (1 - a), Leviathan et al. equation 1."""
    if math.isclose(acceptance, 1.0):
        return draft_tokens + 1.0
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


def expected_speedup(acceptance: float, draft_tokens: int, *, draft_step: float, verify: float, plain: float) -> float:
    """Speed-up over plain decoding: Leviathan et al. theorem 3.8, with a verification that need not cost what one
    plain step does. All costs in the same unit."""
    return expected_tokens(acceptance, draft_tokens) * plain / (draft_tokens * draft_step + verify)


def _median(values: deque[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
