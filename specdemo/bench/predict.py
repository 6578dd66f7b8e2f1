"""What Leviathan's equation makes of measured costs and acceptance rates, for rounds whose draft lengths vary.

Pure functions of traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from specdemo.bench.report import CostTable, VerifyCost
from specdemo.engine.policy import expected_tokens
from specdemo.trace import Round, Trace, summarize


def decoding_rounds(trace: Trace) -> list[Round]:
    """The rounds after the first token, which comes from the prefill."""
    return [r for r in trace.rounds if not (r.emitted and r.emitted.kind == "first")]


def measured_costs(traces: Sequence[Trace]) -> CostTable | None:
    """Median costs over all traces; None when none has a baseline or a round."""
    verify: dict[int, list[float]] = {}
    steps: list[float] = []
    plain: list[float] = []
    for trace in traces:
        for round_ in decoding_rounds(trace):
            verify.setdefault(len(round_.drafted) + 1, []).append(round_.verify_seconds)
            if round_.draft_seconds:
                from_model = sum(token.source == "model" for token in round_.drafted)
                steps.append(round_.draft_seconds / max(from_model, 1))
        if trace.baseline:
            shown = [token.shown_at for token in trace.baseline.tokens]
            plain += [after - before for before, after in zip(shown, shown[1:], strict=False)]
    if not verify or not plain:
        return None
    table = tuple(VerifyCost(size, median(seconds), len(seconds)) for size, seconds in sorted(verify.items()))
    return CostTable(median(plain), median(steps) if steps else 0.0, table)


def verify_seconds(costs: CostTable, tokens: float) -> float:
    """Seconds to verify `tokens` tokens, between or beyond the measured sizes on a straight line."""
    known = [(cost.tokens, cost.seconds) for cost in costs.verify]
    if len(known) == 1:
        return known[0][1]
    below = max((k for k in known if k[0] <= tokens), default=known[0])
    above = min((k for k in known if k[0] >= tokens), default=known[-1])
    if below == above and below[0] != tokens:  # outside the measured range: the slope over all of it
        below, above = known[0], known[-1]
    if above[0] == below[0]:
        return below[1]
    slope = max((above[1] - below[1]) / (above[0] - below[0]), 0.0)
    return max(below[1] + slope * (tokens - below[0]), known[0][1])


def predicted_speedup(traces: Iterable[Trace], costs: CostTable) -> float | None:
    """Leviathan et al. theorem 3.8, summed over rounds: equation 1 gives each round's expected tokens from its draft
    length and its trace's acceptance rate; the measured costs give its seconds. Nothing outside inference counts."""
    tokens = seconds = 0.0
    for trace in traces:
        acceptance = summarize(trace).acceptance_rate or 0.0
        for round_ in decoding_rounds(trace):
            drafted = len(round_.drafted)
            tokens += expected_tokens(acceptance, drafted)
            # What the draft model was asked and then not proposed is in its seconds too.
            seconds += verify_seconds(costs, drafted + 1) + round_.draft_seconds
    return tokens * costs.plain / seconds if seconds > 0 else None
