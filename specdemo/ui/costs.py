"""What drafting and verifying cost in a trace, and what Leviathan's equation makes of it. Pure functions of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from specdemo.trace import Trace, summarize


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of one run. Seconds a forward, and the acceptance rate (0 to 1).

    `plain` is one token of plain decoding, `draft` one draft token, `verify_fixed + verify_token * n` a verification
    of n tokens (the draft tokens and the one before them).
    """

    plain: float
    draft: float
    verify_fixed: float
    verify_token: float
    acceptance: float
    draft_length: float

    @property
    def ratio(self) -> float:
        """Leviathan's c: one draft step over one target step."""
        return self.draft / self.plain

    def verify(self, draft_length: float) -> float:
        return self.verify_fixed + self.verify_token * (draft_length + 1)


def tokens_per_round(acceptance: float, draft_length: float) -> float:
    """Expected tokens of a round (Leviathan et al., equation 1): (1 - a^(k+1)) / (1 - a)."""
    if acceptance >= 1.0:
        return draft_length + 1.0
    return (1.0 - acceptance ** (draft_length + 1)) / (1.0 - acceptance)


def expected_speedup(costs: Costs, acceptance: float, draft_length: float, ratio: float | None = None) -> float:
    """Theorem 3.8 of Leviathan et al. with this machine's verification cost in place of "as dear as one token".

    `ratio` replaces the measured cost of a draft token, as a fraction of a plain token.
    """
    draft = costs.draft if ratio is None else ratio * costs.plain
    spent = draft_length * draft + costs.verify(draft_length)
    return tokens_per_round(acceptance, draft_length) * costs.plain / spent


def measured_costs(trace: Trace) -> Costs | None:
    """The costs of a run, or None when it has no baseline or no drafted round to measure them from."""
    summary = summarize(trace)
    drafted = [r for r in trace.rounds if r.drafted]
    if not drafted or summary.acceptance_rate is None or not summary.baseline_decode_seconds:
        return None
    plain = 1.0 / summary.baseline_tokens_per_second
    draft = median(r.draft_seconds / len(r.drafted) for r in drafted)
    verifying = [r for r in trace.rounds if not (r.emitted and r.emitted.kind == "first") and r.verify_seconds > 0]
    fixed, slope = _line([(len(r.drafted) + 1, r.verify_seconds) for r in verifying or drafted])
    return Costs(
        plain=plain,
        draft=draft,
        verify_fixed=fixed,
        verify_token=slope,
        acceptance=summary.acceptance_rate,
        draft_length=sum(len(r.drafted) for r in drafted) / len(drafted),
    )


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Intercept and slope through the median of each x, by least squares; the slope is never negative."""
    groups: dict[int, list[float]] = {}
    for x, y in points:
        groups.setdefault(x, []).append(y)
    medians = [(x, median(ys), len(ys)) for x, ys in groups.items()]
    weight = sum(n for _, _, n in medians)
    mean_x = sum(x * n for x, _, n in medians) / weight
    mean_y = sum(y * n for _, y, n in medians) / weight
    spread = sum(n * (x - mean_x) ** 2 for x, _, n in medians)
    slope = sum(n * (x - mean_x) * (y - mean_y) for x, y, n in medians) / spread if spread else 0.0
    slope = min(max(slope, 0.0), mean_y / mean_x)
    return mean_y - slope * mean_x, slope
