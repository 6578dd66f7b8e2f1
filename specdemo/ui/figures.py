"""What the page draws of a run beside its tokens, as numbers: which source proposed what, where the
time went, and what forwards cost. The page's script draws them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from specdemo.bench.costs import measured_costs
from specdemo.engine.policy import MAX_DRAFT
from specdemo.trace import Trace, summarize


def of_run(trace: Trace) -> dict[str, Any]:
    """All figures of a run, as JSON holds them."""
    return {"sources": sources(trace), "seconds": seconds_spent(trace), "costs": costs(trace)}


def sources(trace: Trace) -> list[dict[str, Any]]:
    """The sources that proposed anything, the most useful first: how many tokens the target
    examined, and how many it accepted."""
    examined: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for token in (token for round_ in trace.rounds for token in round_.drafted):
        accepted[token.source] += token.accepted
        examined[token.source] += token.accepted or token.target_probability is not None
    return [
        {"name": name, "examined": examined[name], "accepted": count}
        for name, count in accepted.most_common()
        if examined[name]
    ]


def seconds_spent(trace: Trace) -> dict[str, dict[str, float]]:
    """Seconds of each run: prefill, drafting, forwards of the target, everything else."""
    summary, baseline = summarize(trace), trace.baseline
    outside = summary.decode_seconds - summary.draft_seconds - summary.verify_seconds
    spent = {
        "speculative": {
            "prefill": trace.prefill_seconds,
            "drafting": summary.draft_seconds,
            "target": summary.verify_seconds,
            "outside": max(0.0, outside),
        }
    }
    if baseline:
        seconds = summary.baseline_decode_seconds or 0.0
        spent["baseline"] = {"prefill": baseline.prefill_seconds, "target": seconds}
    return spent


def costs(trace: Trace) -> dict[str, Any] | None:
    """The costs of a run in milliseconds, `verify_ms` of the target's forwards over 1, 2, ...
    tokens; None without drafts or a baseline. A draft step is a draft token of this run, whatever
    proposed it."""
    found, summary = measured_costs([trace]), summarize(trace)
    if found is None or not summary.drafted:
        return None
    return {
        "plain_ms": 1e3 * found.plain,
        "draft_step_ms": 1e3 * summary.draft_seconds / summary.drafted,
        "verify_ms": [1e3 * found.verify_seconds(size) for size in range(1, MAX_DRAFT + 2)],
    }
