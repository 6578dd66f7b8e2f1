"""A benchmark report: frozen dataclasses, what traces sum up to, and JSON. Measures nothing.

Field names are those of the JSON; what the contract does not name lies under `details`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from specdemo.bench.costs import CostTable, decoding_rounds
from specdemo.bench.prompts import BenchPrompt
from specdemo.settings import Settings
from specdemo.trace import Difference, PairInfo, Trace, summarize


@dataclass(frozen=True, slots=True)
class Figures:
    """What one race or several add up to. Tokens and rounds leave out the first token, which comes
    from the prefill; seconds (and joules, None if not known) are those of decoding after it.
    `examined` counts the draft tokens that the target judged: not those after a rejection."""

    autoregressive_tokens: int = 0
    speculative_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    examined: int = 0
    autoregressive_s: float = 0.0
    speculative_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    outside_s: float = 0.0
    autoregressive_cpu_s: float = 0.0
    speculative_cpu_s: float = 0.0
    autoregressive_joules: float | None = None
    speculative_joules: float | None = None

    @property
    def speedup(self) -> float | None:
        """Total autoregressive over total speculative seconds, each for one token, which changes
        nothing where both runs gave the same tokens."""
        seconds = self.per_token("s")
        return over(seconds["autoregressive"], seconds["speculative"])

    @property
    def acceptance_rate(self) -> float | None:
        return over(self.accepted, self.examined)

    @property
    def tokens_per_round(self) -> float | None:
        return over(self.speculative_tokens, self.rounds)

    def per_token(self, quantity: str) -> dict[str, float | None]:
        """`quantity` ("s", "cpu_s" or "joules") for one token, of both ways to decode."""
        return {
            way: over(getattr(self, f"{way}_{quantity}"), getattr(self, f"{way}_tokens"))
            for way in ("autoregressive", "speculative")
        }


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
    figures: Figures
    difference: Difference | None
    predicted_speedup: float | None
    speedups: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Summary:
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
    figures: Figures
    predicted: float | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A prompt or a peer that could not be run, and why (one sentence)."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Details:
    """What the contract's fields are made of, and what the HTML report draws. `positions` holds
    (accepted, examined) of the first, second, ... draft token of a round; `quartiles` are those of
    the prompts' speed-ups."""

    rows: tuple[RowDetail, ...]
    total: Figures
    positions: tuple[tuple[int, int], ...]
    costs: CostTable | None
    predicted_speedup: float | None
    quartiles: tuple[float, ...]
    energy: str
    sweep: tuple[SweepPoint, ...]
    sweep_prompts: int
    peer_rows: tuple[PeerRow, ...]
    skipped: tuple[Skipped, ...]
    repeats: int
    stopped: bool
    created: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """A whole benchmark, finished or (`details.stopped`) with what was measured until then."""

    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings
    rows: tuple[Row, ...]
    summary: Summary
    peers: dict[str, PeerFigures]
    details: Details


def figures_of(trace: Trace, joules: Sequence[float | None] = (None, None)) -> Figures:
    """A finished trace with its baseline; `joules` of the baseline and of the answer."""
    one = summarize(trace)
    rounds = decoding_rounds(trace)
    corrections = sum(1 for r in rounds if r.emitted and r.emitted.kind == "correction")
    return Figures(
        autoregressive_tokens=len(trace.baseline.tokens) - 1,
        speculative_tokens=one.tokens - 1,
        rounds=len(rounds),
        drafted=one.drafted,
        accepted=one.accepted,
        examined=one.accepted + corrections,
        autoregressive_s=one.baseline_decode_seconds or 0.0,
        speculative_s=one.decode_seconds,
        draft_s=one.draft_seconds,
        verify_s=one.verify_seconds,
        outside_s=one.outside_seconds,
        autoregressive_cpu_s=trace.baseline.cpu_seconds,
        speculative_cpu_s=trace.cpu_seconds,
        autoregressive_joules=joules[0],
        speculative_joules=joules[1],
    )


def combined(items: Iterable[Figures], by: Callable = sum) -> Figures:
    """Every figure `by` sum, all 0 without items, or median_low; None where one is not known."""
    columns = zip(*map(dataclasses.astuple, items), strict=True)
    return Figures(*(None if None in column else by(column) for column in columns))


def sum_up(
    prompt: BenchPrompt, traces: Sequence[Trace], figures: Sequence[Figures]
) -> tuple[Row, RowDetail]:
    """One prompt, from the traces of its races, each with a baseline, and the figures of each."""
    median = combined(figures, median_low)
    row = Row(
        id=prompt.id,
        task=prompt.task,
        tokens=len(traces[0].token_ids),
        autoregressive_s=median.autoregressive_s,
        speculative_s=median.speculative_s,
        speedup=median.speedup,
        acceptance_rate=median.acceptance_rate,
        tokens_per_round=median.tokens_per_round or 0.0,
        identical=all(trace.identical for trace in traces),
    )
    difference = next(filter(None, (trace.difference for trace in traces)), None)
    speedups = tuple(one.speedup for one in figures)
    return row, RowDetail(prompt.id, median, difference, None, speedups)


def summarize_rows(rows: Sequence[Row], details: Sequence[RowDetail]) -> Summary:
    whole = combined(detail.figures for detail in details)
    tasks: dict[str, list[Figures]] = {}
    for row, detail in zip(rows, details, strict=True):
        tasks.setdefault(row.task, []).append(detail.figures)
    return Summary(
        speedup=whole.speedup,
        speedup_by_task={task: combined(figures).speedup for task, figures in tasks.items()},
        worst_prompt_speedup=min((row.speedup for row in rows if row.speedup), default=None),
        autoregressive_tokens_per_s=over(whole.autoregressive_tokens, whole.autoregressive_s),
        speculative_tokens_per_s=over(whole.speculative_tokens, whole.speculative_s),
        acceptance_rate=whole.acceptance_rate,
        tokens_per_round=whole.tokens_per_round,
        identical=all(row.identical for row in rows) if rows else None,
        prompts=len(rows),
        outside_inference_fraction=over(whole.outside_s, whole.speculative_s),
        cpu_seconds_per_token=whole.per_token("cpu_s"),
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


def to_json(result: Any) -> str:
    """A result with `settings` (a Report, an Audit, a PaperTable) as JSON."""
    data = dataclasses.asdict(result)
    if result.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def over(value: float | None, by: float | None) -> float | None:
    """The quotient; None where either is unknown or there is nothing to divide by."""
    return value / by if value is not None and by else None
