"""How often a race is repeated, which of its runs count, and what the page says of them: no model,
no clock."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
from fakes import FakeSession
from hypothesis import given
from hypothesis import strategies as st

from specdemo.errors import BadInput
from specdemo.pairs.choice import ModelChoice
from specdemo.runs import race
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Repeat, Trace, from_json, to_json
from specdemo.ui import events, offers, wording
from specdemo.ui.service import Service, Visitor

*_, TRACE = FakeSession().race("question " * 9, Settings())
"""Twice as fast: 8 tokens in 0.08 s instead of 0.16 s."""

EMBEDDED = ModelChoice("embedded")

REPEATS = st.builds(
    Repeat,
    seconds=st.floats(0.01, 5),
    baseline_seconds=st.floats(0.01, 5),
    shared_with=st.sampled_from([0, 0, 0, 2]),
    compiling=st.sampled_from([False, False, False, True]),
)


def raced(*repeats: Repeat, **changes) -> Trace:
    return dataclasses.replace(TRACE, repeats=tuple(repeats), **changes)


def alike(*speedups: float, seconds: float = 0.1) -> Trace:
    """Races of `seconds` with these speed-ups."""
    return raced(*(Repeat(seconds, seconds * one) for one in speedups))


@given(st.lists(REPEATS, max_size=30))
def test_a_race_is_repeated_until_its_seconds_or_its_agreement_suffice_and_never_for_long(repeats):
    trace = raced(*repeats)
    races, found = race.counted(trace), race.verdict(trace)
    counting = [one for one in repeats if not one.disturbed]
    assert len(races) == max(len(counting), 1)
    least, most = found.range
    assert least <= found.speedup <= most and found.races == len(races)
    long = all(sum(way) >= race.ENOUGH_SECONDS for way in zip(*races, strict=True))
    close = least >= 0.95 * found.speedup and most <= 1.05 * found.speedup
    stops = long or len(races) >= 3 and close or len(repeats) >= race.MOST_REPEATS
    assert race.enough(trace) == stops


@given(st.lists(REPEATS, max_size=8), st.integers(0, 8))
def test_a_run_that_had_company_changes_no_verdict(repeats, place):
    counting = [one for one in repeats if not one.disturbed] or [Repeat(1.0, 2.0)]
    company = Repeat(0.01, 5.0, shared_with=1)
    among = [*counting[:place], company, *counting[place:]]
    assert race.verdict(raced(*among)) == race.verdict(raced(*counting))


def test_long_runs_are_not_repeated_and_short_ones_until_three_agree():
    tokens = [dataclasses.replace(one, shown_at=60 * one.shown_at) for one in TRACE.baseline.tokens]
    rounds = [dataclasses.replace(one, shown_at=60 * one.shown_at) for one in TRACE.rounds]
    long = dataclasses.replace(TRACE.baseline, tokens=tuple(tokens))
    assert race.enough(raced(rounds=tuple(rounds), baseline=long))
    assert not race.enough(TRACE) and not race.enough(alike(1.4, 1.42))
    assert race.enough(alike(1.4, 1.42, 1.38)) and not race.enough(alike(1.4, 1.42, 1.2))
    assert race.enough(alike(1.4, 0.9, seconds=1.7))


def test_what_cannot_be_compared_is_not_repeated():
    assert race.enough(raced(identical=False)) and race.enough(raced(identical=None))
    assert race.enough(raced(rounds=TRACE.rounds[:1]))


def test_the_page_tells_the_median_its_range_and_the_races_that_do_not_count():
    words = wording.verdict(alike(1.43, 1.39, 1.48, 1.43))
    assert words["headline"] == "1.43 times faster"
    assert words["sentence"].startswith("1.39 to 1.48 in 4 races. 8 tokens in 0.1 s instead of ")
    slower = wording.verdict(alike(0.8, 0.5, 0.8))
    assert slower["headline"] == "1.25 times slower" and "1.25 to 2.00 in 3" in slower["sentence"]
    company = Repeat(0.1, 0.9, shared_with=2), Repeat(0.1, 0.9, compiling=True)
    words = wording.verdict(raced(Repeat(0.1, 0.15), *company))
    assert words["headline"] == "1.50 times faster"
    said = "2 races not counted: meanwhile models were loaded or compiled and the machine was "
    assert words["reason"] == said + "shared with 2 other requests."
    words = wording.verdict(raced(shared_with=1))
    assert (words["tone"], words["headline"]) == ("even", "Not counted: 2.00 times faster")
    assert wording.verdict(TRACE, again=True)["headline"] == "2.00 times faster, so far"


def test_repeats_travel_with_a_saved_run_and_old_runs_open_without():
    trace = alike(1.4, 1.5)
    assert from_json(to_json(trace)) == trace
    data = json.loads(to_json(trace))
    assert data["schema"] == 1
    for name in ("repeats", "compiling"):
        del data[name]
    assert from_json(json.dumps(data)) == dataclasses.replace(trace, repeats=())
    data["repeats"] = [{"seconds": 0, "baseline_seconds": 1.0}]
    with pytest.raises(BadInput, match="repeats.0.seconds"):
        from_json(json.dumps(data))


# The page


def envelopes(session: FakeSession, stop_at: str = "") -> list[dict]:
    """What the page is sent for a race, which is stopped once the phase `stop_at` was sent."""
    service = Service(EMBEDDED, lambda pair, report: session)
    service.start()
    running, offer, sent = events.Running(), offers.Offer(EMBEDDED, shared=False), []
    given = {**offer.defaults, **dataclasses.asdict(Settings(draft_tokens=2)), "question": "a b c"}
    for text in events.run(service, running, offer, Visitor("tab"), given):
        sent.append(json.loads(text))
        if sent[-1]["phase"] == stop_at:
            running.stop("tab")
    return sent


def test_a_repeated_race_is_told_once_as_streamed_and_once_with_its_repeats(monkeypatch):
    monkeypatch.setattr(Service, "update_seconds", 0.0)
    session = FakeSession()
    session.repeats = [Repeat(1.0, 1.5), Repeat(1.0, 1.6)]
    *_, again, done = envelopes(session)
    assert again["phase"] == "again" and "trace" not in again
    assert again["verdict"]["headline"] == "2.00 times faster, so far"
    assert done["phase"] == "done" and len(done["trace"]["repeats"]) == 2
    assert done["verdict"]["headline"] == "1.55 times faster"


def test_stopping_while_a_race_is_repeated_keeps_its_verdict(monkeypatch):
    monkeypatch.setattr(Service, "update_seconds", 0.0)
    session = FakeSession()
    session.repeats = [Repeat(1.0, 1.5)]
    *_, last = envelopes(session, stop_at="again")
    assert last["phase"] == "done" and last["trace"]["repeats"] == []
    assert last["verdict"]["headline"] == "2.00 times faster"


# The session


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(race, "MOST_REPEATS", 2)


def repeated(session: Session, loading=lambda: False, stop=None, tokens: int = 5) -> list[Trace]:
    asked = {"repeat": 60.0, "loading": loading, "stop": stop}
    race = session.race("one two three", Settings(max_new_tokens=tokens), **asked)
    return [event for event in race if isinstance(event, Trace)]


def test_a_session_repeats_a_short_race_with_the_same_tokens_until_it_is_enough(session, few):
    first, *_, last = repeated(session)
    assert not first.repeats and last.identical and len(last.repeats) == 2
    assert all(one.seconds > 0 and not one.disturbed for one in last.repeats)


def test_a_session_repeats_nothing_while_models_are_loaded_or_after_a_stop(session, few):
    [only] = repeated(session, loading=lambda: True)
    assert only.compiling and race.verdict(only) is None
    stop = threading.Event()
    traces = []
    asked = {"repeat": 60.0, "stop": stop}
    for event in session.race("one two three", Settings(max_new_tokens=5), **asked):
        if isinstance(event, Trace):
            traces.append(event)
            stop.set()
    assert len(traces) == 1 and traces[0].identical


def test_repeated_runs_do_not_learn_the_question(session, few):
    shared = session._engine.target("exact").policy.acceptance
    asked = {"repeat": 60.0}
    seen = []
    for event in session.race("one two three", Settings(max_new_tokens=9), **asked):
        if isinstance(event, Trace):
            seen.append({name: list(one.counts) for name, one in shared.items()})
    assert len(seen) > 1 and all(one == seen[0] for one in seen)
