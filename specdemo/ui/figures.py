"""What the page draws of a run beside its tokens, as numbers: which source proposed what, where the
time went, and what forwards cost. The page's script draws them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from specdemo.bench.costs import measured_costs
from specdemo.engine.policy import MAX_DRAFT
from specdemo.trace import Trace, acceptance_by_position, summarize

SIZES = range(1, MAX_DRAFT + 2)
"""Tokens of the target's forwards."""


def of_run(trace: Trace) -> dict[str, Any]:
    """All figures of a run, as JSON holds them."""
    drafts = [len(round_.drafted) for round_ in trace.rounds if round_.drafted]
    return {
        "sources": sources(trace),
        "seconds": seconds_spent(trace),
        "positions": acceptance_by_position([trace]),
        "costs": costs(trace),
        "draft_length": sum(drafts) / len(drafts) if drafts else None,
    }


def sources(trace: Trace) -> list[dict[str, Any]]:
    """The sources that proposed anything, the most useful first: how many tokens the target
    examined, and how many it accepted, each a forward that autoregressive decoding needs."""
    found: dict[str, dict[str, Any]] = {}
    for token in (token for round_ in trace.rounds for token in round_.drafted):
        if token.accepted or token.target_probability is not None:
            new = {"name": token.source, "examined": 0, "accepted": 0}
            source = found.setdefault(token.source, new)
            source["examined"] += 1
            source["accepted"] += token.accepted
    return sorted(found.values(), key=lambda source: -source["accepted"])


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
        "verify_ms": [1e3 * found.verify_seconds(size) for size in SIZES],
    }


@cache
def machines() -> dict[str, Any]:
    """The costs of other machines, by name; a single token is what decoding costs there."""
    text = resources.files("specdemo.bench").joinpath("cost_tables.json").read_text("utf-8")
    found = {}
    for name, one in json.loads(text).items():
        sizes, measured = map(int, one["ms"]), np.maximum.accumulate(list(one["ms"].values()))
        found[name] = {
            "processor": one["processor"],
            "plain_ms": one["ms"]["1"],
            "draft_step_ms": one["draft_step_ms"],
            "verify_ms": np.interp(SIZES, list(sizes), measured).tolist(),
        }
    return found
