"""A benchmark's report: what was run, the figures that follow from it, and JSON. Measures nothing.

The JSON's fields beside those of the contract lie under `details`.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

from specdemo import __version__
from specdemo.bench.costs import CostTable, measured_costs, predicted_speedup
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import (
    Difference,
    PairInfo,
    Summary,
    Trace,
    acceptance_by_position,
    combined,
    over,
)

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")
TORCH_PACKAGES = ("torch", "transformers")
DETAILS = (
    "total positions costs sweep sweep_prompts peer_rows skipped repeats stopped created seconds"
).split()


@dataclass(frozen=True)
class Measurement:
    """What was measured, and with what: the head of a report, an audit and the paper's table."""

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


HEAD = [field.name for field in dataclasses.fields(Measurement)]


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
    def difference(self) -> Difference | None:
        """Where answer and baseline part, in the first race in which they do."""
        return next(filter(None, (trace.difference for trace in self.traces)), None)

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
class PeerRow:
    """One prompt run by one variant of a peer: `tokens` after the first, in `seconds`. `identical`
    to our tokens (None: not compared)."""

    peer: str
    variant: str
    id: str
    tokens: int
    seconds: float
    identical: bool | None


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The sweep's prompts with one draft length (None: adaptive), and the speed-up that Leviathan's
    equations predict from the measured costs and acceptance rate."""

    draft_tokens: int | None
    figures: Summary
    predicted: float | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A prompt or a peer that could not be run, and why (one sentence)."""

    id: str
    reason: str


@dataclass(frozen=True)
class Report(Measurement):
    """A whole benchmark, finished or (`stopped`) with what was measured until then. Rates are
    totals over totals, never means of rates. `peer_settings` are by peer and variant."""

    rows: tuple[Row, ...]
    peer_rows: tuple[PeerRow, ...]
    peer_settings: dict[tuple[str, str], dict[str, str]]
    sweep: tuple[SweepPoint, ...]
    sweep_prompts: int
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

    @cached_property
    def positions(self) -> list[tuple[int, int]]:
        """(accepted, examined) of the first, second, ... draft token of a round."""
        return acceptance_by_position(_traces(self.rows))

    @cached_property
    def costs(self) -> CostTable | None:
        return measured_costs(_traces(self.rows))

    def predicted_speedup(self, rows: Sequence[Row]) -> float | None:
        return predicted_speedup(_traces(rows), self.costs)

    @cached_property
    def peers(self) -> dict[str, dict[str, Any]]:
        """Each peer by its fastest variant among those that ran the most prompts."""
        figures = {}
        for name, variants in by_variant(self.peer_rows).items():
            best = max(variants.values(), key=lambda ran: (len(ran), tokens_per_s(ran)))
            compared = [row.identical for row in best]
            figures[name] = {
                "tokens_per_s": tokens_per_s(best),
                "settings": self.peer_settings[name, best[0].variant],
                "identical": None if None in compared else all(compared),
            }
        return figures

    def as_dict(self) -> dict[str, Any]:
        """As the contract has it; what it does not name is in `details`."""
        total = self.total
        return {
            **{name: getattr(self, name) for name in HEAD},
            "rows": self.rows,
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
                "outside_inference_fraction": total.outside_fraction,
                "cpu_seconds_per_token": {
                    "autoregressive": total.baseline_cpu_seconds_per_token,
                    "speculative": over(total.cpu_seconds, total.decoded),
                },
            },
            "peers": self.peers,
            "details": {
                "rows": [
                    {"id": row.id, "figures": row.figures, "difference": row.difference}
                    for row in self.rows
                ],
                "predicted_speedup": self.predicted_speedup(self.rows),
                **{name: getattr(self, name) for name in DETAILS},
            },
        }


def by_variant(rows: Iterable[PeerRow]) -> dict[str, dict[str, list[PeerRow]]]:
    """The rows of each peer by its variants."""
    peers: dict[str, dict[str, list[PeerRow]]] = {}
    for row in rows:
        peers.setdefault(row.peer, {}).setdefault(row.variant, []).append(row)
    return peers


def tokens_per_s(rows: Iterable[PeerRow]) -> float:
    return over(sum(row.tokens for row in rows), sum(row.seconds for row in rows)) or 0.0


def _traces(rows: Iterable[Row]) -> list[Trace]:
    return [trace for row in rows for trace in row.traces]


def to_json(result: Measurement) -> str:
    return json.dumps(result, default=_plain, indent=1, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass as JSON has it."""
    if isinstance(value, Row | Report):
        return value.as_dict()
    data = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Settings) and value.draft_tokens is None:
        data["draft_tokens"] = "auto"
    return data
