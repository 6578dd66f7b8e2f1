"""Records the race that the page plays before anybody has asked: specdemo/ui/static/recorded.json.

`python tools/page_record.py [--question TEXT] [--tokens N] [--repeats 5]`, on a quiet machine. Runs
the embedded pair and keeps the run of median speed-up, as it was measured.
"""

from __future__ import annotations

import argparse
from contextlib import closing

from page_measure import ROOT

from specdemo.models.load import load_pair
from specdemo.models.registry import find_pair
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Trace, summarize, to_json
from specdemo.ui.page import RECORDED


def race(question: str, settings: Settings) -> Trace:
    """A race of a pair that was just loaded: nothing of the question is in its prefix cache."""
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        for asked in ("Name three colours of the rainbow", question):  # the first is a warm-up
            *_, trace = session.race(asked, settings)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--question", default="Write a Python function that reverses a string")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    settings = Settings(max_new_tokens=options.tokens)
    traces = [race(options.question, settings) for _ in range(options.repeats)]
    traces.sort(key=lambda trace: summarize(trace).speedup)
    for trace in traces:
        print(f"{summarize(trace).speedup:.2f} times, identical: {trace.identical}")
    kept = traces[len(traces) // 2]
    RECORDED.write_text(to_json(kept) + "\n", encoding="utf-8")
    print(f"{RECORDED.relative_to(ROOT)}: {RECORDED.stat().st_size / 1e3:.0f} kB, {kept.machine}")


if __name__ == "__main__":
    main()
