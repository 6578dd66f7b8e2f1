"""What the page draws of a run beside its tokens, as numbers: which source proposed what, where the
time went, and what forwards cost. The page's script draws them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from specdemo.bench.costs import measured_costs
from specdemo.trace import Trace, acceptance_by_position, summarize


@dataclass(frozen=True, slots=True)
class Source:
    """A source of draft tokens: how many the target examined, and how many it accepted. Each of
    those is a forward of the target model that autoregressive decoding would have needed."""

    name: str
    examined: int
    accepted: int


def sources(trace: Trace) -> list[Source]:
    """The sources that proposed anything in the run, the most useful first."""
    counts: dict[str, list[int]] = {}
    for round_ in trace.rounds:
        for token in round_.drafted:
            if token.accepted or token.target_probability is not None:
                count = counts.setdefault(token.source, [0, 0])
                count[0] += 1
                count[1] += token.accepted
    found = [Source(name, *count) for name, count in counts.items()]
    return sorted(found, key=lambda source: -source.accepted)


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


def of_run(trace: Trace) -> dict[str, Any]:
    """All figures of a run, as JSON holds them."""
    drafts = [len(round_.drafted) for round_ in trace.rounds if round_.drafted]
    return {
        "sources": [asdict(source) for source in sources(trace)],
        "seconds": seconds_spent(trace),
        "positions": acceptance_by_position([trace]),
        "costs": table(trace),
        "draft_length": sum(drafts) / len(drafts) if drafts else None,
    }


def table(trace: Trace) -> dict[str, Any] | None:
    """The costs of a run in milliseconds, as `bench/cost_tables.json` has them; None without drafts
    or a baseline. A draft step is a draft token of this run, whatever proposed it."""
    costs, summary = measured_costs([trace]), summarize(trace)
    if costs is None or not summary.drafted:
        return None
    sizes = {str(cost.tokens): 1e3 * cost.seconds for cost in costs.verify}
    step = 1e3 * summary.draft_seconds / summary.drafted
    return {"plain_ms": 1e3 * costs.plain, "draft_step_ms": step, "ms": sizes}


@cache
def machines() -> dict[str, Any]:
    """The cost tables of other machines, by name; a single token is what decoding costs there."""
    text = resources.files("specdemo.bench").joinpath("cost_tables.json").read_text("utf-8")
    return {name: {"plain_ms": one["ms"]["1"], **one} for name, one in json.loads(text).items()}
