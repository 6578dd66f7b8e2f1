"""The benchmark of the page: races built-in prompts in turn until the verdict is certain, and sends
its charts, table and report as messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from specdemo.audit.report_page import ReportHeader
from specdemo.bench.charts import as_data, by_prompt, wall_clock
from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.report import PAPER_PROMPT, RacedPrompt, by_length, summary_of
from specdemo.runs.question import Question, trace_of
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Summary, Trace, as_json, combined, summarize
from specdemo.server.page.events import message

if TYPE_CHECKING:
    from specdemo.pairs.registry import PairInfo
    from specdemo.runs.session import Session
    from specdemo.server.page.service import LimitedSession

PROMPTS, LENGTHS = 8, (40, 100)
SECONDS, NARROW, LEAST_TURNS = 60.0, 0.1, 3  # no turn is begun after so many seconds

# The report, with its `commit` and `charts`, that is shown before any run; `tools/page_record.py`
# makes it.
RECORDED = Path(__file__).parent / "static" / "benchmark.json"


@dataclass
class Item(RacedPrompt):
    """One prompt, and its races so far. `paper`: its answer has a length of the paper's."""

    paper: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """The row of a benchmark's report, with the speed-up of each race."""
        limit = self.settings.max_new_tokens
        row = super().row
        row["speedups"] = [speedup for speedup in map(_speedup, self.traces) if speedup]
        row["max_new_tokens"] = limit
        return row | ({"id": f"the paper's, {limit} tokens", "paper": limit} if self.paper else {})


def measure(session: Session | LimitedSession, question: Question) -> Iterator[str]:
    """Yields a message after each race of a benchmark with the settings of `question`, the last one
    with the whole report."""
    settings = question.settings
    items = [Item(PAPER_PROMPT, replace(settings, max_new_tokens=n), paper=True) for n in LENGTHS]
    items += [Item(prompt, settings) for prompt in spread(read_prompts(), PROMPTS)]
    turns: list[float] = []
    until = time.monotonic() + SECONDS
    while not turns or time.monotonic() < until:
        for number, item in enumerate(items):
            name = f"Turn {len(turns) + 1}: {item.prompt.id}"
            yield message("benchmark", name, done=number, total=len(items))
            race = replace(question, prompt=item.prompt.instruction, baseline=True)
            trace = trace_of(session.ask(replace(race, settings=item.settings)))
            if trace.identical is None:
                yield message("stopped", "Stopped.", **report(session.info, settings, items, turns))
                return
            item.traces.append(trace)
            yield message("benchmark", name, **report(session.info, settings, items, turns))
        turns.append(_total([summarize(item.traces[-1]) for item in items if not item.paper]))
        if len(turns) >= LEAST_TURNS and max(turns) - min(turns) <= NARROW * median(turns):
            break
    yield message("done", "Finished.", **report(session.info, settings, items, turns))


def _speedup(trace: Trace) -> float | None:
    return summarize(trace).speedup


def _total(figures: list[Summary]) -> float:
    return combined(figures).speedup or 1.0


def report(
    pair: PairInfo, settings: Settings, items: list[Item], turns: list[float]
) -> dict[str, Any]:
    """The `report` of the races so far, in the words of `bench`, and what is shown of it."""
    raced = [item for item in items if item.traces and _speedup(item.traces[-1])]
    rows = [item.row for item in raced]
    own = [item for item in raced if not item.paper]
    paper = [item for item in raced if item.paper]
    whole = {
        **vars(ReportHeader(pair=pair, settings=settings)),
        "rows": rows,
        "lengths": by_length(paper),
        "turns": turns,
        "details": {"created": datetime.now(UTC).isoformat(timespec="seconds")},
    }
    if own:
        whole["summary"] = summary_of(own)
    whole = json.loads(as_json(whole))
    return shown(whole, charts_of(whole))


def charts_of(whole: dict[str, Any]) -> list[dict[str, Any]]:
    charts = [wall_clock(whole["lengths"])] if whole["lengths"] else []
    charts += [by_prompt(whole["rows"])] if whole["rows"] else []
    return list(map(as_data, charts))


def shown(whole: dict[str, Any], charts: list[dict[str, Any]]) -> dict[str, Any]:
    """The charts and the sentence of a report, and the report itself."""
    turns, pair = whole.get("turns") or [], whole["pair"]
    sentence = f"{pair['target']}, draft: {pair['draft'] or 'n-gram lookup'}, on {whole['machine']}"
    if turns:
        ends = f"{min(turns):.2f} to {max(turns):.2f}"
        sentence = f"{median(turns):.2f} times as fast ({ends} in {len(turns)} turns). {sentence}"
    return {"sentence": sentence + ".", "charts": charts, "report": whole}


def recorded() -> dict[str, Any]:
    """What is shown before a benchmark is run."""
    whole = json.loads(RECORDED.read_text("utf-8"))
    charts = whole.pop("charts")
    parts = shown(whole, charts)
    day = whole["details"]["created"][:10]
    parts["sentence"] = f"Recorded {day}, commit {whole['commit']}: {parts['sentence']}"
    return parts
