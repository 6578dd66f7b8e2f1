"""Records races, on a quiet machine.

`python tools/page_record.py [NAME TARGET]` records a race that the page plays before a question,
of the embedded pair or of the model TARGET under NAME, into specdemo/ui/static/recorded: the one of
median speed-up of five, as it was measured. `--predictions` compares predicted and measured
speed-up on ten prompts of the benchmark, and keeps the runs for the tests, without texts:
tests/data/predicted_runs.json. `--benchmark` records what the benchmark tab shows before one is
run, with the commit: specdemo/ui/static/benchmark.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Event

from specdemo.bench.costs import measured_speed, predicted_speed
from specdemo.bench.prompts import read_prompts, spread
from specdemo.pairs.choice import ModelChoice
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import chosen_pair, find_pair
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, summarize, to_json
from specdemo.ui import benchmark
from specdemo.ui.assets import RECORDED

ROOT = Path(__file__).parents[1]
WARM_UP = "Name three colours of the rainbow"
QUESTION = "What is the water cycle?"
PREDICTED = ROOT / "tests" / "data" / "predicted_runs.json"


def race(target: str = "") -> Trace:
    """A race of a pair that was just loaded: nothing of the question is in its prefix cache."""
    choice = ModelChoice(model=target) if target else ModelChoice("embedded")
    with closing(Session(load_pair(chosen_pair(choice), choice=choice))) as session:
        for asked in (WARM_UP, QUESTION):
            *_, trace = session.race(asked, Settings(max_new_tokens=120))
    return trace


def without_texts(trace: Trace) -> dict:
    """A run as its times in milliseconds and, for each round after the first, the sources of the
    draft tokens and how many were accepted."""
    baseline = trace.baseline.tokens

    def ms(seconds: float) -> float:
        return round(1000 * seconds, 3)

    return {
        "question": trace.instruction,
        "target": [ms(seconds) for seconds in trace.costs.target],
        "outside": ms(trace.outside_seconds),
        "baseline": [len(baseline) - 1, ms(baseline[-1].shown_at - baseline[0].shown_at)],
        "rounds": [
            [
                [token.source for token in one.drafted],
                one.accepted,
                one.emitted.kind if one.emitted else None,
                *map(ms, (one.draft_seconds, one.verify_seconds, one.shown_at - first.shown_at)),
            ]
            for first in trace.rounds[:1]
            for one in trace.decoding_rounds
        ],
    }


def predictions() -> None:
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        list(session.race(WARM_UP, Settings()))
        kept = []
        for prompt in spread(read_prompts(), 10):
            *_, trace = session.race(prompt.instruction, Settings())
            predicted, measured = predicted_speed(trace).speedup, measured_speed(trace).speedup
            print(f"{predicted:.2f} predicted, {measured:.2f} measured: {prompt.id}")
            kept.append(json.dumps(without_texts(trace), separators=(",", ":")))
    PREDICTED.parent.mkdir(exist_ok=True)
    PREDICTED.write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")


def record_benchmark() -> None:
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        *_, last = map(json.loads, benchmark.measure(session, Settings(), Event()))
    kept = last["report"] | {"commit": commit.strip()}
    benchmark.RECORDED.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    print(last["sentence"])


def main() -> None:
    options = {"--predictions": predictions, "--benchmark": record_benchmark}
    for option, record in options.items():
        if option in sys.argv:
            record()
            return
    name, target = sys.argv[1:] if len(sys.argv) == 3 else ("1-embedded", "")
    traces = sorted((race(target) for _ in range(5)), key=lambda trace: summarize(trace).speedup)
    for trace in traces:
        print(f"{summarize(trace).speedup:.2f} times, identical: {trace.identical}")
    kept, path = traces[2], RECORDED / f"{name}.json"
    path.write_text(to_json(kept) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB, {kept.machine}")


if __name__ == "__main__":
    main()
