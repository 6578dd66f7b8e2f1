"""How many tokens are drafted, on simulated models with made-up costs: it must pay where it can and never lose."""

from __future__ import annotations

import numpy as np
import pytest
import toy

from specdemo.engine import decode
from specdemo.engine.drafters import AutoDrafter, Lookup, ModelDrafter, Reply
from specdemo.engine.policy import Calibration, Costs, Lookahead, expected_speedup, expected_tokens
from specdemo.engine.model import Logits
from specdemo.engine.sampling import Sampling
from specdemo.trace import Round

VOCABULARY = 64
PLAIN = 1.0
STEPPED = {1: 1.0, 2: 1.05, 3: 1.1, 4: 1.15, 5: 1.5, 8: 1.8, 16: 2.4}  # flat to four tokens, then a jump
LINEAR = {1: 1.0, 16: 5.0}


class Simulation:
    """A target whose text looks random, a draft that is right with a given chance, and a clock that only they move."""

    def __init__(self, *, acceptance, verify, draft_step, informative=True, seed=0):
        rng = np.random.default_rng(seed)
        self.text = rng.integers(1, VOCABULARY, 3000).tolist()
        self.right = rng.random(3000) < acceptance
        # What the draft believes: more when it is right, if its confidence means anything.
        self.belief = np.where(self.right & informative, rng.uniform(0.5, 1, 3000), rng.uniform(0.2, 0.9, 3000))
        self.sizes, self.seconds = list(verify), list(verify.values())
        self.draft_step = draft_step
        self.clock = 0.0
        self.draft_steps = 0

    def reply(self, request) -> Reply:
        run = request.run
        start = run.sequence.length
        run.sequence.tokens.extend(run.tokens)
        positions = range(start + len(run.tokens) - run.rows + 1, start + len(run.tokens) + 1)
        if request.model == "target":
            seconds = float(np.interp(len(run.tokens), self.sizes, self.seconds))
            rows = [self._row(self.text[at], 0.99) for at in positions]
        else:
            seconds = self.draft_step * (1 + 0.05 * (len(run.tokens) - 1))
            self.draft_steps += 1
            rows = [
                self._row(self.text[at] if self.right[at] else (self.text[at] + 1) % VOCABULARY, self.belief[at])
                for at in positions
            ]
        self.clock += seconds
        return Reply(Logits.of(np.array(rows)) if rows else None, seconds)

    def _row(self, token: int, probability: float) -> np.ndarray:
        row = np.full(VOCABULARY, np.log((1 - probability) / (VOCABULARY - 1)), np.float32)
        row[token] = np.log(probability)
        return row

    def run(self, fixed=None, tokens=600, lookup=False, draft=True) -> tuple[float, list[Round]]:
        lookahead = Lookahead(fixed=fixed)
        for size, seconds in zip(self.sizes, self.seconds, strict=True):
            lookahead.costs.saw_verify(size, seconds)
        lookahead.costs.saw_draft(self.draft_step)
        model = ModelDrafter(toy.sequence(), lookahead, Sampling())
        prompt = tuple(self.text[:8])
        decoding = decode.decode(
            decode.Prompt(prompt, Logits.of(np.array([self._row(self.text[8], 0.9)]))),
            target=toy.sequence(prompt),
            drafter=AutoDrafter([Lookup()], lookahead, model) if lookup else model if draft else None,
            lookahead=lookahead,
            sampling=Sampling(),
            limits=decode.Limits(tokens, 3000),
        )
        self.clock, rounds, reply = 0.0, [], None
        while True:
            try:
                event = decoding.send(reply)
            except StopIteration:
                break
            reply = None
            if isinstance(event, Round):
                rounds.append(event)
            else:
                reply = self.reply(event)
        assert toy.answer_ids(rounds) == tuple(self.text[8 : 8 + tokens])
        return self.clock / (PLAIN * (tokens - 1)), rounds


@pytest.mark.parametrize("verify", [STEPPED, LINEAR], ids=["stepped", "linear"])
@pytest.mark.parametrize("draft_step", [0.05, 0.3, 1.0])
def test_a_useless_draft_costs_at_most_three_percent(verify, draft_step):
    for informative in (True, False):
        relative, _ = Simulation(acceptance=0.0, verify=verify, draft_step=draft_step, informative=informative).run()
        assert relative < 1.03


@pytest.mark.parametrize("verify", [STEPPED, LINEAR], ids=["stepped", "linear"])
@pytest.mark.parametrize("draft_step", [0.05, 0.4])
@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_adapting_is_about_as_good_as_the_best_fixed_length(verify, draft_step, acceptance):
    simulation = Simulation(acceptance=acceptance, verify=verify, draft_step=draft_step, informative=False)
    best = min(1.0, *(simulation.run(fixed=length)[0] for length in (1, 2, 3, 5, 8, 12)))
    adaptive, _ = simulation.run()
    assert adaptive < best * 1.05 + 0.01


def test_a_draft_that_knows_when_it_is_right_beats_every_fixed_length():
    simulation = Simulation(acceptance=0.6, verify=LINEAR, draft_step=0.1, informative=True)
    assert simulation.run()[0] < min(simulation.run(fixed=length)[0] for length in range(1, 9)) * 1.01


def test_a_draft_that_turns_good_is_noticed():
    simulation = Simulation(acceptance=0.9, verify=STEPPED, draft_step=0.1)
    simulation.right[:300] = False
    _, rounds = simulation.run(tokens=900)
    late = [len(round_.drafted) for round_ in rounds[-60:]]
    assert np.mean(late) > 2


