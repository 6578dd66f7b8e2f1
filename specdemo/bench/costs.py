"""The expected speed-up by Leviathan et al. (arXiv 2211.17192), with costs measured from traces.
Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from specdemo.trace import Trace


@dataclass(frozen=True, slots=True)
class CostTable:
    """Median seconds. `plain`: of one token of autoregressive decoding. `draft_step`: of one token
    of the draft model, 0 if it drafted none. `verify`: of a target forward, by number of tokens,
    ascending."""

    plain: float
    draft_step: float
    verify: dict[int, float]

    def verify_seconds(self, tokens: float) -> float:
        """Seconds to verify `tokens` tokens: linear interpolation between the measured sizes, made
        non-decreasing. Beyond the largest size, the mean slope continues."""
        sizes = list(self.verify)
        seconds = np.maximum.accumulate(list(self.verify.values()))
        slope = (seconds[-1] - seconds[0]) / max(sizes[-1] - sizes[0], 1)
        beyond = max(tokens - sizes[-1], 0) * slope
        return float(np.interp(tokens, sizes, seconds) + beyond)


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Expected tokens of a round: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))


def expected_speedup(
    acceptance: float, draft_tokens: int, costs: CostTable, draft_step: float | None = None
) -> float:
    """Speed-up over autoregressive decoding: theorem 3.8, but a verification takes its measured
    seconds, not those of one token. `draft_step` (seconds) replaces the measured one."""
    step = costs.draft_step if draft_step is None else draft_step
    seconds = draft_tokens * step + costs.verify_seconds(draft_tokens + 1)
    return expected_tokens(acceptance, draft_tokens) * costs.plain / seconds


def measured_costs(traces: Sequence[Trace]) -> CostTable | None:
    """Median costs over all traces; None if they have no baseline or no round."""
    verify: dict[int, list[float]] = defaultdict(list)
    steps: list[float] = []
    plain: list[float] = []
    for trace in traces:
        for round_ in trace.decoding_rounds:
            verify[len(round_.drafted) + 1].append(round_.verify_seconds)
            if round_.draft_seconds:
                from_model = sum(token.draft_probability is not None for token in round_.drafted)
                steps.append(round_.draft_seconds / max(from_model, 1))
        if trace.baseline:
            plain += np.diff([token.shown_at for token in trace.baseline.tokens]).tolist()
    if not verify or not plain:
        return None
    sizes = {size: median(seen) for size, seen in sorted(verify.items())}
    return CostTable(median(plain), median(steps or [0.0]), sizes)
