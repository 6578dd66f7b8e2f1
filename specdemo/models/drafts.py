"""What a draft promises, by Leviathan et al. (arXiv 2211.17192)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

ASSUMED_ACCEPTANCE = {"pythia-70m": 0.45, "pythia-160m": 0.5, "pythia-1b-int4-ov": 0.6}
"""Of a draft model's tokens, for rehearsals: assumptions, not measurements."""


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens that a round yields: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))


def promised_speedup(costs: Mapping[int, float], step: float, rate: float) -> float:
    """Theorem 3.8 at the best draft length, with a target's `costs` of forwards by their number of
    tokens (from 1 on, linear between those given), and a draft step's; in one unit of time."""
    sizes = sorted(costs)
    verify = np.maximum.accumulate([costs[size] for size in sizes])

    def speedup(length: int) -> float:
        seconds = length * step + np.interp(length + 1, sizes, verify)
        return float(expected_tokens(rate, length) * costs[1] / seconds)

    return max(map(speedup, range(1, sizes[-1])))
