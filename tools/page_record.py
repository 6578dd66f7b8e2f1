"""Records the race that the page plays before the first question: specdemo/ui/static/recorded.json.

`python tools/page_record.py`, on a quiet machine. Runs the embedded pair five times and keeps the
run of median speed-up, as it was measured.
"""

from __future__ import annotations

from contextlib import closing

from page_measure import ROOT

from specdemo.models.load import load_pair
from specdemo.models.registry import find_pair
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Trace, summarize, to_json
from specdemo.ui.page import RECORDED

WARM_UP = "Name three colours of the rainbow"
QUESTION = "Write a Python function that reverses a string"


def race() -> Trace:
    """A race of a pair that was just loaded: nothing of the question is in its prefix cache."""
    with closing(Session(load_pair(find_pair("embedded")))) as session:
        for asked in (WARM_UP, QUESTION):
            *_, trace = session.race(asked, Settings(max_new_tokens=120))
    return trace


def main() -> None:
    traces = sorted((race() for _ in range(5)), key=lambda trace: summarize(trace).speedup)
    for trace in traces:
        print(f"{summarize(trace).speedup:.2f} times, identical: {trace.identical}")
    kept = traces[2]
    RECORDED.write_text(to_json(kept) + "\n", encoding="utf-8")
    print(f"{RECORDED.relative_to(ROOT)}: {RECORDED.stat().st_size / 1e3:.0f} kB, {kept.machine}")


if __name__ == "__main__":
    main()
