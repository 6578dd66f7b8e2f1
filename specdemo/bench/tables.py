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
    s, d, pair = report.summary, report.details, report.pair
    speedups = [row.speedup for row in report.rows if row.speedup]
    quartiles = quantiles(speedups, method="inclusive") if len(speedups) > 1 else ()
    figures = {
        "speed-up in total": s.speedup,
        "speed-up predicted from acceptance rate and costs": d.predicted_speedup,
        "speed-up of the worst prompt": s.worst_prompt_speedup,
        "speed-up, quartiles of the prompts": ", ".join(map(text, quartiles)) or None,
        **{f"speed-up, {task}": speedup for task, speedup in s.speedup_by_task.items()},
        "prompts": s.prompts,
        "identical to autoregressive decoding": s.identical,
        "acceptance rate": s.acceptance_rate,
        "tokens per round": s.tokens_per_round,
        "fraction outside inference": s.outside_inference_fraction,
    }
    facts = {
        "machine": report.machine,
        "target model": f"{pair.target} {pair.target_revision}",
        "draft model": f"{pair.draft or 'none: n-gram lookup'} {pair.draft_revision}",
        "numerics": pair.numerics_found,
        "settings": _listed(asdict(report.settings)),
        "versions": _listed(report.versions),
        "runs of each prompt": d.repeats,
        "measured": f"{d.created}, {d.seconds:.0f} s in all",
    }
    decoding = [
        {
            "": way,
            "tokens per second": getattr(s, f"{way}_tokens_per_s"),
            "processor seconds per token": s.cpu_seconds_per_token[way],
            "joules per token": over(joules, tokens),
        }
        for way, joules, tokens in (
            ("autoregressive", d.total.baseline_joules, d.total.baseline_decoded),
            ("speculative", d.total.joules, d.total.decoded),
        )
    ]
    prompts = [
        {**asdict(row), "predicted": detail.predicted_speedup, "": where(detail.difference)}
        for row, detail in zip(report.rows, d.rows, strict=True)
    ]
    return {
        "Summary": [{"": name, "figure": value} for name, value in figures.items()],
        "Decoding": decoding,
        "Other engines": _of_peers(report),
        "How this was measured": [{"": name, "value": value} for name, value in facts.items()],
        "Prompts": prompts,
    }


def _of_peers(report: Report) -> Table:
    """`ours is` compares like with like: a peer's autoregressive decoding with ours."""
    rows = []
    for name, peer in report.peers.items():
        way = "autoregressive" if "/autoregressive" in name else "speculative"
        gain = over(getattr(report.summary, f"{way}_tokens_per_s"), peer.tokens_per_s)
        settings = _listed(peer.settings)
        rows.append({"peer": name, **asdict(peer), "settings": settings, "ours is": gain})
    return rows


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'auto' if value is None else value}" for key, value in values.items())
