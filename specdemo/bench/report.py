"""A benchmark report: frozen dataclasses, what traces sum up to, and JSON. Measures nothing.

Field names are those of the JSON; what the contract does not name lies under `details`.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from specdemo import __version__
from specdemo.bench.costs import CostTable
from specdemo.bench.prompts import BenchPrompt
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Difference, PairInfo, Summary, Trace, combined, over

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")
TORCH_PACKAGES = ("torch", "transformers")


@dataclass(frozen=True, slots=True)
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
        packages = {package: metadata.version(package) for package in used}
        versions = {"specdemo": __version__, "python": platform.python_version(), **packages}
        head = {"machine": describe(), "versions": versions, "pair": session.info}
        return {**head, "settings": settings}


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, medians over the repeats. `tokens` counts the whole answer. Rates that an answer
    of a single token does not have are None."""

    id: str
    task: str
    tokens: int
    autoregressive_s: float
    speculative_s: float
    speedup: float | None
    acceptance_rate: float | None
    tokens_per_round: float
    identical: bool


@dataclass(frozen=True, slots=True)
class RowDetail:
    """What a row's figures are made of. `difference` is where answer and baseline part, in the
    first run in which they do; `speedups` are those of the repeats."""

    id: str
    figures: Summary
    difference: Difference | None
    predicted_speedup: float | None
    speedups: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The rows together: rates are totals over totals, never means of rates."""

    speedup: float | None
    speedup_by_task: dict[str, float | None]
    worst_prompt_speedup: float | None
    autoregressive_tokens_per_s: float | None
    speculative_tokens_per_s: float | None
    acceptance_rate: float | None
    tokens_per_round: float | None
    identical: bool | None
    prompts: int
    outside_inference_fraction: float | None
    cpu_seconds_per_token: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """A peer on the same prompts. `identical`: to our tokens, on every prompt (None: not
    compared)."""

    tokens_per_s: float
    settings: dict[str, str]
    identical: bool | None


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One prompt run by one variant of a peer: `tokens` after the first, in `seconds`."""

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


@dataclass(frozen=True, slots=True)
class Details:
    """What the contract's fields are made of, and what the HTML report draws. `positions` holds
    (accepted, examined) of the first, second, ... draft token of a round."""

    rows: tuple[RowDetail, ...]
    total: Summary
    positions: tuple[tuple[int, int], ...]
    costs: CostTable | None
    predicted_speedup: float | None
    sweep: tuple[SweepPoint, ...]
    sweep_prompts: int
    peer_rows: tuple[PeerRow, ...]
    skipped: tuple[Skipped, ...]
    repeats: int
    stopped: bool
    created: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report(Measurement):
    """A whole benchmark, finished or (`details.stopped`) with what was measured until then."""

    rows: tuple[Row, ...]
    summary: Total
    peers: dict[str, PeerFigures]
    details: Details


def row_of(prompt: BenchPrompt, traces: Sequence[Trace], median: Summary) -> Row:
    """One prompt, from the traces of its races and the medians of their figures."""
    return Row(
        id=prompt.id,
        task=prompt.task,
        tokens=len(traces[0].token_ids),
        autoregressive_s=median.baseline_decode_seconds,
        speculative_s=median.decode_seconds,
        speedup=median.speedup,
        acceptance_rate=median.acceptance_rate,
        tokens_per_round=median.tokens_per_round,
        identical=all(trace.identical for trace in traces),
    )


def summarize_rows(rows: Sequence[Row], whole: Summary, parts: Sequence[Summary]) -> Total:
    """All rows: `whole` is the sum of their `parts`."""
    tasks: dict[str, list[Summary]] = {}
    for row, part in zip(rows, parts, strict=True):
        tasks.setdefault(row.task, []).append(part)
    return Total(
        speedup=whole.speedup,
        speedup_by_task={task: combined(parts).speedup for task, parts in tasks.items()},
        worst_prompt_speedup=min((row.speedup for row in rows if row.speedup), default=None),
        autoregressive_tokens_per_s=whole.baseline_tokens_per_second,
        speculative_tokens_per_s=over(whole.decoded, whole.decode_seconds),
        acceptance_rate=whole.acceptance_rate,
        tokens_per_round=over(whole.decoded, whole.decode_rounds),
        identical=all(row.identical for row in rows) if rows else None,
        prompts=len(rows),
        outside_inference_fraction=over(whole.outside_seconds, whole.decode_seconds),
        cpu_seconds_per_token={
            "autoregressive": whole.baseline_cpu_seconds_per_token,
            "speculative": over(whole.cpu_seconds, whole.decoded),
        },
    )


def by_variant(rows: Iterable[PeerRow]) -> dict[str, dict[str, list[PeerRow]]]:
    """The rows of each peer by its variants."""
    peers: dict[str, dict[str, list[PeerRow]]] = {}
    for row in rows:
        peers.setdefault(row.peer, {}).setdefault(row.variant, []).append(row)
    return peers


def tokens_per_s(rows: Iterable[PeerRow]) -> float:
    return over(sum(row.tokens for row in rows), sum(row.seconds for row in rows)) or 0.0


def peer_figures(
    rows: Iterable[PeerRow], settings: dict[tuple[str, str], dict[str, str]]
) -> dict[str, PeerFigures]:
    """Each peer by its fastest variant among those that ran the most prompts; `settings` belong to
    (peer, variant)."""
    figures = {}
    for peer, variants in by_variant(rows).items():
        best = max(variants.values(), key=lambda ran: (len(ran), tokens_per_s(ran)))
        compared = [row.identical for row in best]
        same = None if None in compared else all(compared)
        figures[peer] = PeerFigures(tokens_per_s(best), settings[peer, best[0].variant], same)
    return figures


def to_json(result: Measurement) -> str:
    data = dataclasses.asdict(result)
    if result.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
