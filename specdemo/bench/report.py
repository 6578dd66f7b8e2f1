"""A benchmark's report: a dict as JSON has it, shown as tables and as one HTML page."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from specdemo import __version__
from specdemo.bench.prompts import BenchPrompt
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.terminal import Table, text, where
from specdemo.trace import PairInfo, Summary, Trace, as_json, combined, over

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")
TORCH_PACKAGES = ("torch", "transformers")
BARS = ("speedup", "milliseconds", "tokens_per_s")
"""Columns that the page draws as bars."""


@dataclass(frozen=True)
class Measurement:
    """What was measured, and with what: the head of a report and of an audit."""

    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings

    @staticmethod
    def here(session: Session, settings: Settings) -> dict[str, Any]:
        """The fields of a measurement on this machine."""
        used = (*PACKAGES, *(package for package in TORCH_PACKAGES if package in sys.modules))
        versions = {"specdemo": __version__, "python": platform.python_version()}
        versions |= {package: metadata.version(package) for package in used}
        head = {"machine": describe(), "versions": versions, "pair": session.info}
        return {**head, "settings": settings}


def row_of(prompt: BenchPrompt, traces: Sequence[Trace], figures: Summary) -> dict[str, Any]:
    """One prompt: `figures` are the medians of its races. `tokens` counts the whole answer; rates
    that an answer of a single token does not have are None."""
    return {
        "id": prompt.id,
        "task": prompt.task,
        "tokens": len(traces[0].token_ids),
        "autoregressive_s": figures.baseline_decode_seconds,
        "speculative_s": figures.decode_seconds,
        "speedup": figures.speedup,
        "acceptance_rate": figures.acceptance_rate,
        "tokens_per_round": figures.tokens_per_round,
        "identical": all(trace.identical for trace in traces),
    }


def difference(traces: Sequence[Trace]) -> str:
    """Where answer and baseline part, in the first race in which they do."""
    return next(filter(None, (where(trace.difference) for trace in traces)), "")


def summary_of(rows: Sequence[dict[str, Any]], figures: Sequence[Summary]) -> dict[str, Any]:
    """What the rows, and their figures, come to: totals over totals, never means of rates."""
    total = combined(figures)
    tasks: dict[str, list[Summary]] = {}
    for row, one in zip(rows, figures, strict=True):
        tasks.setdefault(row["task"], []).append(one)
    return {
        "speedup": total.speedup,
        "speedup_by_task": {task: combined(found).speedup for task, found in tasks.items()},
        "worst_prompt_speedup": min(filter(None, (row["speedup"] for row in rows)), default=None),
        "autoregressive_tokens_per_s": total.baseline_tokens_per_second,
        "speculative_tokens_per_s": over(total.decoded, total.decode_seconds),
        "acceptance_rate": total.acceptance_rate,
        "tokens_per_round": over(total.decoded, total.decode_rounds),
        "identical": all(row["identical"] for row in rows) if rows else None,
        "prompts": len(rows),
        "outside_inference_fraction": over(total.outside_seconds, total.decode_seconds),
        "cpu_seconds_per_token": {
            "autoregressive": over(total.baseline_cpu_seconds, total.baseline_decoded),
            "speculative": over(total.cpu_seconds, total.decoded),
        },
    }


def tables(report: dict[str, Any]) -> dict[str, Table]:
    """A report as tables by their titles, the most important one first."""
    data = json.loads(as_json(report))
    summary, details = data["summary"], data["details"]
    total, cpu = details["total"], summary.pop("cpu_seconds_per_token")
    by_task = summary.pop("speedup_by_task").items()
    summary |= {f"cpu seconds per token, {way}": seconds for way, seconds in cpu.items()}
    spent = {
        "autoregressive decoding": (total["baseline_decode_seconds"], total["baseline_decoded"]),
        "speculative decoding": (total["decode_seconds"], total["decoded"]),
        "drafting": (total["draft_seconds"], total["decoded"]),
        "verifying": (total["verify_seconds"], total["decoded"]),
        "outside inference": (total["outside_seconds"], total["decoded"]),
    }
    ours = {
        f"specdemo/{way}": {
            "tokens_per_s": summary[f"{way}_tokens_per_s"],
            "settings": {},
            "identical": None,
        }
        for way in ("autoregressive", "speculative")
    }
    peers = (ours | data["peers"]).items() if data["peers"] else ()
    facts = {"machine": data["machine"]}
    facts |= {name: _listed(data[name]) for name in ("pair", "settings", "versions")}
    facts |= {name: details[name] for name in ("repeats", "created", "seconds")}
    parted = details["differences"]
    return {
        "Summary": [{"": name.replace("_", " "), "is": value} for name, value in summary.items()],
        "Speed-up by task": [{"": task, "speedup": speedup} for task, speedup in by_task],
        "Time of a token": [
            {"": name, "milliseconds": (over(seconds, tokens) or 0.0) * 1e3}
            for name, (seconds, tokens) in spent.items()
        ],
        "Other engines on the same files": [
            {"": name, **peer, "settings": _listed(peer["settings"])} for name, peer in peers
        ],
        "How this was measured": [{"": name, "is": value} for name, value in facts.items()],
        "Prompts": [{**row, "": parted.get(row["id"], "")} for row in data["rows"]],
        "Left out": [{"": id, "because": reason} for id, reason in details["skipped"].items()],
    }


def page(report: dict[str, Any]) -> str:
    """One self-contained HTML page. Everything is escaped."""
    from jinja2 import Template

    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    names = {"tables": tables(report), "bars": BARS, "text": text}
    return Template(source, autoescape=True).render(report, **names)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
