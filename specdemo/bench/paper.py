"""The table of the paper that this project follows (arXiv 2311.04951): its prompt and lengths, with
the loaded pair."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import Plan, bench
from specdemo.bench.report import Measurement
from specdemo.session import Session
from specdemo.settings import Settings

PROMPT = "Explain the difference between fission and fusion"
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds that the paper gives for an answer of so many tokens (dolly-v2-12b with dolly-v2-3b,
    K = 5)."""

    autoregressive_s: float
    speculative_s: float


PUBLISHED = {40: Published(19.87, 13.61), 100: Published(44.25, 26.97)}
"""By the number of new tokens, N."""


@dataclass(frozen=True, slots=True)
class PaperRow:
    """The loaded pair on the paper's prompt: whole seconds, prefill included, medians of `repeats`
    runs. `tokens` may be fewer than `new_tokens` where the model ended its answer before."""

    new_tokens: int
    tokens: int
    autoregressive_s: float
    speculative_s: float
    speedup: float
    acceptance_rate: float | None
    identical: bool
    repeats: int
    published: Published


@dataclass(frozen=True, slots=True)
class PaperTable(Measurement):
    rows: tuple[PaperRow, ...]


def paper_table(session: Session, settings: Settings) -> PaperTable:
    """Runs each length REPEATS times."""
    rows = []
    for length, published in PUBLISHED.items():
        plan = Plan(replace(settings, max_new_tokens=length), REPEATS)
        *_, report = bench(session, [BenchPrompt("paper", "paper", PROMPT)], plan)
        [row], [detail] = report.rows, report.details.rows
        # The prompt is prefilled once and its cache reused; both runs count the measured prefill.
        plain, speculative = (
            detail.figures.prefill_seconds + seconds
            for seconds in (row.autoregressive_s, row.speculative_s)
        )
        figures = plain, speculative, plain / speculative, row.acceptance_rate, row.identical
        rows.append(PaperRow(length, row.tokens, *figures, REPEATS, published))
    return PaperTable(**Measurement.here(session, settings), rows=tuple(rows))


def table(found: PaperTable) -> list[dict[str, object]]:
    """The published figures are the last columns."""
    rows = []
    for row in map(asdict, found.rows):
        published = row.pop("published")
        published["speedup"] = published["autoregressive_s"] / published["speculative_s"]
        rows.append(row | {f"paper: {name}": value for name, value in published.items()})
    return rows
