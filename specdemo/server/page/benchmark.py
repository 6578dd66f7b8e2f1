"""The benchmark of the page: races built-in prompts in turn until the verdict is certain, and sends
its charts, table and report as messages."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specdemo.bench.charts import as_data, by_acceptance, by_prompt, wall_clock
from specdemo.bench.decision import Row, decide, measure_users, users_row
from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.report import PAPER_PROMPT, RacedPrompt, by_length, summary_of
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs.judge import PairedRuns, judge
from specdemo.runs.question import Question, trace_of
from specdemo.runs.report_page import ReportHeader
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json, summarize
from specdemo.server.page.events import message
from specdemo.server.page.service import LimitedSession
from specdemo.server.page.wording import draft_of

PROMPTS, LENGTHS = 8, (40, 100)
SECONDS, TURNS = 60.0, 3  # no turn is begun after so many seconds
USERS_SECONDS = 40.0  # of measurements of several users at once

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
        row |= {"speedups": [pair.speedup for pair in self.pairs]}
        row |= {"whys": [pair.why for pair in self.pairs]}
        row |= {"max_new_tokens": limit, "why": self.pair.why}
        return row | ({"id": f"the paper's, {limit} tokens", "paper": limit} if self.paper else {})


def measure(session: LimitedSession, question: Question) -> Iterator[str]:
    """A message after each race of a benchmark with the settings of `question`, then for each
    measurement of several users at once, the last one with the decision and the charts."""
    settings = question.settings
    items = [Item(PAPER_PROMPT, replace(settings, max_new_tokens=n), paper=True) for n in LENGTHS]
    items += [Item(prompt, settings) for prompt in spread(read_prompts(), PROMPTS)]

    users: list[Row] = []

    def ended(phase: str, note: str) -> str:
        return message(phase, note, **shown(report(session.info, settings, items, users)))

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
                yield ended("stopped", "Stopped.")
                return
            item.traces.append(trace)
            yield message("benchmark", name, **shown(report(session.info, settings, items), []))
    if settings.drafter != "none":
        prompts = [item.prompt.instruction for item in items if not item.paper]
        several = measure_users(session.ask, prompts, settings, USERS_SECONDS, users, question.stop)
        for name in several:
            yield message("benchmark", name)
    yield ended("done", "Finished.")


def report(
    pair: PairInfo, settings: Settings, items: list[Item], users: list[Row] | None = None
) -> dict[str, Any]:
    """The report of the races so far, in the words of `bench`. At the end, with the rows of several
    `users` at once, it has the summary and the decision of the built-in prompts."""
    raced = [item for item in items if item.traces and summarize(item.traces[-1]).speedup]
    made: dict[str, Any] = {
        **vars(ReportHeader(pair=pair, settings=settings)),
        "rows": [item.row for item in raced],
        "lengths": by_length([item for item in raced if item.paper]),
        "details": {"created": datetime.now(UTC).isoformat(timespec="seconds")},
    }
    prompts = [item for item in raced if not item.paper]
    if users is not None and prompts:
        pairs = [item.pair for item in prompts]
        made["summary"] = summary = summary_of(prompts)
        made["decision"] = decide(
            judge(pairs, "prompt"),
            [trace for item in prompts for trace in item.traces],
            summary,
            [users_row(1, pairs), *users],
            ModelChoice(pair.name),
            settings,
        )
    return dict(json.loads(as_json(made)))


def shown(report: dict[str, Any], charts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The sentence of a report, the `charts` (drawn if they are not given), and the report."""
    pair = report["pair"]
    sentence = f"{pair['target']}, draft: {draft_of(PairInfo(**pair))}, on {report['machine']}; "
    sentence += f"temperature {report['settings']['temperature']:g}"
    sentence += ", answers by a JSON Schema." if report["settings"].get("json_schema") else "."
    decision = report.get("decision")
    rows = [row for row in report["rows"] if "paper" not in row]
    if rows and not decision:
        pairs = [PairedRuns(row["speedup"], row.get("why", "")) for row in rows]
        sentence = f"{judge(pairs, 'prompt').sentence} {sentence}"
    if charts is None:
        drawn = [by_acceptance(decision["estimates"])] if decision and decision["estimates"] else []
        drawn += [wall_clock(report["lengths"])] if report["lengths"] else []
        drawn += [by_prompt(report["rows"])] if report["rows"] else []
        charts = [as_data(chart) for chart in drawn]
    return {"sentence": sentence, "charts": charts, "report": report}


def recorded() -> dict[str, Any]:
    """What is shown before a benchmark is run."""
    report = json.loads(RECORDED.read_text("utf-8"))
    parts = shown(report, report.pop("charts"))
    day = report["details"]["created"][:10]
    parts["sentence"] = f"Recorded {day}, commit {report['commit']}: {parts['sentence']}"
    return parts
