"""Which races count, how often a race is repeated, and what the judge says of them: made-up races,
and races of a session of toy models on their clock."""

import json
import random
import threading
from dataclasses import replace
from itertools import count
from math import exp, log
from types import SimpleNamespace

import pytest
from helpers import at_pace, race_trace

from specdemo.engine.rounds import DraftToken
from specdemo.errors import BadInput
from specdemo.pairs.registry import ModelChoice
from specdemo.runs import race
from specdemo.runs.judge import PairedRuns, judge, median_interval, starved
from specdemo.runs.question import Question
from specdemo.runs.saved_run import from_json
from specdemo.runs.settings import Settings
from specdemo.runs.trace import COMPILING, Trace
from specdemo.server.page import events, wording
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import Service

TRACE = race_trace(*["question "] * 9)
"""Twice as fast: 8 tokens in 0.08 s instead of 0.16 s."""

# The judge

TRIALS = 1000


@pytest.mark.parametrize(
    ("values", "low", "high", "sure"),
    [
        ([1.2], 1.2, 1.2, 0.0),
        ([1.2, 1.1], 1.1, 1.2, 0.5),
        ([5, 1, 2, 4, 3], 1, 5, 0.9375),
        (range(6), 0, 5, 0.96875),
        (range(9), 1, 7, 0.9609375),
        (range(24), 6, 17, 0.9773),
        (range(50), 17, 32, 0.9672),
    ],
)
def test_the_interval_of_the_median_is_as_sure_as_so_many_pairs_can_be(values, low, high, sure):
    assert median_interval(list(values)) == (low, high, pytest.approx(sure, abs=1e-4))


