"""Records races, on a quiet machine.

`python tools/page_record.py [--pair PAIR] [--model M --assistant-model A] [NAME=QUESTION ...]`
records races that the page plays before a question, in its static/recorded/NAME.json: the median of
several, as they were measured. M and A are files of the pair that are here already; the
records have the pair's names for them. A NAME that ends in json asks for JSON. `--benchmark`
records what the benchmark tab shows before one is run, with the commit:
static/benchmark.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import ModelChoice, chosen_pair, find_pair
from specdemo.runs.question import Question
from specdemo.runs.saved_run import from_json
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, as_json
from specdemo.server.page import benchmark
from specdemo.server.page.layout import BOOK
from specdemo.server.page.web_app import RECORDED

ROOT = Path(__file__).parents[1]
WARM_UP = "Name three colours of the rainbow"
QUESTION = "4-embedded=What is the water cycle?"
REPEAT_SECONDS = 3.0  # of races of one question; a record is below 50 kB
DIGITS = 6  # of seconds and probabilities


def record(options: argparse.Namespace) -> None:
    pair = find_pair(options.pair)
    choice = ModelChoice(options.pair)
    if options.model:
        choice = ModelChoice("", options.model, options.assistant_model)
    with closing(Session(load_pair(chosen_pair(choice)))) as session:
        list(session.ask(Question(WARM_UP, Settings(), baseline=True)))
        for race in options.races or [QUESTION]:
            name, instruction = race.split("=", 1)
            schema = json.dumps(BOOK) if name.endswith("json") else ""
            settings = Settings(max_new_tokens=120, json_schema=schema)
            question = Question(instruction, settings, baseline=True, repeat=REPEAT_SECONDS)
            *_, trace = session.ask(question)
            if options.model:
                revisions = {"target_revision": "", "draft_revision": ""}
                names = {"target": pair.target.name, "draft": pair.draft and pair.draft.name}
                info = replace(trace.pair, name=pair.name, **names, **revisions)
                trace = replace(trace, pair=info)
            write(trace, RECORDED / f"{name}.json")


def write(trace: Trace, path: Path) -> None:
    short = json.loads(trace.to_json(), parse_float=lambda number: round(float(number), DIGITS))
    text = as_json(short)
    path.write_text(text + "\n", encoding="utf-8")
    result = from_json(text).verdict
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB, {trace.machine}")
    print(f"identical: {trace.identical}, {result}")


def record_benchmark() -> None:
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        *_, message = benchmark.measure(session, Question("", Settings()))
    last = json.loads(message)
    report = last["report"] | {"commit": commit.strip(), "charts": last["charts"]}
    benchmark.RECORDED.write_text(json.dumps(report) + "\n", encoding="utf-8")
    print(last["sentence"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("races", nargs="*", metavar="NAME=QUESTION")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--model", default="")
    parser.add_argument("--assistant-model", default="")
    parser.add_argument("--benchmark", action="store_true")
    options = parser.parse_args()
    if options.benchmark:
        record_benchmark()
    else:
        record(options)


if __name__ == "__main__":
    main()
