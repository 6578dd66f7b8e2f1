"""A benchmark report: frozen dataclasses, the figures that rows sum up to, and strict JSON both ways.

Measures nothing. Field names are those of the JSON; what the contract does not name lies under `details`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from specdemo.trace import PairInfo, Settings

MAX_JSON_BYTES = 50_000_000


class ReportError(ValueError):
    """A report file that is not one; the message says what was expected and where."""


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt. Seconds are those of decoding, after the same prefill: from the first token to the last.

    `tokens` counts the whole answer; `identical` is None where the answers were not compared to the end. Figures that
    an answer of a single token does not have are None.
    """

    id: str
    task: str
    tokens: int
    autoregressive_s: float
    speculative_s: float
    speedup: float | None
    acceptance_rate: float | None
    tokens_per_round: float
    identical: bool | None


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """Processor seconds of all threads for one token of decoding."""

    autoregressive: float | None
    speculative: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The rows together: `speedup` is total autoregressive over total speculative time for the same tokens."""

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
    cpu_seconds_per_token: CpuSeconds


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """How a peer did on the same prompts; `settings` says with what. `identical`: to our tokens, on every prompt."""

    tokens_per_s: float | None
    settings: dict[str, str]
    identical: bool | None


@dataclass(frozen=True, slots=True)
class RowDetail:
    """What a row's figures are made of. Counts are of one run; seconds (and joules, None where the machine does not
    show them) are medians over the repeats. `decoded` leaves the first token out; `examined` draft tokens are those
    that the target got to see; `rounds` leaves the first token's out."""

    id: str
    decoded: int
    autoregressive_decoded: int
    rounds: int
    drafted: int
    accepted: int
    examined: int
    draft_s: float
    verify_s: float
    outside_s: float
    autoregressive_cpu_s: float
    speculative_cpu_s: float
    autoregressive_joules: float | None
    speculative_joules: float | None
    near_ties: int
    certified: bool | None
    predicted_speedup: float | None
    speedups: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PositionCount:
    """Of the draft tokens at one place in the draft: how many the target examined, and accepted."""

    accepted: int
    examined: int


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Median seconds of one target forward of `tokens` tokens, over `seen` forwards."""

    tokens: int
    seconds: float
    seen: int


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured medians in seconds: one plain token, one draft token (0 where none was drafted by a model), and
    verifications by size."""

    plain: float
    draft_step: float
    verify: tuple[VerifyCost, ...]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The speed-up of one draft length (None: adaptive) over the sweep's prompts, and what Leviathan's equation
    predicts for it with the measured costs and acceptance rate."""

    draft_tokens: int | None
    speedup: float
    predicted: float | None
    acceptance_rate: float | None
    mean_draft_tokens: float


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One prompt run by one variant of a peer: `decoded` tokens after the first, in `seconds`."""

    peer: str
    variant: str
    id: str
    decoded: int
    seconds: float
    identical: bool | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A prompt that could not be run, and why (one sentence)."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Quartiles of the prompts' speed-ups: how far a single prompt is to be trusted."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Details:
    """What the contract's fields are made of, and what the HTML report draws."""

    rows: tuple[RowDetail, ...]
    positions: tuple[PositionCount, ...]
    costs: CostTable | None
    predicted_speedup: float | None
    spread: Spread | None
    joules_per_token: CpuSeconds
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
    """A whole benchmark, finished or (`details.stopped`) stopped early with what was measured until then."""

    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings
    rows: tuple[Row, ...]
    summary: Summary
    peers: dict[str, PeerFigures]
    details: Details


def summarize_rows(rows: Sequence[Row], details: Sequence[RowDetail]) -> Summary:
    """Sum rows up. Rates are totals over totals, never means of rates; times are put to one token before they are
    compared, which changes nothing where both runs gave the same tokens."""
    plain = _over(sum(d.autoregressive_decoded for d in details), sum(r.autoregressive_s for r in rows))
    speculative = _over(sum(d.decoded for d in details), sum(r.speculative_s for r in rows))
    by_task: dict[str, float | None] = {}
    for task in dict.fromkeys(row.task for row in rows):
        chosen = [(r, d) for r, d in zip(rows, details, strict=True) if r.task == task]
        by_task[task] = _ratio(
            _over(sum(d.decoded for _, d in chosen), sum(r.speculative_s for r, _ in chosen)),
            _over(sum(d.autoregressive_decoded for _, d in chosen), sum(r.autoregressive_s for r, _ in chosen)),
        )
    compared = [row.identical for row in rows]
    return Summary(
        speedup=_ratio(speculative, plain),
        speedup_by_task=by_task,
        worst_prompt_speedup=min((row.speedup for row in rows if row.speedup is not None), default=None),
        autoregressive_tokens_per_s=plain,
        speculative_tokens_per_s=speculative,
        acceptance_rate=_over(sum(d.accepted for d in details), sum(d.examined for d in details)),
        tokens_per_round=_over(sum(d.decoded for d in details), sum(d.rounds for d in details)),
        identical=all(compared) if compared and None not in compared else None,
        prompts=len(rows),
        outside_inference_fraction=_over(sum(d.outside_s for d in details), sum(r.speculative_s for r in rows)),
        cpu_seconds_per_token=CpuSeconds(
            _over(sum(d.autoregressive_cpu_s for d in details), sum(d.autoregressive_decoded for d in details)),
            _over(sum(d.speculative_cpu_s for d in details), sum(d.decoded for d in details)),
        ),
    )