def verdicts(speedup: float, noise: float, races: int) -> list[str]:
    """The results of TRIALS verdicts, each of so many races with this median. A tenth of the races
    is disturbed: one of its two runs takes up to twice as long."""
    chance = random.Random(races)

    def measured() -> PairedRuns:
        other = chance.choice((-1, 1)) * log(1 + chance.random()) * (chance.random() < 0.1)
        return PairedRuns(exp(log(speedup) + chance.gauss(0, noise) + other))

    return [judge(measured() for _ in range(races)).result for _ in range(TRIALS)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("races", [1, 2, 5, 6, 9, 24, 50])
def test_a_verdict_on_what_is_equal_is_false_in_one_of_twenty_cases_at_most(noise, races):
    false = TRIALS - verdicts(1.0, noise, races).count("undecided")
    assert false <= (0 if races < 6 else 0.05 * TRIALS + 3 * (0.05 * 0.95 * TRIALS) ** 0.5)


@pytest.mark.parametrize(
    ("races", "noise", "power"), [(6, 0.05, 0.75), (9, 0.1, 0.93), (24, 0.2, 0.96), (50, 0.3, 0.98)]
)
def test_races_that_are_a_third_faster_are_called_faster_and_never_slower(races, noise, power):
    for speedup, result in ((1.3, "faster"), (1 / 1.3, "slower")):
        results = verdicts(speedup, noise, races)
        assert results.count(result) >= power * TRIALS
        assert set(results) <= {result, "undecided"}


@pytest.mark.parametrize(
    ("speedups", "result", "sentence"),
    [
        ([], "undecided", "Not counted: it rained; at least 6 decide."),
        ([1.42], "undecided", "1.42x in this race; at least 6 decide. 3 not counted: it rained."),
        ([1.0], "undecided", "1.00x in this race"),
        ([0.9, 1.2], "undecided", "1 of 2 races were faster; 0.90 to 1.20 over 2 races (at least"),
        ([1.2] * 5, "undecided", "5 of 5 races were faster; 1.20 to 1.20 over 5 races (at least"),
        ([1.0, 1.26] * 4, "undecided", "4 of 8 races were faster"),
        ([1.004] * 6, "undecided", "0 of 6 races were faster; 1.00 to 1.00"),
        ([1.4, 1.3, 1.6] * 2, "faster", "1.40x: 1.30 to 1.60 over 6 races (97 % confidence). 3"),
        ([0.9, *[1.05] * 11], "faster", "1.05x: 1.05 to 1.05 over 12"),
        ([0.8, 0.5, 0.8] * 2, "slower", "0.80x: 0.50 to 0.80 over 6 races"),
    ],
)
def test_a_difference_is_claimed_where_the_medians_interval_shows_it(speedups, result, sentence):
    pairs = [PairedRuns(speedup) for speedup in speedups] + [PairedRuns(9.0, "it rained")] * 3
    verdict = judge(pairs)
    begin = "Undecided: " * ("races were" in sentence)
    assert verdict.result == result and verdict.sentence.startswith(begin + sentence)


@pytest.mark.parametrize(
    ("share", "taken"),
    [(0.8, ""), (0.79, "a quarter"), (0.49, "half"), (0.24, "three quarters"), (0.0, "most")],
)
def test_what_other_programs_take_is_told_as_a_fraction(share, taken):
    assert starved(share) == (taken and f"other programs take {taken} of this machine")


# Which races count


def raced(*seconds: tuple[float, float] | tuple[float, float, int]) -> Trace:
    """The watched race, and others of these seconds, as the one on show. A third item is the
    number of other requests beside a race."""
    others = [at_pace(TRACE, *both[:2], shared_with=sum(both[2:])) for both in seconds]
    return race.on_show([TRACE, *others])


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
        ([(9.0, 13.5), (9.1, 13.5)], 13.5 / 9.1, (13.5 / 9.1, 1.5), 2, True),  # it takes too long
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
    assert from_json(trace.to_json()) == trace


def test_where_no_race_counts_the_watched_one_is_on_show_without_a_verdict():
    baseline = replace(TRACE.baseline, share=0.24)
    starved_race = at_pace(TRACE, 9.0, 9.0, share=0.5)
    taken = "other programs take three quarters of this machine"
    for watched, other, why in (
        (replace(TRACE, compiling=True), at_pace(TRACE, 0.1, 0.9, shared_with=1), COMPILING),
        (replace(TRACE, baseline=baseline), starved_race, taken),
        (replace(TRACE, shared_with=3), starved_race, "3 other requests ran beside it"),
    ):
        trace = race.on_show([watched, other])
        assert trace.watched and not trace.verdict.races and not race.enough(trace)
        words = wording.verdict(trace)
        assert words["tone"] == "unclear" and words["headline"] == "about 2.0x"
        told = "busy machine" if why == taken else why
        assert words["qualifier"] == f"in this race; {told}, no verdict"
        assert words["races"][0]["why"] == why and not words["races"][0]["counted"]
    trace = race.on_show([TRACE, starved_race, at_pace(TRACE, 0.1, 0.15, share=0.81)])
    assert trace.speedup == pytest.approx(1.5) and trace.verdict.races == 1
    note = "1 race not counted: other programs took part of this machine."
    assert wording.verdict(trace)["notes"][-1] == note
    assert from_json(trace.to_json()) == trace


def test_the_race_on_show_gets_the_candidates_that_the_first_race_looked_for():
    token = DraftToken(7, 0.4, 0.1, False)
    watched = race_trace(*"abcdefghi")
    watched = replace(watched, rounds=[replace(r, candidates=(token,)) for r in watched.rounds])
    other = at_pace(race_trace(*"abcdefghi"), 0.1, 0.15)
    other.rounds[4].drafted[0].draft_probability = 0.4  # of a draft that began elsewhere
    shown = race.on_show([watched, other])
    assert [len(each.candidates) for each in shown.rounds] == [0, 0, 1, 0, 0, 0, 1, 0, 1]


def test_what_cannot_be_compared_is_not_repeated():
    for unequal in ({"identical": False}, {"identical": None}, {"rounds": TRACE.rounds[:1]}):
        assert race.enough(replace(TRACE, **unequal))


def test_the_page_words_the_race_on_show_and_lists_the_others():
    words = wording.verdict(raced((0.111, 0.202), (0.2, 0.32), (0.4, 0.5), *[(0.1, 0.161)] * 4))
    assert (words["headline"], words["tone"]) == ("1.61x", "faster")
    assert words["sentence"].startswith("9 tokens in 0.10 s instead of 0.16 s, 0.06 s saved; ")
    assert words["qualifier"].startswith("1.25 to ")
    [shown, watched, *others] = words["races"]
    assert f"{shown['speedup']:.2f}" == "1.61" and not shown["why"]
    assert not watched["counted"] and "showing it live" in watched["why"]
    assert [f"{other['speedup']:.2f}" for other in others if other["counted"]] == (
        "1.82 1.60 1.25 1.61 1.61 1.61".split()
    )


def test_races_travel_with_a_saved_run_and_old_runs_open_with_what_was_watched():
    trace = raced((0.1, 0.14), (0.1, 0.15))
    data = json.loads(trace.to_json())
    assert data["schema"] == 1
    for repeat in data["repeats"]:
        for name in ("times", "tokens", "baseline_times"):
            del repeat[name]
    assert from_json(json.dumps(data)).verdict == trace.verdict
    old = json.loads(TRACE.to_json())
    del old["watched"], old["compiling"]
    old["repeats"] = [{"seconds": 1.0, "baseline_seconds": 1.5}]
    assert from_json(json.dumps(old)) == TRACE
    old["repeats"] = [{"seconds": 0, "baseline_seconds": 1.0}]
    with pytest.raises(BadInput, match="repeats.0.seconds"):
        from_json(json.dumps(old))


@pytest.mark.parametrize("seconds", [1e-9, 1e-4, 1e4])
def test_a_race_that_was_saved_reads_back_however_much_its_runs_differ(seconds):
    trace = raced((0.1, 0.14), (0.1, seconds))
    assert from_json(trace.to_json()) == trace


# Races of a session


@pytest.mark.parametrize("stopped", [False, True])
def test_a_repeated_race_is_sent_once_as_streamed_and_once_with_repeats(toy, monkeypatch, stopped):
    """The five tokens after the first take three rounds with a draft token each: 0.033 s instead of
    0.05 s."""
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(events, "DRAWING_SECONDS", 0.0)
    monkeypatch.setattr(events, "REPEAT_SECONDS", 600.0)
    pair = ModelChoice("embedded")
    service = Service(pair, lambda pair, report: toy)
    stop, menu, sent = threading.Event(), ModelMenu(pair, shared=False), []
    values = {"pair": "embedded", "drafter": "model", "draft_tokens": 1, "question": "a b c"}

    for text in events.run(events.race, service, menu, values, stop):
        sent.append(json.loads(text))
        if stopped and sent[-1]["phase"] == "again":
            stop.set()
    done = sent[-1]
    again = next(one for one in sent if one["phase"] == "again")
    assert not again["trace"]["repeats"] and again["trace"]["identical"]
    assert again["verdict"]["headline"] == "1.52x" and "figure" in again
    assert done["phase"] == "done" and len(done["trace"]["repeats"]) == (0 if stopped else 24)
    assert done["verdict"]["headline"] == "1.52x"
    assert done["verdict"]["qualifier"].startswith("in this race") == stopped
    notes = [one["note"].rpartition(": ")[2] for one in sent if one["phase"] == "again"]
    told = ("1 race, 1", "2 races, 1", "3 races, 2")[: 1 if stopped else 3]
    assert notes[:3] == [f"{raced} counted (at least 6 decide)" for raced in told]
    assert done["trace"]["summary"]["speedup"] == pytest.approx(0.05 / 0.033)


def test_while_a_race_is_repeated_its_seconds_are_those_of_the_panes(monkeypatch):
    monkeypatch.setattr(events, "DRAWING_SECONDS", 0.0)
    traces = iter([raced((0.1, 0.14)), raced((0.2, 0.3), (0.2, 0.3), (0.2, 0.3))])
    session = SimpleNamespace(
        limits=SimpleNamespace(race_seconds=60.0),
        update_seconds=0.0,
        repeating=threading.Lock(),
        occupied=False,
        ask=lambda question: (trace for trace in traces),
    )
    sent = [*map(json.loads, events.race(session, Question("a b c", Settings())))]
    assert [one["phase"] for one in sent] == ["again", "again", "done"]
    first, repeated, done = (one["verdict"]["sentence"] for one in sent)
    assert repeated == first != done


@pytest.fixture
def races(toy, monkeypatch):
    """The traces of a race that is repeated twice, and the counts that all requests share after
    each; `after(trace)` is called for each."""
    monkeypatch.setattr(race, "MAX_REPEATS", 2)

    def run(prompt="one two", tokens=5, after=lambda trace: None, **options) -> list[Trace]:
        traces, shared = [], toy.engine.target("exact").policy.acceptance
        for event in toy.race(prompt, Settings(tokens), repeat=60.0, **options):
            if isinstance(event, Trace):
                traces.append(event)
                counts.append({name: list(rates.counts) for name, rates in shared.items()})
                after(event)
        return traces

    counts = run.counts = []
    return run


def test_a_session_repeats_a_short_race_with_its_tokens_until_it_is_enough(toy, races, monkeypatch):
    ways, submit = [], toy.submit

    def submitted(question, **options):
        ways.append(question.settings.drafter)
        return submit(question, **options)

    monkeypatch.setattr(toy, "submit", submitted)
    first, *_, last = races()
    assert ways == ["none", "none", "auto", "auto", "none"], "the ways take turns in being first"
    assert not first.repeats and last.identical and len(last.repeats) == 2
    assert [repeat.watched for repeat in last.repeats].count(True) == 1 and not last.watched
    assert last.text == first.text == "one t" and last.baseline.cpu_seconds > 0
    for repeat in last.repeats:
        assert repeat.seconds > 0 and not repeat.why
        assert repeat.times[-1] == repeat.seconds
        assert repeat.baseline_times[-1] == repeat.baseline_seconds == pytest.approx(0.04)
        assert repeat.tokens[-1] == len(repeat.baseline_times) == len(last.tokens)


def test_all_runs_of_a_race_decode_the_same_token_ids(toy, races):
    *_, trace = races((5, 6, 7, 8))
    assert trace.identical and len(trace.repeats) == 2
    assert trace.prompt_tokens == 4
    assert trace.instruction == toy.loaded.tokenizer.decode((5, 6, 7, 8))


def test_a_session_repeats_nothing_while_models_are_loaded_or_after_a_stop(races):
    for begin in (0, 3):  # before the answer, or at the end of the baseline
        calls = count()
        [only] = races(loading=lambda begin=begin, calls=calls: next(calls) >= begin)
        assert only.compiling and only.verdict.headline == f"Not counted: {COMPILING}"
    stop = threading.Event()
    [only] = races("one two three", after=lambda trace: stop.set(), stop=stop)
    assert only.identical


def test_a_repeated_race_that_differs_is_the_last(toy, races):
    differ = lambda trace: setattr(toy.target, "differs_at", 3)  # noqa: E731
    first, last = races("one two three", after=differ)
    assert (first.identical, last.identical, last.difference) == (True, False, 3)


def test_repeated_runs_do_not_learn_the_question(races):
    races("one two three", 9)
    assert len(races.counts) == 3 and races.counts[0]
    assert all(counts == races.counts[0] for counts in races.counts)
