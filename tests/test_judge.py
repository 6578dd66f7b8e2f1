"""The judge of races and benchmarks, on made-up speed-ups."""

from __future__ import annotations

import random
from math import exp, log

import pytest

from specdemo.runs.judge import PairedRuns, judge, median_interval, starved

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

    def race() -> float:
        other = chance.choice((-1, 1)) * log(1 + chance.random()) * (chance.random() < 0.1)
        return exp(log(speedup) + chance.gauss(0, noise) + other)

    return [judge(PairedRuns(race()) for _ in range(races)).result for _ in range(TRIALS)]


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
        found = verdicts(speedup, noise, races)
        assert found.count(result) >= power * TRIALS
        assert set(found) <= {result, "undecided"}


@pytest.mark.parametrize(
    ("speedups", "sentence"),
    [
        ([], "Not counted: it rained (at least 6 decide)."),
        ([1.42], "1.42 times faster in this race (at least 6 decide). 3 not counted: it rained."),
        ([1.0], "As fast as without drafts in this race"),
        (
            [0.9, 1.2, 1.1, 0.8],
            "Undecided: 2 of 4 races were faster (0.80 to 1.20 times as fast in",
        ),
        (
            [1.2] * 5,
            "Undecided: 5 of 5 races were faster (1.20 to 1.20 times as fast in 5 races, at",
        ),
        ([0.8] * 6, "1.25 times slower (0.80 to 0.80 times as fast in 6 races, 97% sure). 3 not"),
    ],
)
def test_a_verdict_is_one_sentence(speedups, sentence):
    pairs = [PairedRuns(speedup) for speedup in speedups] + [PairedRuns(9.0, "it rained")] * 3
    assert judge(pairs).sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("share", "taken"),
    [
        (0.8, ""),
        (0.79, "a quarter"),
        (0.49, "half"),
        (0.24, "three quarters"),
        (0.0, "most"),
    ],
)
def test_what_other_programs_take_is_told_as_a_fraction(share, taken):
    assert starved(share) == (taken and f"other programs take {taken} of this machine")
