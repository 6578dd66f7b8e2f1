"""A benchmark report: frozen dataclasses, what traces sum up to, and JSON. Measures nothing.

Field names are those of the JSON; what the contract does not name lies under `details`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low, quantiles
from typing import Any

from specdemo.bench.costs import CostTable, decoding_rounds, measured_costs, predicted_speedup
from specdemo.bench.prompts import BenchPrompt
from specdemo.settings import Settings
from specdemo.trace import Difference, PairInfo, Trace, summarize


@dataclass(frozen=True, slots=True)
class Figures:
    """What one race or several add up to. Tokens and rounds leave out the first token, which comes
    from the prefill, and seconds (and joules, None if not known) are those of decoding after it.
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
    def autoregressive_tokens_per_s(self) -> float | None:
        return over(self.autoregressive_tokens, self.autoregressive_s)

    @property
    def speculative_tokens_per_s(self) -> float | None:
        return over(self.speculative_tokens, self.speculative_s)

    @property
    def speedup(self) -> float | None:
        """Total autoregressive over total speculative seconds, each put to one token first, which
        changes nothing where both runs gave the same tokens."""
        return over(self.speculative_tokens_per_s, self.autoregressive_tokens_per_s)

    @property
    def acceptance_rate(self) -> float | None:
        return over(self.accepted, self.examined)

    @property
    def tokens_per_round(self) -> float | None:
        return over(self.speculative_tokens, self.rounds)

    def per_token(self, quantity: str) -> PerToken:
        """`quantity` is "cpu_s" or "joules"."""
        return PerToken(
            over(getattr(self, f"autoregressive_{quantity}"), self.autoregressive_tokens),
            over(getattr(self, f"speculative_{quantity}"), self.speculative_tokens),
        )


@dataclass(frozen=True, slots=True)
class PerToken:
    """A quantity for one token of decoding; None where it is not known."""

    autoregressive: float | None
    speculative: float | None


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
    cpu_seconds_per_token: PerToken


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """A peer on the same prompts; `settings` says with what. `identical`: to our tokens, on every
    prompt (None: not compared)."""

    tokens_per_s: float | None
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


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt: the traces of its races, each with a baseline, and the figures of each."""

    prompt: BenchPrompt
    traces: tuple[Trace, ...]
    figures: tuple[Figures, ...]

    @property
    def row(self) -> Row:
        middle = medians(self.figures)
        return Row(
            id=self.prompt.id,
            task=self.prompt.task,
            tokens=len(self.traces[0].token_ids),
            autoregressive_s=middle.autoregressive_s,
            speculative_s=middle.speculative_s,
            speedup=middle.speedup,
            acceptance_rate=middle.acceptance_rate,
            tokens_per_round=middle.tokens_per_round or 0.0,
            identical=all(trace.identical for trace in self.traces),
        )

    def detail(self, costs: CostTable | None) -> RowDetail:
        """`costs` are those of the whole benchmark, for the prediction."""
        return RowDetail(
            id=self.prompt.id,
            figures=medians(self.figures),
            difference=next(filter(None, (trace.difference for trace in self.traces)), None),
            predicted_speedup=predicted_speedup(self.traces, costs) if costs else None,
            speedups=tuple(figures.speedup for figures in self.figures),
        )


def figures_of(trace: Trace, joules: tuple[float | None, float | None] = (None, None)) -> Figures:
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


def total(items: Iterable[Figures]) -> Figures:
    """The sums; all 0 without items."""
    return _combined(items, sum)


def medians(items: Iterable[Figures]) -> Figures:
    """The median of each figure over repeats of one prompt; of an even number, the lower one."""
    return _combined(items, median_low)


def sweep_point(length: int | None, traces: Sequence[Trace]) -> SweepPoint:
    """The traces of the sweep's prompts with one draft length."""
    costs = measured_costs(traces)
    predicted = predicted_speedup(traces, costs) if costs else None
    return SweepPoint(length, total(map(figures_of, traces)), predicted)


def summarize_rows(rows: Sequence[Row], details: Sequence[RowDetail]) -> Summary:
    whole = total(detail.figures for detail in details)
    by_task: dict[str, list[Figures]] = {}
    for row, detail in zip(rows, details, strict=True):
        by_task.setdefault(row.task, []).append(detail.figures)
    return Summary(
        speedup=whole.speedup,
        speedup_by_task={task: total(figures).speedup for task, figures in by_task.items()},
        worst_prompt_speedup=min(speedups(rows), default=None),
        autoregressive_tokens_per_s=whole.autoregressive_tokens_per_s,
        speculative_tokens_per_s=whole.speculative_tokens_per_s,
        acceptance_rate=whole.acceptance_rate,
        tokens_per_round=whole.tokens_per_round,
        identical=all(row.identical for row in rows) if rows else None,
        prompts=len(rows),
        outside_inference_fraction=over(whole.outside_s, whole.speculative_s),
        cpu_seconds_per_token=whole.per_token("cpu_s"),
    )


def quartiles(rows: Sequence[Row]) -> tuple[float, ...]:
    """First quartile, median and third of the prompts' speed-ups; empty for fewer than two."""
    known = speedups(rows)
    return tuple(quantiles(known, method="inclusive")) if len(known) > 1 else ()


def speedups(rows: Sequence[Row]) -> list[float]:
    return [row.speedup for row in rows if row.speedup is not None]


def variant_rates(rows: Sequence[PeerRow]) -> dict[tuple[str, str], float]:
    """Tokens a second of each (peer, variant): totals over totals."""
    rates = {}
    for key in dict.fromkeys((row.peer, row.variant) for row in rows):
        chosen = [row for row in rows if (row.peer, row.variant) == key]
        tokens, seconds = sum(row.tokens for row in chosen), sum(row.seconds for row in chosen)
        rates[key] = over(tokens, seconds) or 0.0
    return rates


def peer_figures(
    rows: Sequence[PeerRow], settings: dict[tuple[str, str], dict[str, str]]
) -> dict[str, PeerFigures]:
    """Each peer by its fastest variant among those that ran the most prompts; `settings` belong to
    (peer, variant)."""
    rates = variant_rates(rows)
    compared = {
        key: [row.identical for row in rows if (row.peer, row.variant) == key] for key in rates
    }
    figures = {}
    for peer in dict.fromkeys(row.peer for row in rows):
        variants = [key for key in rates if key[0] == peer]
        best = max(variants, key=lambda key: (len(compared[key]), rates[key]))
        same = None if None in compared[best] else all(compared[best])
        figures[peer] = PeerFigures(rates[best], settings.get(best, {}), same)
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


def _combined(items: Iterable[Figures], combine: Any) -> Figures:
    columns = zip(*map(dataclasses.astuple, items), strict=True)
    return Figures(*(None if None in column else combine(column) for column in columns))
