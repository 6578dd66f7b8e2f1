"""Results as tables: a table is a list of rows, a row maps the columns' names to values.

The terminal and the HTML page show the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from specdemo.bench.report import Report, over
from specdemo.trace import Difference

Table = list[dict[str, Any]]


def decoding(report: Report) -> Table:
    summary, joules = report.summary, report.details.total.per_token("joules")
    cpu = summary.cpu_seconds_per_token
    return [
        {
            "": "autoregressive",
            "tokens per second": summary.autoregressive_tokens_per_s,
            "processor seconds per token": cpu.autoregressive,
            "joules per token": joules.autoregressive,
        },
        {
            "": "speculative",
            "tokens per second": summary.speculative_tokens_per_s,
            "processor seconds per token": cpu.speculative,
            "joules per token": joules.speculative,
        },
    ]


def summary(report: Report) -> Table:
    s, d = report.summary, report.details
    figures = {
        "speed-up in total": s.speedup,
        "speed-up predicted from acceptance rate and costs": d.predicted_speedup,
        "speed-up of the worst prompt": s.worst_prompt_speedup,
        "speed-up, quartiles of the prompts": ", ".join(map(text, d.quartiles)) or None,
        **{f"speed-up, {task}": speedup for task, speedup in s.speedup_by_task.items()},
        "prompts": s.prompts,
        "identical to autoregressive decoding": s.identical,
        "acceptance rate": s.acceptance_rate,
        "tokens per round": s.tokens_per_round,
        "fraction outside inference": s.outside_inference_fraction,
        "energy": d.energy,
    }
    return [{"": name, "figure": value} for name, value in figures.items()]


def prompts(report: Report) -> Table:
    return [
        {**asdict(row), "predicted": detail.predicted_speedup, "": where(detail.difference)}
        for row, detail in zip(report.rows, report.details.rows, strict=True)
    ]


def peers(report: Report) -> Table:
    """`ours is` compares like with like: a peer's autoregressive decoding with ours."""
    rows = []
    for name, peer in report.peers.items():
        kind = "autoregressive" if "/autoregressive" in name else "speculative"
        ours = getattr(report.summary, f"{kind}_tokens_per_s")
        settings = ", ".join(f"{key}={value}" for key, value in peer.settings.items())
        gain = over(ours, peer.tokens_per_s)
        rows.append({"peer": name, **asdict(peer), "ours is": gain, "settings": settings})
    return rows


def method(report: Report) -> Table:
    d, pair = report.details, report.pair
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
    return [{"": name, "value": value} for name, value in facts.items()]


def paper(rows: Iterable[Any]) -> Table:
    """PaperRows, the published figures last."""
    table = []
    for row in rows:
        ours = {name: value for name, value in asdict(row).items() if name != "published"}
        published = row.published
        table.append(
            {
                **ours,
                "paper: autoregressive s": published.autoregressive_s,
                "paper: speculative s": published.speculative_s,
                "paper: speed-up": published.autoregressive_s / published.speculative_s,
            }
        )
    return table


def where(difference: Difference | None) -> str:
    """Where an answer and its baseline part: position, both tokens and margin."""
    if difference is None:
        return ""
    margin = "" if difference.margin is None else f", margin {text(difference.margin)} logits"
    return (
        f"token {difference.position + 1} is {difference.text!r}, "
        f"autoregressive {difference.baseline_text!r}{margin}"
    )


def text(value: Any) -> str:
    """A value as a table shows it: figures with three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {'auto' if value is None else value}" for key, value in values.items())