def joules_per_token(details: Sequence[RowDetail]) -> CpuSeconds:
    """Joules for one token of decoding, from the rows that have them; None where none has."""
    known = [d for d in details if d.autoregressive_joules is not None and d.speculative_joules is not None]
    return CpuSeconds(
        _over(sum(d.autoregressive_joules for d in known), sum(d.autoregressive_decoded for d in known)),
        _over(sum(d.speculative_joules for d in known), sum(d.decoded for d in known)),
    )


def spread_of(rows: Sequence[Row]) -> Spread | None:
    """Quartiles of the rows' speed-ups, None without any."""
    speedups = sorted(row.speedup for row in rows if row.speedup is not None)
    if not speedups:
        return None
    last = len(speedups) - 1
    return Spread(*(speedups[round(last * share)] for share in (0.25, 0.5, 0.75)))


def variant_rates(rows: Sequence[PeerRow]) -> dict[tuple[str, str], float | None]:
    """Tokens a second of each (peer, variant): totals over totals."""
    return {
        key: _over(
            sum(row.decoded for row in rows if (row.peer, row.variant) == key),
            sum(row.seconds for row in rows if (row.peer, row.variant) == key),
        )
        for key in dict.fromkeys((row.peer, row.variant) for row in rows)
    }


def peer_figures(rows: Sequence[PeerRow], settings: dict[tuple[str, str], dict[str, str]]) -> dict[str, PeerFigures]:
    """Each peer by its fastest variant among those that ran the most prompts; `settings` belong to (peer, variant)."""
    figures: dict[str, PeerFigures] = {}
    rates = variant_rates(rows)
    for peer in dict.fromkeys(row.peer for row in rows):
        count = {key: sum((row.peer, row.variant) == key for row in rows) for key in rates if key[0] == peer}
        most = max(count.values())
        best = max((key for key in count if count[key] == most), key=lambda key: rates[key] or 0.0)
        compared = [row.identical for row in rows if (row.peer, row.variant) == best]
        same = all(compared) if None not in compared else None
        figures[peer] = PeerFigures(rates[best], settings.get(best, {}), same)
    return figures


def to_json(report: Report, *, indent: int | None = 1) -> str:
    """A report as JSON; `from_json` gives back an equal report."""
    data = dataclasses.asdict(report)
    if report.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Report:
    """Read a report written by `to_json`. Strict: raises ReportError, which names the field that is not as it should
    be."""
    if len(text) > MAX_JSON_BYTES:
        raise ReportError(f"The report is larger than {MAX_JSON_BYTES // 1_000_000} MB; bench never writes that much.")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ReportError("The file is not JSON; choose a report that bench wrote.") from error
    settings = data.get("settings") if isinstance(data, dict) else None
    if isinstance(settings, dict) and settings.get("draft_tokens") == "auto":
        settings["draft_tokens"] = None
    return _build(Report, data, "report")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _over(value: float, by: float) -> float | None:
    return value / by if by > 0 else None


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` (parsed JSON) as the annotated type `kind`, or ReportError naming `where`."""
    options = get_args(kind) if type(None) in get_args(kind) else (kind,)
    if value is None and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ReportError(f"{where} should be an object with the fields {', '.join(hints)}.")
        return kind(**{name: _build(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ReportError(f"{where} should be a list.")
        return tuple(_build(get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ReportError(f"{where} should be an object.")
        return {key: _build(get_args(kind)[1], entry, f"{where}.{key}") for key, entry in value.items()}
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ReportError(f"{where} should be {kind.__name__}.")
    if kind is float and not math.isfinite(value):
        raise ReportError(f"{where} is not a finite number.")
    return float(value) if kind is float else value
