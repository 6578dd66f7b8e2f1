"""How often a race is repeated, which of its runs count, and what the page says of them: no model,
no clock."""

from __future__ import annotations

import dataclasses
import json
import threading
from threading import Event

import pytest
from toy_session import ToySession
from traces import at_pace, race_trace

from specdemo.errors import BadInput
from specdemo.pairs.registry import ModelChoice
from specdemo.runs import race
from specdemo.runs.settings import Settings
from specdemo.runs.trace import COMPILING, Trace, from_json, to_json
from specdemo.server.page import events, wording
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import Service

TRACE = race_trace(*["question "] * 9)
"""Twice as fast: 8 tokens in 0.08 s instead of 0.16 s."""

EMBEDDED = ModelChoice("embedded")


def timed(seconds: float, baseline_seconds: float, **changes) -> Trace:
    """A race with the same tokens and other seconds of decoding."""
    return dataclasses.replace(at_pace(TRACE, seconds, baseline_seconds), **changes)


def raced(*seconds: tuple, **changes) -> Trace:
    """The watched race, and others of these seconds, as the one on show. A third item is the
    number of other requests beside a race."""
    others = [timed(*both[:2], shared_with=sum(both[2:])) for both in seconds]
    return race.on_show([dataclasses.replace(TRACE, **changes), *others])


def alike(*speedups: float, seconds: float = 0.1) -> Trace:
    """Races of `seconds` with these speed-ups."""
    return raced(*((seconds, seconds * speedup) for speedup in speedups))


SIX = [(0.6, 0.9), (0.6, 0.96), (0.6, 1.02), (0.6, 0.9), (0.6, 0.96), (0.6, 0.84)]


@pytest.mark.parametrize(
    ("seconds", "speedup", "interval", "races", "enough"),
    [
        ([], 2.0, (2.0, 2.0), 1, False),  # the watched race counts where no other does
        ([(0.1, 0.15)], 1.5, (1.5, 1.5), 1, False),
        ([(0.1, 0.17), (0.1, 0.15)], 1.5, (1.5, 1.7), 2, False),
        ([(0.1, 0.17), (0.1, 0.15), (0.1, 0.16)], 1.6, (1.5, 1.7), 3, False),
        (SIX, 1.5, (1.4, 1.7), 6, True),
        (SIX[:5], 1.6, (1.5, 1.7), 5, False),  # five cannot be sure
        ([(0.1, slow) for _, slow in SIX], 9.0, (8.4, 10.2), 6, False),  # 0.6 s of either way
        ([(9.0, 13.5)], 1.5, (1.5, 1.5), 1, False),
        ([(9.0, 13.5), (9.1, 13.5)], 13.5 / 9.1, (13.5 / 9.1, 1.5), 2, True),  # nobody waits longer
        ([(0.1, 0.9, 1), (0.1, 0.15)], 1.5, (1.5, 1.5), 1, False),
        ([(0.1, 0.9, 1)], 2.0, (2.0, 2.0), 1, False),
        ([(9.0, 1.0, 1), (9.0, 1.0, 1)], 2.0, (2.0, 2.0), 1, False),
        ([(0.1, 0.15)] * 24, 1.5, (1.5, 1.5), 24, True),
        ([(0.1, 0.15)] * 23, 1.5, (1.5, 1.5), 23, False),
    ],
)
def test_the_median_race_is_on_show_and_races_are_repeated_until_they_suffice(
    seconds, speedup, interval, races, enough
):
    trace = raced(*seconds)
    result = trace.verdict
    assert result.speedup == pytest.approx(speedup) == pytest.approx(trace.speedup)
    assert result.interval == pytest.approx(interval)
    assert (result.races, race.enough(trace)) == (races, enough)
    assert len(trace.repeats) == len(seconds)
    assert from_json(to_json(trace)) == trace


