"""The table of the paper that this project follows (arXiv 2311.04951): its prompt and lengths, with
the loaded pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from tqdm import trange

from specdemo.bench.prompts import WARM_UP
from specdemo.bench.race import WARM_UP_TOKENS, versions
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import PairInfo, summarize

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


def paper_table(session: Session, settings: Settings) -> PaperTable:
    """Runs each length REPEATS times, with a progress bar on stderr."""
    list(session.race(WARM_UP, replace(settings, max_new_tokens=WARM_UP_TOKENS)))
    rows = tuple(_row(session, settings, published) for published in PUBLISHED)
    return PaperTable(describe(), versions(), session.info, settings, rows)


def _row(session: Session, settings: Settings, published: Published) -> PaperRow:
    asked = replace(settings, max_new_tokens=published.new_tokens)
    repeats = trange(REPEATS, desc=f"N = {published.new_tokens}", leave=False, disable=None)
    traces = [list(session.race(PROMPT, asked))[-1] for _ in repeats]
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
        repeats=REPEATS,
        published=published,
    )
