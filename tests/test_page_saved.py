"""Saved runs from strangers: what no run can be is refused, reading one costs little, and the
scripts draw whatever is accepted."""

from __future__ import annotations

import dataclasses
import json
import random
import time

import pytest
from traces import at_pace, race_trace

from specdemo.errors import BadInput
from specdemo.runs.race import on_show
from specdemo.runs.trace import ForwardCosts, from_json, to_json
from specdemo.server.page import events, wording

TRACE = race_trace(*["one ", "two ", "three "] * 4)
COSTS = ForwardCosts((0.01,) * 16, 0.001)
RACES = [TRACE, at_pace(TRACE, 1.0, 1.5), at_pace(TRACE, 1.0, 1.6)]
SAVED = to_json(dataclasses.replace(on_show(RACES), costs=COSTS))


def changed(*path, value) -> str:
    """The saved run with another value at a path."""
    run = json.loads(SAVED)
    node = run
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return json.dumps(run)


RUN = json.loads(SAVED)
ROUND, DRAFT = RUN["rounds"][0], RUN["rounds"][1]["drafted"][0]
REJECTED = {**DRAFT, "accepted": False}
QUICK = [{**one, "shown_at": 0.01 + 1e-11 * at} for at, one in enumerate(RUN["rounds"])]
PLAIN = {**ROUND, "emitted": {"id": 1, "kind": "plain"}, "shown_at": 0.5}

IMPOSSIBLE = {
    "90,000 repeats": (["repeats"], [{"seconds": 1.0, "baseline_seconds": 1.5}] * 90_000),
    "more rounds than tokens": (["rounds"], [PLAIN] * 5000),
    "more tokens than an answer": (["rounds"], [{**PLAIN, "drafted": [DRAFT] * 60}] * 60),
    "a long draft": (["rounds", 1, "drafted"], [DRAFT] * 65),
    "a long token": (["rounds", 0, "emitted", "text"], "x" * 1001),
    "logprobs of more tokens": (["rounds", 0, "logprobs"], [{"token": -1.0}] * 2),
    "many logprobs": (["rounds", 0, "logprobs"], [{"token": -1.0, "top": [[1, -1.0]] * 21}]),
    "a first token later": (["rounds", 3], ROUND),
    "an accepted token after a rejected one": (["rounds", 2, "drafted"], [REJECTED, DRAFT]),
    "an unknown source": (["rounds", 1, "drafted", 0, "source"], "__proto__"),
    "an unknown kind": (["rounds", 0, "emitted", "kind"], "constructor"),
    "a negative id": (["rounds", 0, "emitted", "id"], -1),
    "a probability of 2": (["rounds", 0, "emitted", "target_probability"], 2.0),
    "time that goes back": (["rounds", 2, "shown_at"], 0.001),
    "baseline time that goes back": (["baseline", "tokens", 2, "shown_at"], 0.001),
    "answers that differ, called identical": (["baseline", "tokens", 2, "id"], 77),
    "negative seconds": (["rounds", 1, "draft_seconds"], -1.0),
    "endless seconds": (["prefill_seconds"], 1e12),
    "a million times faster": (["repeats", 0, "seconds"], 1e-7),
    "faster than any machine": (["rounds"], QUICK),
    "no costs": (["costs", "target"], []),
    "costs of nothing": (["costs", "target"], [0.0]),
    "negative costs": (["costs", "target"], [-1.0]),
    "infinite costs": (["costs", "target"], [1e308]),
    "costs of thirty years": (["costs", "target"], [1e9] * 16),
    "costs of very long drafts": (["costs", "target"], [0.01] * 100_000),
    "a negative count": (["shared_with"], -1),
    "a long machine": (["machine"], "x" * 10_000),
    "a long pair": (["pair", "name"], "x" * 10_000),
}


@pytest.mark.parametrize("problem", IMPOSSIBLE)
def test_what_no_run_can_be_is_refused_in_a_sentence(problem):
    path, value = IMPOSSIBLE[problem]
    with pytest.raises(BadInput, match="The file is not a trace") as refusal:
        from_json(changed(*path, value=value))
    assert len(str(refusal.value)) < 300


def largest_run() -> str:
    """A saved run of about the most bytes that the page takes; no two drafts are alike."""
    chance, run = random.Random(1), json.loads(SAVED)
    fields = {"id": 1, "draft_probability": None, "target_probability": None, "accepted": False}
    sources = ["model", "head", "lookup", "grammar", "ngrams"]
    for number in range(1600):
        drafted = [{**fields, "source": chance.choice(sources)} for _ in range(15)]
        shown_at = 2.0 + number / 100
        emitted = {"id": 1, "kind": "correction"}
        run["rounds"].append(
            {**ROUND, "drafted": drafted, "emitted": emitted, "shown_at": shown_at}
        )
    run["identical"] = False
    return json.dumps(run, separators=(",", ":"))


def test_reading_the_largest_run_takes_little_of_the_processor_and_its_curve_less():
    text = largest_run()
    assert 2_000_000 < len(text) < 2_500_000
    since = time.process_time()
    trace = from_json(text)
    events.opened(text)
    whole = time.process_time() - since
    since = time.process_time()
    assert len(wording.curve(trace)["by_rate"]) == 101
    assert time.process_time() - since < 1.5 and whole < 3, "seconds of the processor"
