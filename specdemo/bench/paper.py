"""The table of the paper that this project follows (arXiv 2311.04951): its prompt and lengths, with
the loaded pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from specdemo.bench.prompts import WARM_UP
from specdemo.bench.race import WARM_UP_TOKENS, Step, finished_race, versions
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import PairInfo, Trace, summarize

PROMPT = "Explain the difference between fission and fusion"
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds that the paper gives for an answer of `new_tokens` tokens (dolly-v2-12b with
    dolly-v2-3b, K = 5)."""

    new_tokens: int
    autoregressive_s: float
    speculative_s: float


PUBLISHED = (Published(40, 19.87, 13.61), Published(100, 44.25, 26.97))


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
class PaperTable:
    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings
    rows: tuple[PaperRow, ...]


def paper_table(
    session: Session, settings: Settings, on_step: Callable[[Step], None] = lambda step: None
) -> PaperTable:
    """Runs each length REPEATS times; `on_step` is called before each run."""
    total = 1 + len(PUBLISHED) * REPEATS
    on_step(Step(0, total, "warming up"))
    finished_race(session, WARM_UP, replace(settings, max_new_tokens=WARM_UP_TOKENS))
    rows = []
    for at, published in enumerate(PUBLISHED):
        asked = replace(settings, max_new_tokens=published.new_tokens)
        traces = []
        for repeat in range(REPEATS):
            text = f"N = {published.new_tokens}, run {repeat + 1} of {REPEATS}"
            on_step(Step(1 + at * REPEATS + repeat, total, text))
            traces.append(finished_race(session, PROMPT, asked)[0])
        rows.append(_row(published, traces))
    return PaperTable(describe(), versions(), session.info, settings, tuple(rows))


def _row(published: Published, traces: list[Trace]) -> PaperRow:
    figures = [summarize(trace) for trace in traces]
    # The prompt is prefilled once and its cache reused; both runs count the measured prefill.
    prefill = median(trace.prefill_seconds for trace in traces)
    plain = prefill + median(one.baseline_decode_seconds or 0.0 for one in figures)
    speculative = prefill + median(one.decode_seconds for one in figures)
    return PaperRow(
        new_tokens=published.new_tokens,
        tokens=figures[0].tokens,
        autoregressive_s=plain,
        speculative_s=speculative,
        speedup=plain / speculative,
        acceptance_rate=figures[0].acceptance_rate,
        identical=all(trace.identical for trace in traces),
        repeats=len(traces),
        published=published,
    )
