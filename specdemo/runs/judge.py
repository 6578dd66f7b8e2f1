"""The one judge of races and benchmarks: pairs of runs in, a verdict and its sentence out. It reads
no clock and knows no models."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median_low
from typing import Literal

CONFIDENCE = 0.95
"""A verdict is given where the interval of the median holds it with this probability."""

MIN_RACES = 6
"""The fewest pairs that reach CONFIDENCE: n pairs agree by chance in 2 of 2^n cases."""

MIN_SHARE = 0.8
"""A run does not count if other programs left it less than this share of its processor time: below,
the two ways slow down differently. Two cores: 0.95 to 0.97 alone, 0.5 beside one busy program."""

FRACTIONS = {"a quarter": 0.25, "a third": 0.33, "half": 0.5, "three quarters": 0.75, "most": 0.9}


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """The same work with and without drafts."""

    speedup: float  # how many times as fast drafts made it
    why: str = ""  # that does not count; "": it counts
    autoregressive: float | None = None  # tokens/s, where they are asked for
    speculative: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on pairs of runs."""

    speedup: float  # the median; of two in the middle the lower one
    interval: tuple[float, float]  # contains the true median with probability `sure`
    sure: float
    races: int  # that count
    faster: int  # of those, with drafts
    uncounted: int = 0  # that do not count
    why: str = ""  # most of those do not
    unit: str = "race"  # the word for a pair

    @property
    def result(self) -> Literal["faster", "slower", "undecided"]:
        """Faster or slower if the interval, in the two digits that are shown, excludes 1."""
        low, high = (round(end, 2) for end in self.interval)
        if self.sure < CONFIDENCE or low <= 1 <= high:
            return "undecided"
        return "faster" if low > 1 else "slower"

    @property
    def headline(self) -> str:
        """A few words. One race has its figure, and decides nothing."""
        if not self.races:
            return f"Not counted: {self.why}" if self.why else "Nothing to compare"
        if self.races == 1:
            return f"{times(self.speedup)} in this {self.unit}"
        if self.result == "undecided":
            return f"Undecided: {self.faster} of {self.races} {self.unit}s were faster"
        return times(self.speedup)

    @property
    def detail(self) -> str:
        """The interval and how sure it is, or what is missing."""
        low, high = self.interval
        few = f"at least {MIN_RACES} decide"
        if self.races < 2:
            return few
        sure = f"{100 * self.sure:.0f} % confidence" if self.races >= MIN_RACES else few
        return f"{low:.2f} to {high:.2f} over {self.races} {self.unit}s ({sure})"

    @property
    def sentence(self) -> str:
        words = f"{self.headline}{';' if self.result == 'undecided' else ':'} {self.detail}."
        if self.uncounted and self.races:
            words += f" {self.uncounted} not counted: {self.why}."
        return words


def judge(pairs: Iterable[PairedRuns], unit: str = "race") -> Verdict:
    """The verdict of `pairs`, of which those without a `why` count."""
    counted, reasons = [], Counter[str]()
    for pair in pairs:
        if pair.why:
            reasons[pair.why] += 1
        else:
            counted.append(pair.speedup)
    [(why, _)] = reasons.most_common(1) or [("", 0)]
    low, high, sure = median_interval(counted)
    faster = sum(round(speedup, 2) > 1 for speedup in counted)
    middle = median_low(counted) if counted else 0.0
    return Verdict(middle, (low, high), sure, len(counted), faster, reasons.total(), why, unit)


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The narrowest interval between order statistics that holds the median with a probability of
    at least CONFIDENCE, and that probability; of fewer than MIN_RACES values the widest one. As in
    the sign test, a value lies above the median in one of two cases, whatever its distribution."""
    ordered, number = sorted(values), len(values)
    if not number:
        return 0.0, 0.0, 0.0
    below = 0.0  # probability that the median lies below the lower end
    place = -1
    while place < 0 or 1 - 2 * (below + comb(number, place + 1) / 2**number) >= CONFIDENCE:
        place += 1
        below += comb(number, place) / 2**number
    return ordered[place], ordered[number - 1 - place], 1 - 2 * below


def times(speedup: float) -> str:
    """A speed-up as it is written everywhere."""
    return f"{speedup:.2f}x"


def starved(share: float) -> str:
    """Why a run that got this share of its processor time does not count; "" if it does."""
    if share >= MIN_SHARE:
        return ""
    taken = min(FRACTIONS, key=lambda name: abs(FRACTIONS[name] - (1 - share)))
    return f"other programs take {taken} of this machine"
