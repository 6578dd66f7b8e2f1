"""The table of the paper that this demo follows (arXiv 2311.04951): its prompt and lengths, with the loaded pair."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from specdemo.bench.prompts import WARM_UP
from specdemo.bench.run import Step, versions
from specdemo.trace import PairInfo, Settings, Trace, summarize
from specdemo.session import Session
from specdemo.models.machine import describe

PROMPT = "Explain the difference between fission and fusion"
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Published:
    """Seconds that the paper gives for an answer of `new_tokens` tokens (dolly-v2-12b with dolly-v2-3b, K = 5)."""

    new_tokens: int
    autoregressive_s: float
    speculative_s: float

    @property
    def speedup(self) -> float:
        return self.autoregressive_s / self.speculative_s


PUBLISHED = (Published(40, 19.87, 13.61), Published(100, 44.25, 26.97))


@dataclass(frozen=True, slots=True)
class PaperRow:
    """The loaded pair on the paper's prompt: whole seconds, prefill included, medians of `repeats` runs.

    `tokens` may be fewer than `new_tokens` where the model ended its answer before.
    """

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
    session: Session, settings: Settings, *, stop: threading.Event | None = None
) -> Iterator[Step | PaperRow | PaperTable]:
    """Yields a Step before each run, a PaperRow for each length, and last the PaperTable of the rows there are."""
    stop = stop or threading.Event()
    rows: list[PaperRow] = []
    total = 1 + len(PUBLISHED) * REPEATS
    yield Step(0, total, "warming up")
    _race(session, WARM_UP, dataclasses.replace(settings, max_new_tokens=48), stop)
    for at, published in enumerate(PUBLISHED):
        traces: list[Trace] = []
        for repeat in range(REPEATS):
            yield Step(1 + at * REPEATS + repeat, total, f"N = {published.new_tokens}, run {repeat + 1} of {REPEATS}")
            trace = _race(session, PROMPT, dataclasses.replace(settings, max_new_tokens=published.new_tokens), stop)
            if trace is not None:
                traces.append(trace)
        if len(traces) < REPEATS:
            break
        rows.append(_row(published, traces))
        yield rows[-1]
    yield PaperTable(describe(), versions(), session.info, settings, tuple(rows))


def _race(session: Session, instruction: str, settings: Settings, stop: threading.Event) -> Trace | None:
    """One finished trace with its baseline, or None when stopped."""
    trace = compared = None
    for event in session.answer(instruction, settings, stop=stop):
        if isinstance(event, Trace) and event.finish_reason != "cancelled":
            trace = event
    if trace is None:
        return None
    for event in session.baseline(trace, stop=stop):
        if isinstance(event, Trace) and event.identical is not None:
            compared = event
    return compared


def _row(published: Published, traces: list[Trace]) -> PaperRow:
    figures = [summarize(trace) for trace in traces]
    # The prompt is prefilled once and its cache reused; both runs count the measured prefill, as if run anew.
    plain = median(t.prefill_seconds + (f.baseline_decode_seconds or 0.0) for t, f in zip(traces, figures, strict=True))
    speculative = median(t.prefill_seconds + f.decode_seconds for t, f in zip(traces, figures, strict=True))
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


def to_json(table: PaperTable) -> str:
    data = dataclasses.asdict(table)
    if table.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