def test_a_repeating_text_is_looked_up_and_pays():
    simulation = Simulation(acceptance=0.0, verify=STEPPED, draft_step=0.3)
    simulation.text = (simulation.text[:40] * 80)[:3000]
    relative, rounds = simulation.run(lookup=True)
    assert relative < 0.5
    assert any(token.source == "lookup" and token.accepted for round_ in rounds for token in round_.drafted)


def test_a_fixed_length_is_kept():
    _, rounds = Simulation(acceptance=0.5, verify=LINEAR, draft_step=0.9).run(fixed=5)
    assert {len(round_.drafted) for round_ in rounds[1:-3]} == {5}


def test_costs_are_medians_interpolated_and_never_fall_with_size():
    costs = Costs()
    for size, seconds in [(1, 1.0), (1, 9.0), (1, 1.1), (4, 1.6), (8, 1.2)]:
        costs.saw_verify(size, seconds)
    assert costs.verify(1) == pytest.approx(1.1, rel=0.1)
    assert costs.verify(1) < costs.verify(2) < costs.verify(3) < costs.verify(4) == pytest.approx(1.6, rel=0.1)
    assert costs.verify(4) <= costs.verify(8) <= costs.verify(12)


def known_costs() -> Costs:
    costs = Costs()
    for size, seconds in STEPPED.items():
        costs.saw_verify(size, seconds)
    return costs


def test_a_slower_machine_is_seen_at_every_size_from_the_one_that_is_used():
    costs = known_costs()
    for _ in range(60):
        costs.saw_verify(2, 3 * STEPPED[2])
    assert costs.verify(8) == pytest.approx(3 * STEPPED[8], rel=0.05)


def test_noise_at_one_size_does_not_run_away_with_the_others():
    costs, rng = known_costs(), np.random.default_rng(0)
    for _ in range(2000):
        costs.saw_verify(1, 1 + rng.exponential(0.5))
    assert 0.3 < costs.verify(5) / costs.verify(1) / STEPPED[5] < 1.5


def test_a_cost_that_something_else_spoiled_is_tried_again():
    costs = Costs()
    for size, seconds in [(1, 1.0), (2, 1.1), (4, 30.0)]:
        costs.saw_verify(size, seconds)
    assert costs.verify(4) <= 2.2  # two verifications of two
    costs = known_costs()
    costs.saw_verify(16, 100.0)
    before = costs.verify(12)
    for _ in range(800):
        costs.saw_verify(2, STEPPED[2])
    assert costs.verify(12) < before / 2


def test_a_longer_context_costs_more_by_its_measured_share():
    costs = known_costs()
    costs.grew(1, 0.001)
    costs.grew(8, 0.002)
    assert costs.verify(1, 1000) == pytest.approx(2.0) and costs.verify(8, 500) == pytest.approx(3.6)
    costs.saw_verify(1, 2.0, 1000)
    assert costs.verify(1) == pytest.approx(1.0)


def test_sizes_that_nobody_uses_look_cheaper_but_never_by_more_than_half():
    costs = known_costs()
    one, four = costs.verify(1), costs.verify(4)
    for _ in range(5000):
        costs.saw_verify(8, STEPPED[8])
    assert costs.verify(1) == pytest.approx(one / 2) and four / 2 <= costs.verify(4) < four
    assert costs.verify(8) == pytest.approx(STEPPED[8])


def test_forwards_too_large_for_the_table_say_what_a_row_costs():
    costs = known_costs()
    before = costs.row()
    for _ in range(5):
        costs.saw_verify(32, 32.0)
    assert costs.row() == pytest.approx(1.0) and costs.row() > before
    assert costs.verify(20) == pytest.approx(costs.verify(16) + 4)


def test_whoever_takes_the_next_step_of_a_shared_forward_pays_all_of_it():
    lookahead = Lookahead()
    for size, seconds in [(1, 1.0), (8, 2.0), (9, 2.8), (16, 2.9)]:
        lookahead.costs.saw_verify(size, seconds)
    lookahead.others = 7
    assert lookahead.verify(2) == pytest.approx(2.8)
    assert lookahead.best_draft([0.9])[0] == 0


def test_nothing_is_guessed_where_not_even_a_sure_token_would_pay():
    lookahead = Lookahead()
    for size, seconds in [(1, 1.0), (2, 2.1), (16, 18.0)]:
        lookahead.costs.saw_verify(size, seconds)
    assert not lookahead.pays(0, lookahead.pace) and lookahead.best_draft([1.0] * 15)[0] == 0


def test_in_a_shared_forward_where_every_row_costs_only_good_guesses_are_drafted():
    lookahead = Lookahead()
    for size, seconds in [(1, 1.0), (4, 1.2), (8, 2.4), (16, 4.6), (32, 9.0)]:
        lookahead.costs.saw_verify(size, seconds)
    assert lookahead.best_draft([0.4, 0.4, 0.4])[0] > 0  # alone, four rows cost little more than one
    lookahead.others = 7
    assert lookahead.best_draft([0.4, 0.4, 0.4])[0] == 0
    assert lookahead.best_draft([0.98, 0.98])[0] == 2


def test_calibration_learns_what_confidence_is_worth():
    calibration = Calibration()
    for number in range(200):
        calibration.saw(0.95, number % 2 == 0)
        calibration.saw(0.15, False)
    assert calibration(0.95) == pytest.approx(0.5, abs=0.1)
    assert calibration(0.15) < 0.05


def test_expected_figures_are_leviathans():
    assert expected_tokens(0.8, 3) == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert expected_tokens(1.0, 4) == 5
    # Theorem 3.8 with cost coefficient c: (1 - a^(g+1)) / ((1 - a)(g c + 1))
    assert expected_speedup(0.7, 5, draft_step=0.1, verify=1.0, plain=1.0) == pytest.approx(
        (1 - 0.7**6) / (0.3 * (5 * 0.1 + 1))
    )
