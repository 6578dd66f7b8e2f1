"""How often a race is repeated, which of its runs count, and what the page says of them: no model,
no clock."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
from fakes import FakeSession, at_pace
from hypothesis import given
from hypothesis import strategies as st

from specdemo.errors import BadInput
from specdemo.pairs.registry import ModelChoice
from specdemo.runs import race
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, from_json, summarize, to_json
from specdemo.ui import events, offers, wording
from specdemo.ui.service import Service, Visitor

*_, TRACE = FakeSession().race("question " * 9, Settings())
"""Twice as fast: 8 tokens in 0.08 s instead of 0.16 s."""

EMBEDDED = ModelChoice("embedded")


def timed(seconds: float, baseline_seconds: float, **changes) -> Trace:
    """A race with the same tokens and other seconds of decoding."""
    return dataclasses.replace(at_pace(TRACE, seconds, baseline_seconds), **changes)


RACES = st.lists(
    st.builds(
        timed,
        st.floats(0.01, 5),
        st.floats(0.01, 5),
        shared_with=st.sampled_from([0, 0, 0, 2]),
        compiling=st.sampled_from([False, False, False, True]),
        watched=st.just(False),
    ),
    max_size=26,
)


def raced(*seconds: tuple[float, float], **changes) -> Trace:
    """The watched race, and others of these seconds, as the one on show."""
    others = [timed(*both, watched=False) for both in seconds]
    return race.on_show([dataclasses.replace(TRACE, **changes), *others])


def alike(*speedups: float, seconds: float = 0.1) -> Trace:
    """Races of `seconds` with these speed-ups."""
    return raced(*((seconds, seconds * speedup) for speedup in speedups))


@given(RACES)
def test_the_race_on_show_is_the_median_one_of_those_that_count(races):
    trace = race.on_show([TRACE, *races])
    assert len(trace.repeats) == len(races)
    counting = [other for other in races if not other.disturbed] or [TRACE]
    speedups = sorted(summarize(other).speedup for other in counting)
    result = race.verdict(trace)
    assert result.speedup == speedups[(len(speedups) - 1) // 2] == summarize(trace).speedup
    assert result.range == pytest.approx((speedups[0], speedups[-1]))
    assert result.races == len(speedups)
    assert from_json(to_json(trace)) == trace


@given(RACES)
def test_a_race_is_repeated_until_its_seconds_or_its_agreement_suffice_and_never_for_long(races):
    trace = race.on_show([TRACE, *races])
    result = race.verdict(trace)
    counting = [other for other in races if not other.disturbed] or [TRACE]
    figures = list(map(summarize, counting))
    least, most = result.range
    seconds = sum(summary.decode_seconds for summary in figures)
    baseline_seconds = sum(summary.baseline_decode_seconds for summary in figures)
    long = min(seconds, baseline_seconds) >= race.ENOUGH_SECONDS
    close = least >= 0.95 * result.speedup and most <= 1.05 * result.speedup
    stops = long or len(figures) >= 3 and close or len(races) >= race.MOST_REPEATS
    assert race.enough(trace) == stops


def test_where_no_race_counts_the_watched_one_is_on_show_without_a_verdict():
    company = timed(0.1, 0.9, shared_with=1, watched=False)
    disturbed = dataclasses.replace(TRACE, compiling=True)
    trace = race.on_show([disturbed, company])
    assert trace.watched and race.verdict(trace) is None and not race.enough(trace)
    assert race.verdict(race.on_show([TRACE, company])).speedup == pytest.approx(2.0)


def test_long_runs_are_not_repeated_and_short_ones_until_three_agree():
    assert race.enough(timed(4.8, 9.6))
    assert not race.enough(TRACE) and not race.enough(alike(1.4, 1.42))
    assert race.enough(alike(1.4, 1.42, 1.38)) and not race.enough(alike(1.4, 1.42, 1.2))
    assert race.enough(alike(1.4, 0.9, seconds=1.7))


def test_what_cannot_be_compared_is_not_repeated():
    for unequal in ({"identical": False}, {"identical": None}, {"rounds": TRACE.rounds[:1]}):
        assert race.enough(dataclasses.replace(TRACE, **unequal))


@pytest.mark.parametrize(
    ("speedups", "headline", "tone", "ends"),
    [
        (
            [1.43, 1.39, 1.48, 1.43],
            "1.43 times faster",
            "faster",
            "1.39 to 1.48 times as fast in 4",
        ),
        ([0.8, 0.5, 0.8], "1.25 times slower", "slower", "0.50 to 0.80 times as fast in 3 races"),
        ([0.81, 1.24, 1.67], "No clear difference", "unclear", "0.81 to 1.67 times as fast in 3"),
        ([1.02], "No clear difference", "unclear", "in 0.10 s instead of 0.10 s"),
        ([1.01, 1.02], "1.01 times faster", "faster", "1.01 to 1.02 times as fast in 2 races"),
    ],
)
def test_a_difference_is_claimed_where_the_whole_range_shows_it(speedups, headline, tone, ends):
    words = wording.verdict(alike(*speedups))
    assert (words["headline"], words["tone"]) == (headline, tone)
    assert ends in words["sentence"]
    [shown, watched, *others] = words["races"]
    assert shown["counted"] and all(other["counted"] for other in others)
    assert not watched["counted"] and "watched" in watched["why"]
    assert f"{shown['speedup']:.2f}" == f"{sorted(speedups)[(len(speedups) - 1) // 2]:.2f}"


def test_the_sentence_and_the_headline_are_of_the_same_race():
    words = wording.verdict(raced((0.111, 0.202), (0.2, 0.32), (0.4, 0.5)))
    assert words["headline"] == "1.60 times faster"
    assert words["sentence"].startswith("9 tokens in 0.20 s instead of 0.32 s, 0.12 s saved; 1.25")


def test_a_verdict_so_far_says_so():
    assert wording.verdict(TRACE, again=True)["headline"] == "2.00 times faster, so far"


def test_races_travel_with_a_saved_run_and_old_runs_open_with_what_was_watched():
    trace = alike(1.4, 1.5)
    assert from_json(to_json(trace)) == trace
    data = json.loads(to_json(trace))
    assert data["schema"] == 1
    for repeat in data["repeats"]:
        for name in ("times", "tokens", "baseline_times"):
            del repeat[name]
    assert race.verdict(from_json(json.dumps(data))) == race.verdict(trace)
    old = json.loads(to_json(TRACE))
    del old["watched"], old["compiling"]
    old["repeats"] = [{"seconds": 1.0, "baseline_seconds": 1.5}]
    assert from_json(json.dumps(old)) == TRACE
    old["repeats"] = [{"seconds": 0, "baseline_seconds": 1.0}]
    with pytest.raises(BadInput, match="repeats.0.seconds"):
        from_json(json.dumps(old))


# The page


def envelopes(session: FakeSession, stop_at: str = "") -> list[dict]:
    """What the page is sent for a race, which is stopped once the phase `stop_at` was sent."""
    service = Service(EMBEDDED, lambda pair, report: session)
    service.start()
    running, offer, sent = events.Running(), offers.Offer(EMBEDDED, shared=False), []
    values = {**offer.defaults, **dataclasses.asdict(Settings(draft_tokens=2)), "question": "a b c"}
    for text in events.messages(events.race, service, running, offer, Visitor("tab"), values):
        sent.append(json.loads(text))
        if sent[-1]["phase"] == stop_at:
            running.stop("tab")
    return sent


def test_a_repeated_race_is_told_once_as_streamed_and_once_with_its_repeats(monkeypatch):
    monkeypatch.setattr("specdemo.ui.service.UPDATE_SECONDS", (0.0, 0.0))
    session = FakeSession()
    session.repeats = [(1.0, 1.5), (1.0, 1.6), (1.0, 1.7)]
    *_, again, done = envelopes(session)
    assert again["phase"] == "again" and "trace" not in again
    assert again["verdict"]["headline"] == "2.00 times faster, so far"
    assert done["phase"] == "done" and len(done["trace"]["repeats"]) == 3
    assert done["verdict"]["headline"] == "1.60 times faster"
    assert done["trace"]["summary"]["speedup"] == pytest.approx(1.6)


def test_stopping_while_a_race_is_repeated_keeps_its_verdict(monkeypatch):
    monkeypatch.setattr("specdemo.ui.service.UPDATE_SECONDS", (0.0, 0.0))
    session = FakeSession()
    session.repeats = [(1.0, 1.5)]
    *_, last = envelopes(session, stop_at="again")
    assert last["phase"] == "done" and last["trace"]["repeats"] == []
    assert last["verdict"]["headline"] == "2.00 times faster"


# The session


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(race, "MOST_REPEATS", 2)


def repeated(session: Session, loading=lambda: False, stop=None, tokens: int = 5) -> list[Trace]:
    options = {"repeat": 60.0, "loading": loading, "stop": stop}
    race = session.race("one two three", Settings(max_new_tokens=tokens), **options)
    return [event for event in race if isinstance(event, Trace)]


def test_a_session_repeats_a_short_race_with_the_same_tokens_until_it_is_enough(session, few):
    first, *_, last = repeated(session)
    assert not first.repeats and last.identical and len(last.repeats) == 2
    assert [repeat.watched for repeat in last.repeats].count(True) == 1 and not last.watched
    assert last.text == first.text and last.baseline.cpu_seconds > 0
    for repeat in last.repeats:
        assert repeat.seconds > 0 and not repeat.disturbed
        assert repeat.times[-1] == repeat.seconds
        assert repeat.baseline_times[-1] == repeat.baseline_seconds
        assert repeat.tokens[-1] == len(repeat.baseline_times) == len(last.tokens)


def test_both_runs_of_a_race_and_its_repeats_decode_the_same_token_ids(session, few):
    *_, trace = session.race((5, 6, 7, 8), Settings(max_new_tokens=5), repeat=60.0)
    assert trace.identical and len(trace.repeats) == 2
    assert trace.prompt_tokens == 4
    assert trace.instruction == session.loaded.tokenizer.decode((5, 6, 7, 8))


def test_a_session_repeats_nothing_while_models_are_loaded_or_after_a_stop(session, few):
    [only] = repeated(session, loading=lambda: True)
    assert only.compiling and race.verdict(only) is None
    stop = threading.Event()
    traces = []
    options = {"repeat": 60.0, "stop": stop}
    for event in session.race("one two three", Settings(max_new_tokens=5), **options):
        if isinstance(event, Trace):
            traces.append(event)
            stop.set()
    assert len(traces) == 1 and traces[0].identical


def test_repeated_runs_do_not_learn_the_question(session, few):
    shared = session._engine.target("exact").policy.acceptance
    options = {"repeat": 60.0}
    seen = []
    for event in session.race("one two three", Settings(max_new_tokens=9), **options):
        if isinstance(event, Trace):
            seen.append({name: list(rates.counts) for name, rates in shared.items()})
    assert len(seen) > 1 and all(rates == seen[0] for rates in seen)
