"""A benchmark's report: what was run, the figures that follow from it, as tables, JSON and one HTML
page."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Report(Measurement):
    """A whole benchmark, finished or (`stopped`) with what was measured until then. Rates are
    totals over totals, never means of rates. `peers` are as the contract has them."""

    rows: tuple[Row, ...]
    peers: dict[str, dict[str, Any]]
    skipped: tuple[Skipped, ...]
    repeats: int
    stopped: bool
    created: str
    seconds: float

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
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(Measurement)},
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
                    "autoregressive": total.baseline_cpu_seconds_per_token,
                    "speculative": over(total.cpu_seconds, total.decoded),
                },
            },
            "peers": self.peers,
            "details": {name: getattr(self, name) for name in DETAILS}
            | {"differences": {row.id: row.difference for row in self.rows if row.difference}},
        }

    def tables(self) -> dict[str, Table]:
        """The report as tables by their titles, the most important one first."""
        total, data = self.total, json.loads(to_json(self))
        summary, details = data["summary"], data["details"]
        by_task, cpu = summary.pop("speedup_by_task"), summary.pop("cpu_seconds_per_token")
        summary |= {f"speedup, {task}": speedup for task, speedup in by_task.items()}
        summary |= {f"cpu seconds per token, {way}": seconds for way, seconds in cpu.items()}
        plain = over(total.baseline_joules, total.baseline_decoded)
        summary["joules per token, autoregressive"] = plain
        summary["joules per token, speculative"] = over(total.joules, total.decoded)
        facts = {name: _listed(data[name]) for name in ("pair", "settings", "versions")}
        facts |= {name: details[name] for name in ("repeats", "created", "seconds")}
        peers = []
        for name, peer in self.peers.items():
            # Like is compared with like: a peer's autoregressive decoding with ours.
            plain = "/autoregressive" in name
            ours = total.baseline_tokens_per_second if plain else total.tokens_per_second
            shown = {"settings": _listed(peer["settings"])}
            shown["ours is"] = over(ours, peer["tokens_per_s"])
            peers.append({"peer": name, **peer, **shown})
        return {
            "Summary": [
                {"": name.replace("_", " "), "figure": value} for name, value in summary.items()
            ],
            "Other engines": peers,
            "How this was measured": [
                {"": name, "value": value}
                for name, value in ({"machine": self.machine} | facts).items()
            ],
            "Prompts": [{**row.as_dict(), "": row.difference} for row in self.rows],
        }

    def page(self) -> str:
        """One self-contained HTML page of about 5 MB, nearly all of it plotly.js. Everything but
        plotly's own output is escaped."""
        from jinja2 import Environment, FileSystemLoader
        from plotly.offline import get_plotlyjs

        from specdemo.bench.figures import all_figures

        environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
        environment.filters["text"] = text
        look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
        return environment.get_template("report.html.j2").render(
            report=self,
            tables=self.tables(),
            figures=[figure.to_html(**look) for figure in all_figures(self)],
            plotlyjs=get_plotlyjs(),
        )


def traces_of(rows: Iterable[Row]) -> list[Trace]:
    return [trace for row in rows for trace in row.traces]


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)


def to_json(report: Report) -> str:
    return as_json(report.as_dict())