def test_a_race_that_other_programs_starved_is_repeated_and_does_not_count():
    starved = dataclasses.replace(timed(9.0, 9.0), share=0.5)
    starved_baseline = dataclasses.replace(TRACE.baseline, share=0.24)
    trace = race.on_show([dataclasses.replace(TRACE, baseline=starved_baseline), starved])
    words = wording.verdict(trace)
    assert words["tone"] == "unclear" and not race.enough(trace)
    most = "other programs take three quarters of this machine"
    assert words["headline"] == f"Not counted: {most}" == trace.verdict.headline
    trace = race.on_show([TRACE, starved, timed(0.1, 0.15, share=0.81)])
    assert trace.speedup == pytest.approx(1.5) == pytest.approx(trace.verdict.speedup)
    assert trace.verdict.races == 1
    told = "1 race not counted: other programs take half of this machine."
    assert wording.verdict(trace)["notes"][-1] == told
    assert from_json(to_json(trace)) == trace


def test_where_no_race_counts_the_watched_one_is_on_show_without_a_verdict():
    company = timed(0.1, 0.9, shared_with=1)
    disturbed = dataclasses.replace(TRACE, compiling=True)
    trace = race.on_show([disturbed, company])
    assert trace.watched and not trace.verdict.races and not race.enough(trace)
    assert race.on_show([TRACE, company]).verdict.speedup == pytest.approx(2.0)


def test_what_cannot_be_compared_is_not_repeated():
    for unequal in ({"identical": False}, {"identical": None}, {"rounds": TRACE.rounds[:1]}):
        assert race.enough(dataclasses.replace(TRACE, **unequal))


@pytest.mark.parametrize(
    ("speedups", "headline", "tone", "ends"),
    [
        (
            [1.43, 1.39, 1.48, 1.43, 1.44, 1.42],
            "1.43 times faster",
            "faster",
            "1.39 to 1.48 in 6 races, 97% sure",
        ),
        ([0.8, 0.5, 0.8] * 2, "1.25 times slower", "slower", "0.50 to 0.80 times as fast in 6"),
        ([0.9, *[1.05] * 11], "1.05 times faster", "faster", "1.05 to 1.05 in 12"),
        ([1.0, 1.26] * 4, "Undecided: 4 of 8 races were faster", "unclear", "99% sure"),
        ([0.81, 1.24, 1.67], "Undecided: 2 of 3 races were faster", "unclear", "at least 6 decide"),
        ([1.02], "1.02 times faster in this race", "unclear", "at least 6 decide"),
        ([1.004] * 6, "Undecided: 0 of 6 races were faster", "unclear", "1.00 to 1.00"),
    ],
)
def test_a_difference_is_claimed_where_the_interval_of_the_median_shows_it(
    speedups, headline, tone, ends
):
    words = wording.verdict(alike(*speedups))
    assert (words["headline"], words["tone"]) == (headline, tone)
    assert ends in words["sentence"]
    [shown, watched, *others] = words["races"]
    assert shown["counted"] and all(other["counted"] for other in others)
    assert not watched["counted"] and "showing it live" in watched["why"]
    assert f"{shown['speedup']:.2f}" == f"{sorted(speedups)[(len(speedups) - 1) // 2]:.2f}"


def test_the_sentence_and_the_headline_are_of_the_same_race():
    words = wording.verdict(raced((0.111, 0.202), (0.2, 0.32), (0.4, 0.5), *[(0.1, 0.161)] * 4))
    assert words["headline"] == "1.61 times faster"
    assert words["sentence"].startswith("9 tokens in 0.10 s instead of 0.16 s, 0.06 s saved; 1.25")


def test_races_travel_with_a_saved_run_and_old_runs_open_with_what_was_watched():
    trace = alike(1.4, 1.5)
    assert from_json(to_json(trace)) == trace
    data = json.loads(to_json(trace))
    assert data["schema"] == 1
    for repeat in data["repeats"]:
        for name in ("times", "tokens", "baseline_times"):
            del repeat[name]
    assert from_json(json.dumps(data)).verdict == trace.verdict
    old = json.loads(to_json(TRACE))
    del old["watched"], old["compiling"]
    old["repeats"] = [{"seconds": 1.0, "baseline_seconds": 1.5}]
    assert from_json(json.dumps(old)) == TRACE
    old["repeats"] = [{"seconds": 0, "baseline_seconds": 1.0}]
    with pytest.raises(BadInput, match="repeats.0.seconds"):
        from_json(json.dumps(old))


