"""Records races of the embedded pair, on a quiet machine.

`python tools/page_record.py` records the race that the page plays before the first question,
specdemo/ui/static/recorded.json: the one of median speed-up of five, as it was measured.
`--predictions` compares predicted and measured speed-up on ten prompts of the benchmark, and keeps
the runs for the tests, without texts: tests/data/predicted_runs.json. `--lengths` records the
answer lengths that the page shows before any are measured, medians of five, with the commit:
specdemo/ui/static/lengths.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

from page_measure import ROOT

from specdemo.bench.costs import measured_speed, predicted_speed
from specdemo.bench.lengths import PAPER_PROMPT
from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.report import bench
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import find_pair
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, as_json, summarize, to_json
from specdemo.ui import benchmark
from specdemo.ui.layout import RECORDED

WARM_UP = "Name three colours of the rainbow"
QUESTION = "What is the water cycle?"
PREDICTED = ROOT / "tests" / "data" / "predicted_runs.json"


def race() -> Trace:
    """A race of a pair that was just loaded: nothing of the question is in its prefix cache."""
    with closing(Session(load_pair(find_pair("embedded")))) as session:
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


def lengths() -> None:
    how = {"lengths": benchmark.LENGTHS, "repeats": 5}
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        *_, report = bench(session, [PAPER_PROMPT], Settings(), **how)
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = json.loads(as_json(report)) | {"commit": commit.strip()}
    benchmark.RECORDED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(*report["lengths"], sep="\n")


def main() -> None:
    for option, record in {"--predictions": predictions, "--lengths": lengths}.items():
        if option in sys.argv:
            record()
            return
    traces = sorted((race() for _ in range(5)), key=lambda trace: summarize(trace).speedup)
    for trace in traces:
        print(f"{summarize(trace).speedup:.2f} times, identical: {trace.identical}")
    kept = traces[2]
    RECORDED.write_text(to_json(kept) + "\n", encoding="utf-8")
    print(f"{RECORDED.relative_to(ROOT)}: {RECORDED.stat().st_size / 1e3:.0f} kB, {kept.machine}")


if __name__ == "__main__":
    main()
