"""Whether two samples come from one distribution: total variation distance, its noise floor, a permutation test.

Pure numpy. A sample is one list of outcomes per prompt; prompts are never mixed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

PERMUTATIONS = 4000
NOISE_QUANTILE = 0.99

Sample = Sequence[Sequence[Hashable]]


def tv_distance(a: Sample, b: Sample) -> float:
    """Total variation distance between the empirical distributions, 0 to 1: the mean over prompts, each weighted by
    its outcomes. Raises ValueError for samples over different prompts or without outcomes."""
    weights = _weights(a, b)
    return float(sum(w * _tv(left, right) for (left, right), w in zip(_counts(a, b), weights, strict=True)))


def permutation_test(a: Sample, b: Sample, *, seed: int = 0, permutations: int = PERMUTATIONS) -> float:
    """The p-value of the observed distance if which sample an outcome belongs to did not matter: small means that the
    two differ. Labels are exchanged within each prompt; at least 1 / (permutations + 1)."""
    distances = permuted_distances(a, b, seed=seed, permutations=permutations)
    # Distances are sums of multiples of 1/n: equal ones may differ in their last bits.
    return float((1 + np.count_nonzero(distances >= tv_distance(a, b) - 1e-9)) / (1 + permutations))


def noise_floor(a: Sample, b: Sample, *, seed: int = 0, permutations: int = PERMUTATIONS) -> float:
    """The distance that two samples of these sizes from one distribution stay below in 99 of 100 cases, when `a` and
    `b` are known to come from it."""
    return float(np.quantile(permuted_distances(a, b, seed=seed, permutations=permutations), NOISE_QUANTILE))


def permuted_distances(a: Sample, b: Sample, *, seed: int, permutations: int) -> np.ndarray:
    """float64 [permutations]: distances after exchanging labels at random within each prompt."""
    rng = np.random.default_rng(seed)
    weights = _weights(a, b)
    total = np.zeros(permutations)
    for (left, right), weight in zip(_counts(a, b), weights, strict=True):
        pool = left + right
        drawn = rng.multivariate_hypergeometric(pool, int(left.sum()), size=permutations, method="marginals")
        total += weight * _tv(drawn, pool - drawn)
    return total


def _tv(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Half the summed absolute differences of relative counts, over the last axis."""
    return 0.5 * np.abs(left / left.sum(axis=-1, keepdims=True) - right / right.sum(axis=-1, keepdims=True)).sum(
        axis=-1
    )


def _weights(a: Sample, b: Sample) -> np.ndarray:
    if len(a) != len(b) or not a or not all(map(len, a)) or not all(map(len, b)):
        raise ValueError("both samples need outcomes for the same prompts")
    sizes = np.array([len(x) + len(y) for x, y in zip(a, b, strict=True)], float)
    return sizes / sizes.sum()


def _counts(a: Sample, b: Sample) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each prompt, how often each outcome was seen in either sample (int64 [outcomes] each)."""
    tables = []
    for left, right in zip(a, b, strict=True):
        index = {outcome: at for at, outcome in enumerate(dict.fromkeys([*left, *right]))}
        counts = np.zeros((2, len(index)), np.int64)
        for row, outcomes in enumerate((left, right)):
            for outcome in outcomes:
                counts[row, index[outcome]] += 1
        tables.append((counts[0], counts[1]))
    return tables
