"""How draws agree with a known distribution: total variation distance, chi-square test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

LEAST_EXPECTED = 5.0
"""The chi-square test counts outcomes together until they are expected this often."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How draws agree with the exact distribution. `tv_noise_floor` is the expected distance of as
    many draws from that distribution itself; `p_value` that of Pearson's chi-square test, 0 where
    an outcome was drawn that the distribution excludes."""

    draws: int
    outcomes: int
    tv_distance: float
    tv_noise_floor: float
    p_value: float


def fit(counts: Counter[Hashable], exact: Mapping[Hashable, float]) -> Fit:
    """`counts` of the drawn outcomes (one at least), `exact` probabilities that sum to 1."""
    draws = counts.total()
    apart = sum(abs(counts[outcome] / draws - chance) for outcome, chance in exact.items())
    impossible = sum(count for outcome, count in counts.items() if not exact.get(outcome))
    return Fit(
        draws=draws,
        outcomes=len(exact),
        tv_distance=0.5 * (apart + impossible / draws),
        tv_noise_floor=expected_distance(exact, draws),
        p_value=0.0 if impossible else chi_square_p_value(counts, exact),
    )


def expected_distance(exact: Mapping[Hashable, float], draws: int) -> float:
    """The expected total variation distance of `draws` draws from `exact` to it: half the sum of
    the mean absolute deviations of binomial shares, each in closed form (de Moivre)."""
    total = 0.0
    for chance in exact.values():
        above = math.floor(draws * chance) + 1
        if 0 < chance < 1 and above <= draws:
            log_choose = (
                math.lgamma(draws + 1) - math.lgamma(above + 1) - math.lgamma(draws - above + 1)
            )
            log_term = above * math.log(chance) + (draws - above + 1) * math.log1p(-chance)
            total += 2 * above * math.exp(log_choose + log_term) / draws
    return 0.5 * total


def chi_square_p_value(counts: Counter[Hashable], exact: Mapping[Hashable, float]) -> float:
    """Of Pearson's test, rare outcomes counted together; 1 where nothing is left to compare."""
    draws = counts.total()
    statistic, cells, count, expected = 0.0, 0, 0, 0.0
    for outcome, chance in sorted(exact.items(), key=lambda item: item[1]):
        count += counts[outcome]
        expected += draws * chance
        if expected >= LEAST_EXPECTED:
            statistic += (count - expected) ** 2 / expected
            cells, count, expected = cells + 1, 0, 0.0
    return chi_square_tail(statistic, cells - 1)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(X >= statistic) for a chi-square distribution with `degrees` degrees of freedom: the
    regularized upper incomplete gamma function Q(degrees / 2, statistic / 2), by its recurrence."""
    half = statistic / 2
    if degrees < 1 or half == 0:
        return 1.0
    shape = 0.5 if degrees % 2 else 1.0
    tail = math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half)
    while shape < degrees / 2:
        tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(tail, 1.0)
