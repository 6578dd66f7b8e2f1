"""The benchmark of the page: races built-in prompts in turn until the verdict is certain, and sends
its charts, table and report as messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from specdemo.bench.charts import as_data, by_prompt, wall_clock
from specdemo.bench.decision import decide, users_row
from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.report import PAPER_PROMPT, RacedPrompt, by_length, summary_of
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.judge import PairedRuns, judge
from specdemo.runs.question import Question, trace_of
from specdemo.runs.report_page import ReportHeader
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json, summarize
from specdemo.server.page.events import message

if TYPE_CHECKING:
    from specdemo.pairs.registry import PairInfo
    from specdemo.runs.session import Session
    from specdemo.server.page.service import LimitedSession

WORDS = "sentence", "command"  # of a decision
PROMPTS, LENGTHS = 8, (40, 100)
SECONDS, TURNS = 60.0, 3  # no turn is begun after so many seconds

# The report, with its `commit` and `charts`, that is shown before any run; `tools/page_record.py`
# makes it.
RECORDED = Path(__file__).parent / "static" / "benchmark.json"


@dataclass
class Item(RacedPrompt):
    """One prompt, and its races so far. `paper`: its answer has a length of the paper's."""

    paper: bool = False

    @property
    def median(self) -> float:
        """Of the races that count, of all if none does."""
        counted = [pair.speedup for pair in self.pairs if not pair.why]
        return median_low(counted or [pair.speedup for pair in self.pairs])

    @property
    def row(self) -> dict[str, Any]:
        """The row of a benchmark's report, with the speed-up of each race."""
        limit = self.settings.max_new_tokens
        row = super().row
        row |= {"speedups": [pair.speedup for pair in self.pairs], "speedup": self.median}
        row |= {"whys": [pair.why for pair in self.pairs]}
        row |= {"max_new_tokens": limit, "why": self.pair.why}
        return row | ({"id": f"the paper's, {limit} tokens", "paper": limit} if self.paper else {})


def measure(session: Session | LimitedSession, question: Question) -> Iterator[str]:
    """A message after each race of a benchmark with the settings of `question`, the last one with
    the whole report."""
    settings = question.settings
    items = [Item(PAPER_PROMPT, replace(settings, max_new_tokens=n), paper=True) for n in LENGTHS]
    items += [Item(prompt, settings) for prompt in spread(read_prompts(), PROMPTS)]

    def reported(phase: str, note: str) -> str:
        return message(phase, note, **shown(report(session.info, settings, items)))

    until = time.monotonic() + SECONDS
    for turn in range(TURNS):
        if turn and time.monotonic() > until:
            break
        for number, item in enumerate(items):
            name = f"Turn {turn + 1}: {item.prompt.id}"
            yield message("benchmark", name, done=number, total=len(items))
            race = replace(question, prompt=item.prompt.instruction, baseline=True)
            trace = trace_of(session.ask(replace(race, settings=item.settings)))
            if trace.identical is None:
                yield reported("stopped", "Stopped.")
                return
            item.traces.append(trace)
            yield reported("benchmark", name)
    yield reported("done", "Finished.")


def report(pair: PairInfo, settings: Settings, items: list[Item]) -> dict[str, Any]:
    """The report of the races so far, in the words of `bench`."""
    raced = [item for item in items if item.traces and summarize(item.traces[-1]).speedup]
    made = {
        **vars(ReportHeader(pair=pair, settings=settings)),
        "rows": [item.row for item in raced],
        "lengths": [
            row | {"speedup": item.median}
            for item in raced
            if item.paper
            for row in by_length([item])
        ],
        "details": {"created": datetime.now(UTC).isoformat(timespec="seconds")},
    }
    if prompts := [item for item in raced if not item.paper]:
        made["summary"] = summary_of(prompts)
        traces = [trace for item in prompts for trace in item.traces]
        one_user = [users_row(1, [item.speeds for item in prompts], "prompt")]
        verdict = judge([item.pair for item in prompts], "prompt")
        choice = ModelChoice(pair.name)
        made["decision"] = decide(verdict, traces, made["summary"], one_user, choice, settings)
    return dict(json.loads(as_json(made)))


def shown(report: dict[str, Any], charts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The sentence of a report, the decision as `bench` makes it with its `command`, the `charts`
    (drawn if they are not given), and the report."""
    pair = report["pair"]
    draft = pair["draft"] or "n-gram lookup"
    sentence = f"{pair['target']}, draft: {draft}, on {report['machine']}."
    rows = [row for row in report["rows"] if "paper" not in row]
    if pairs := [PairedRuns(row["speedup"], row.get("why", "")) for row in rows]:
        sentence = f"{judge(pairs, 'prompt').sentence} {sentence}"
    if charts is None:
        drawn = [wall_clock(report["lengths"])] if report["lengths"] else []
        drawn += [by_prompt(report["rows"])] if report["rows"] else []
        charts = [as_data(chart) for chart in drawn]
    decision = report.get("decision") or {"sentence": "", "command": ""}
    words = {"sentence": sentence, **{f"decision_{name}": decision[name] for name in WORDS}}
    return {**words, "charts": charts, "report": report}


def recorded() -> dict[str, Any]:
    """What is shown before a benchmark is run."""
    report = json.loads(RECORDED.read_text("utf-8"))
    parts = shown(report, report.pop("charts"))
    day = report["details"]["created"][:10]
    parts["sentence"] = f"Recorded {day}, commit {report['commit']}: {parts['sentence']}"
    return parts