# The page


def envelopes(toy: ToySession, stop_at: str = "") -> list[dict]:
    """What the page is sent for a race, which is stopped once the phase `stop_at` was sent."""
    service = Service(EMBEDDED, lambda pair, report: toy)
    service.start()
    stop, menu, sent = Event(), ModelMenu(EMBEDDED, shared=False), []
    settings = dataclasses.asdict(Settings(drafter="model", draft_tokens=1))
    values = {**menu.defaults, **settings, "question": "a b c"}
    for text in events.messages(events.race, service, menu, values, stop):
        sent.append(json.loads(text))
        if sent[-1]["phase"] == stop_at:
            stop.set()
    return sent


@pytest.mark.parametrize("stopped", [False, True])
def test_a_repeated_race_is_told_once_as_streamed_and_once_with_its_repeats(
    toy, monkeypatch, stopped
):
    """The five tokens after the first take three rounds with a draft token each: 0.033 s instead of
    0.05 s."""
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (0.0, 0.0))
    *_, again, done = envelopes(toy, "again" if stopped else "")
    assert again["phase"] == "again" and "trace" not in again
    assert again["verdict"]["headline"] == "1.52 times faster in this race"
    assert done["phase"] == "done" and len(done["trace"]["repeats"]) == (0 if stopped else 24)
    assert done["verdict"]["headline"] == "1.52 times faster" + " in this race" * stopped
    assert done["trace"]["summary"]["speedup"] == pytest.approx(0.05 / 0.033)


# The session


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(race, "MAX_REPEATS", 2)


def traces_of(toy: ToySession, prompt="one two", **options) -> list[Trace]:
    settings = Settings(max_new_tokens=5)
    raced = toy.race(prompt, settings, repeat=60.0, **options)
    return [event for event in raced if isinstance(event, Trace)]


def test_a_session_repeats_a_short_race_with_the_same_tokens_until_it_is_enough(toy, few):
    first, *_, last = traces_of(toy)
    assert not first.repeats and last.identical and len(last.repeats) == 2
    assert [repeat.watched for repeat in last.repeats].count(True) == 1 and not last.watched
    assert last.text == first.text == "one t" and last.baseline.cpu_seconds > 0
    for repeat in last.repeats:
        assert repeat.seconds > 0 and not repeat.why
        assert repeat.times[-1] == repeat.seconds
        assert repeat.baseline_times[-1] == repeat.baseline_seconds == pytest.approx(0.04)
        assert repeat.tokens[-1] == len(repeat.baseline_times) == len(last.tokens)


def test_both_runs_of_a_race_and_its_repeats_decode_the_same_token_ids(toy, few):
    *_, trace = traces_of(toy, (5, 6, 7, 8))
    assert trace.identical and len(trace.repeats) == 2
    assert trace.prompt_tokens == 4
    assert trace.instruction == toy.loaded.tokenizer.decode((5, 6, 7, 8))


def test_a_session_repeats_nothing_while_models_are_loaded_or_after_a_stop(toy, few):
    [only] = traces_of(toy, loading=lambda: True)
    assert only.compiling and only.verdict.headline == f"Not counted: {COMPILING}"
    stop, traces = threading.Event(), []
    for event in toy.race("one two three", Settings(max_new_tokens=5), repeat=60.0, stop=stop):
        if isinstance(event, Trace):
            traces.append(event)
            stop.set()
    assert len(traces) == 1 and traces[0].identical


def test_repeated_runs_do_not_learn_the_question(toy, few):
    shared = toy.engine.target("exact").policy.acceptance
    seen = []
    for event in toy.race("one two three", Settings(max_new_tokens=9), repeat=60.0):
        if isinstance(event, Trace):
            seen.append({name: list(rates.counts) for name, rates in shared.items()})
    assert len(seen) > 1 and seen[0] and all(rates == seen[0] for rates in seen)
