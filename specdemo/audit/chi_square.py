"""The chi-square test of drawn beginnings of answers."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from specdemo.audit.engines import Outcomes, Tokens

MIN_EXPECTED = 5.0  # draws of an outcome, below which chi-square merges it with others


def chi_square(samples: Sequence[Counter[Tokens]], exact: Outcomes) -> tuple[float, float, float]:
    """The chi-square test of one sample against `exact` probabilities or, without them, of two
    samples of one unknown distribution: the p-value (0 if an outcome was drawn that is impossible),
    the total variation distance, and its mean for correct draws."""
    outcomes = list(dict.fromkeys(itertools.chain(exact, *samples)))
    counts = np.array([[sample[outcome] for outcome in outcomes] for sample in samples], float)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts.sum(axis=0) / totals.sum()
    reference = counts[-1] / totals[-1]
    if exact:
        reference = shares = np.array([exact.get(outcome, 0.0) for outcome in outcomes])
    distance = 0.5 * float(abs(counts[0] / totals[0] - reference).sum())
    variances = shares * (1 - shares) * (1 / totals).sum()
    floor = 0.5 * float(np.sqrt(2 * variances / math.pi).sum())
    if counts[0][shares == 0].any():
        return 0.0, distance, floor
    order = np.argsort(shares)
    groups = group_begins(totals.min() * shares[order])
    drawn = np.add.reduceat(counts[:, order], groups, axis=1)
    expected = totals * np.add.reduceat(shares[order], groups)
    statistic = float(((drawn - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, len(groups) - 1), distance, floor


def group_begins(expected: np.ndarray) -> list[int]:
    """Where groups of outcomes begin, given the draws `expected` of each in ascending order: rare
    ones are merged until MIN_EXPECTED draws of them are expected."""
    groups, total = [0], 0.0
    for index, mean in enumerate(expected):
        if total >= MIN_EXPECTED:
            groups.append(index)
            total = 0.0
        total += mean
    return groups[:-1] if total < MIN_EXPECTED and len(groups) > 1 else groups


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that chi-square with `freedom` degrees is at least `statistic`: the
    regularized incomplete gamma function Q(freedom / 2, statistic / 2), by its recurrence."""
    half = statistic / 2
    if freedom < 1 or half <= 0:
        return 1.0
    shape, tail = (0.5, math.erfc(math.sqrt(half))) if freedom % 2 else (1.0, math.exp(-half))
    while shape < freedom / 2:
        tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(tail, 1.0)
