"""A benchmark's report: what was run, the figures that follow from it, as tables, JSON and one HTML
page."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from specdemo import __version__
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.terminal import Table, text, where
from specdemo.trace import PairInfo, Summary, Trace, as_json, combined, over

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")
TORCH_PACKAGES = ("torch", "transformers")
DETAILS = "total skipped repeats stopped created seconds".split()


@dataclass
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


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt: the traces of its races, and the medians of their figures."""

    id: str
    task: str
    traces: tuple[Trace, ...]
    figures: Summary

    @property
    def identical(self) -> bool:
        return all(trace.identical for trace in self.traces)

    @property
    def difference(self) -> str:
        """Where answer and baseline part, in the first race in which they do."""
        return next(filter(None, (where(trace.difference) for trace in self.traces)), "")

    def as_dict(self) -> dict[str, Any]:
        """As the contract has it. `tokens` counts the whole answer; rates that an answer of a
        single token does not have are None."""
        return {
            "id": self.id,
            "task": self.task,
            "tokens": len(self.traces[0].token_ids),
            "autoregressive_s": self.figures.baseline_decode_seconds,
            "speculative_s": self.figures.decode_seconds,
            "speedup": self.figures.speedup,
            "acceptance_rate": self.figures.acceptance_rate,
            "tokens_per_round": self.figures.tokens_per_round,
            "identical": self.identical,
        }


@dataclass(frozen=True, slots=True)
class Skipped:
    """A prompt or a peer that could not be run, and why (one sentence)."""

    id: str
    reason: str


@dataclass
class Report(Measurement):
    """A whole benchmark, finished or (`stopped`) with what was measured until then. Rates are
    totals over totals, never means of rates. `peers` are as the contract has them."""

    repeats: int = 1
    rows: list[Row] = field(default_factory=list)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    stopped: bool = False
    created: str = ""
    seconds: float = 0.0

    @cached_property
    def total(self) -> Summary:
        return combined(row.figures for row in self.rows)

    @property
    def identical(self) -> bool | None:
        return all(row.identical for row in self.rows) if self.rows else None

    @property
    def worst_prompt_speedup(self) -> float | None:
        return min((row.figures.speedup for row in self.rows if row.figures.speedup), default=None)

    @cached_property
    def speedup_by_task(self) -> dict[str, float | None]:
        tasks: dict[str, list[Summary]] = {}
        for row in self.rows:
            tasks.setdefault(row.task, []).append(row.figures)
        return {task: combined(figures).speedup for task, figures in tasks.items()}

    def as_dict(self) -> dict[str, Any]:
        """As the contract has it; what it does not name is in `details`."""
        total = self.total
        return {
            **{one.name: getattr(self, one.name) for one in dataclasses.fields(Measurement)},
            "rows": [row.as_dict() for row in self.rows],
            "summary": {
                "speedup": total.speedup,
                "speedup_by_task": self.speedup_by_task,
                "worst_prompt_speedup": self.worst_prompt_speedup,
                "autoregressive_tokens_per_s": total.baseline_tokens_per_second,
                "speculative_tokens_per_s": over(total.decoded, total.decode_seconds),
                "acceptance_rate": total.acceptance_rate,
                "tokens_per_round": over(total.decoded, total.decode_rounds),
                "identical": self.identical,
                "prompts": len(self.rows),
                "outside_inference_fraction": over(total.outside_seconds, total.decode_seconds),
                "cpu_seconds_per_token": {
                    "autoregressive": over(total.baseline_cpu_seconds, total.baseline_decoded),
                    "speculative": over(total.cpu_seconds, total.decoded),
                },
            },
            "peers": self.peers,
            "details": {name: getattr(self, name) for name in DETAILS}
            | {"differences": {row.id: row.difference for row in self.rows if row.difference}},
        }

    def tables(self) -> dict[str, Table]:
        """The report as tables by their titles, the most important one first."""
        data, total = json.loads(as_json(self.as_dict())), self.total
        facts = {"machine": self.machine}
        facts |= {name: _listed(data[name]) for name in ("pair", "settings", "versions")}
        facts |= {name: data["details"][name] for name in ("repeats", "created", "seconds")}
        peers = []
        for name, peer in self.peers.items():
            # Like is compared with like: a peer's autoregressive decoding with ours.
            plain = "/autoregressive" in name
            ours = total.baseline_tokens_per_second if plain else total.tokens_per_second
            shown = {"settings": _listed(peer["settings"])}
            shown["ours is"] = over(ours, peer["tokens_per_s"])
            peers.append({"peer": name, **peer, **shown})
        summary = []
        for name, value in data["summary"].items():
            parts = value if isinstance(value, dict) else {"": value}
            for part, figure in parts.items():
                title = ", ".join(filter(None, [name.replace("_", " "), part]))
                summary.append({"": title, "figure": figure})
        return {
            "Summary": summary,
            "Other engines": peers,
            "How this was measured": [{"": name, "value": fact} for name, fact in facts.items()],
            "Prompts": [{**row.as_dict(), "": row.difference} for row in self.rows],
        }

    def charts(self) -> dict[str, dict[str, float]]:
        """Bar charts by their titles: a value for each label. None where nothing was measured."""
        total = self.total
        if not (total.decoded and total.baseline_decoded):
            return {}
        examined: Counter[int] = Counter()
        accepted: Counter[int] = Counter()
        for round_ in (round_ for row in self.rows for one in row.traces for round_ in one.rounds):
            for place, token in enumerate(round_.drafted[: round_.accepted + 1], start=1):
                accepted[place] += token.accepted
                examined[place] += token.accepted or token.target_probability is not None
        plain, scale = 1e3 / total.baseline_decoded, 1e3 / total.decoded
        charts = {
            "Speed-up over autoregressive decoding, by task": self.speedup_by_task,
            "Milliseconds a token": {
                "autoregressive decoding": total.baseline_decode_seconds * plain,
                "speculative decoding": total.decode_seconds * scale,
                "of that drafting": total.draft_seconds * scale,
                "verifying": total.verify_seconds * scale,
                "outside inference": total.outside_seconds * scale,
            },
            "Acceptance rate by position in the draft": {
                str(place): accepted[place] / seen
                for place, seen in sorted(examined.items())
                if seen
            },
        }
        if self.peers:
            charts["Tokens a second, beside other engines on the same files"] = {
                "specdemo/autoregressive": total.baseline_tokens_per_second,
                "specdemo/speculative": total.tokens_per_second,
                **{name: peer["tokens_per_s"] for name, peer in self.peers.items()},
            }
        return charts

    def page(self) -> str:
        """One self-contained HTML page. Everything is escaped."""
        from jinja2 import Template

        source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
        data = {"report": self, "tables": self.tables(), "charts": self.charts(), "text": text}
        return Template(source, autoescape=True).render(data)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
