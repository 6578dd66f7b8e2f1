"""A report as tables, which the terminal and the HTML page show alike."""

from __future__ import annotations

from dataclasses import asdict
from statistics import quantiles
from typing import Any

from specdemo.bench.report import Report
from specdemo.terminal import Table, text, where
from specdemo.trace import over


def of_report(report: Report) -> dict[str, Table]:
    """The tables of a report by their titles, the most important one first."""
    total, pair = report.total, report.pair
    speedups = [row.figures.speedup for row in report.rows if row.figures.speedup]
    quartiles = quantiles(speedups, method="inclusive") if len(speedups) > 1 else ()
    figures = {
        "speed-up in total": total.speedup,
        "speed-up predicted from acceptance rate and costs": report.predicted_speedup(report.rows),
        "speed-up of the worst prompt": report.worst_prompt_speedup,
        "speed-up, quartiles of the prompts": ", ".join(map(text, quartiles)) or None,
        **{f"speed-up, {task}": speedup for task, speedup in report.speedup_by_task.items()},
        "prompts": len(report.rows),
        "identical to autoregressive decoding": report.identical,
        "acceptance rate": total.acceptance_rate,
        "tokens per round": total.tokens_per_round,
        "fraction outside inference": over(total.outside_seconds, total.decode_seconds),
    }
    facts = {
        "machine": report.machine,
        "target model": f"{pair.target} {pair.target_revision}",
        "draft model": f"{pair.draft or 'none: n-gram lookup'} {pair.draft_revision}",
        "numerics": pair.numerics_found,
        "settings": _listed(asdict(report.settings)),
        "versions": _listed(report.versions),
        "runs of each prompt": report.repeats,
        "measured": f"{report.created}, {report.seconds:.0f} s in all",
    }
    decoding = [
        {
            "": "autoregressive",
            "tokens per second": total.baseline_tokens_per_second,
            "processor seconds per token": total.baseline_cpu_seconds_per_token,
            "joules per token": over(total.baseline_joules, total.baseline_decoded),
        },
        {
            "": "speculative",
            "tokens per second": total.tokens_per_second,
            "processor seconds per token": total.cpu_seconds_per_token,
            "joules per token": over(total.joules, total.decoded),
        },
    ]
    peers = []
    for name, peer in report.peers.items():
        # Like is compared with like: a peer's autoregressive decoding with ours.
        plain = "/autoregressive" in name
        ours = total.baseline_tokens_per_second if plain else total.tokens_per_second
        shown = {"settings": _listed(peer["settings"]), "ours is": over(ours, peer["tokens_per_s"])}
        peers.append({"peer": name, **peer, **shown})
    prompts = [
        {**row.as_dict(), "predicted": report.predicted_speedup([row]), "": where(row.difference)}
        for row in report.rows
    ]
    return {
        "Summary": [{"": name, "figure": value} for name, value in figures.items()],
        "Decoding": decoding,
        "Other engines": peers,
        "How this was measured": [{"": name, "value": value} for name, value in facts.items()],
        "Prompts": prompts,
    }


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'auto' if value is None else value}" for key, value in values.items())
