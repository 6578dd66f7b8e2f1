"""The table of the paper that this project follows (arXiv 2311.04951): its prompt and lengths, with
the loaded pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import Bench
from specdemo.bench.report import Measurement
from specdemo.session import Session
from specdemo.settings import Settings

PROMPT = "Explain the difference between fission and fusion"
REPEATS = 3

PUBLISHED = {
    40: {"autoregressive_s": 19.87, "speculative_s": 13.61},
    100: {"autoregressive_s": 44.25, "speculative_s": 26.97},
}
"""Seconds of an answer of N tokens: dolly-v2-12b with dolly-v2-3b, K = 5."""


@dataclass(frozen=True)
class PaperTable(Measurement):
    """A row for each N, with `published` beside. Seconds are whole, prefill included, medians of
    the repeats; `tokens` may be fewer than `new_tokens` where the model ended its answer before."""

    rows: tuple[dict[str, Any], ...]

    def table(self) -> list[dict[str, object]]:
        """The published figures are the last columns."""
        rows = []
        for row in self.rows:
            published = row["published"]
            speedup = published["autoregressive_s"] / published["speculative_s"]
            shown = {f"paper: {name}": value for name, value in published.items()}
            ours = {name: value for name, value in row.items() if name != "published"}
            rows.append({**ours, **shown, "paper: speedup": speedup})
        return rows


def paper_table(session: Session, settings: Settings) -> PaperTable:
    rows = []
    for length, published in PUBLISHED.items():
        asked = replace(settings, max_new_tokens=length)
        *_, report = Bench(session, [BenchPrompt("paper", "paper", PROMPT)], asked, REPEATS)
        [row] = report.rows
        # The prompt is prefilled once and its cache reused; both runs count the measured prefill.
        prefill, figures = row.figures.prefill_seconds, row.figures
        plain = prefill + figures.baseline_decode_seconds
        speculative = prefill + figures.decode_seconds
        found = {
            "new_tokens": length,
            "tokens": figures.tokens,
            "autoregressive_s": plain,
            "speculative_s": speculative,
            "speedup": plain / speculative,
            "acceptance_rate": figures.acceptance_rate,
            "identical": row.identical,
            "repeats": REPEATS,
        }
        rows.append({**found, "published": published})
    return PaperTable(**Measurement.here(session, settings), rows=tuple(rows))
