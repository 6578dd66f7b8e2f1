"""How many tokens are drafted, on simulated models with made-up costs: it must pay where it can
and never lose."""

from __future__ import annotations

import numpy as np
import pytest
import toy

from specdemo.engine import decode
from specdemo.engine.drafters import make_drafter
from specdemo.engine.messages import Prompt, Reply
from specdemo.engine.policy import Acceptance, Costs, Policy
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Sampling

VOCABULARY = 64
PLAIN = 1.0
STEPPED = {
    1: 1.0,
    2: 1.05,
    3: 1.1,
    4: 1.15,
    5: 1.5,
    8: 1.8,
    16: 2.4,
}  # flat to four tokens, then a jump
LINEAR = {1: 1.0, 16: 5.0}


class Simulation:
    """A target whose text looks random, a draft that is right with a given chance, and a clock
    that only they move."""

    def __init__(self, *, acceptance, verify, draft_step, informative=True, seed=0):
        rng = np.random.default_rng(seed)
        self.text = rng.integers(1, VOCABULARY, 3000).tolist()
        self.right = rng.random(3000) < acceptance
        # What the draft believes: more when it is right, if its confidence means anything.
        self.belief = np.where(
            self.right & informative, rng.uniform(0.5, 1, 3000), rng.uniform(0.2, 0.9, 3000)
        )
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
                self._row(
                    self.text[at] if self.right[at] else (self.text[at] + 1) % VOCABULARY,
                    self.belief[at],
                )
                for at in positions
            ]
        self.clock += seconds
        return Reply(toy.logits_of(np.array(rows)) if rows else None, seconds, len(run.tokens))

    def _row(self, token: int, probability: float) -> np.ndarray:
        row = np.full(VOCABULARY, np.log((1 - probability) / (VOCABULARY - 1)), np.float32)
        row[token] = np.log(probability)
        return row

    def run(self, fixed=None, tokens=600, lookup=False) -> tuple[float, list[Round]]:
        policy = Policy(fixed=fixed)
        for size, seconds in zip(self.sizes, self.seconds, strict=True):
            policy.costs.saw_verify(size, seconds)
        policy.costs.saw_draft(self.draft_step)
        name = "auto" if lookup else "model"
        prompt = tuple(self.text[:8])
        self.drafter = make_drafter(name, policy, Sampling(), sequence=toy.sequence())
        decoding = decode.decode(
            Prompt(prompt, toy.logits_of(np.array([self._row(self.text[8], 0.9)]))),
            target=toy.sequence(prompt),
            drafter=self.drafter,
            policy=policy,
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
        relative, _ = Simulation(
            acceptance=0.0, verify=verify, draft_step=draft_step, informative=informative
        ).run()
        assert relative < 1.03


@pytest.mark.parametrize("verify", [STEPPED, LINEAR], ids=["stepped", "linear"])
@pytest.mark.parametrize("draft_step", [0.05, 0.4])
@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_adapting_is_about_as_good_as_the_best_fixed_length(verify, draft_step, acceptance):
    simulation = Simulation(
        acceptance=acceptance, verify=verify, draft_step=draft_step, informative=False
    )
    best = min(1.0, *(simulation.run(fixed=length)[0] for length in (1, 2, 3, 5, 8, 12)))
    adaptive, _ = simulation.run()
    assert adaptive < best * 1.05 + 0.01


def test_a_draft_that_knows_when_it_is_right_beats_every_fixed_length():
    simulation = Simulation(acceptance=0.6, verify=LINEAR, draft_step=0.1, informative=True)
    assert (
        simulation.run()[0] < min(simulation.run(fixed=length)[0] for length in range(1, 9)) * 1.01
    )


def test_a_draft_model_that_turns_good_is_noticed():
    simulation = Simulation(acceptance=0.9, verify=STEPPED, draft_step=0.02)
    simulation.right[:300] = False
    _, rounds = simulation.run(tokens=2900)
    late = [len(round_.drafted) for round_ in rounds[-60:]]
    assert np.mean(late) > 2


def test_a_repeating_text_is_looked_up_and_pays():
    simulation = Simulation(acceptance=0.0, verify=STEPPED, draft_step=0.3)
    simulation.text = (simulation.text[:40] * 80)[:3000]
    relative, rounds = simulation.run(lookup=True)
    assert relative < 0.5
    assert any(
        token.source == "lookup" and token.accepted for round_ in rounds for token in round_.drafted
    )


def known_costs(figures=STEPPED) -> Costs:
    costs = Costs()
    for size, seconds in figures.items():
        costs.saw_verify(size, seconds)
    return costs


def test_costs_are_interpolated_between_the_measured_sizes():
    costs = known_costs({1: 1.0, 3: 1.4, 8: 2.4, 16: 4.0})
    assert costs.verify(2) == pytest.approx(1.2) and costs.verify(12) == pytest.approx(3.2)
    assert costs.verify(20) == pytest.approx(4.0 + 4 * 0.2)


def test_a_forward_costs_no_more_than_a_larger_one_that_it_could_be_padded_to():
    costs = known_costs({1: 1.0, 2: 1.1, 3: 1.9, 4: 1.8, 6: 1.3, 16: 3.0})
    assert costs.verify(3) == costs.verify(4) == pytest.approx(1.3)


def test_a_slower_machine_is_seen_at_every_size_from_the_one_that_is_used():
    costs = known_costs()
    for _ in range(100):
        costs.saw_verify(2, 3 * STEPPED[2])
    assert costs.verify(8) == pytest.approx(3 * STEPPED[8], rel=0.2)


def test_each_row_costs_more_the_longer_its_context():
    costs = Costs()
    costs.learn({1: 1.0, 4: 1.3, 16: 4.0}, attention=0.001)
    for _ in range(100):  # what the context explains says nothing about the machine's speed
        costs.saw_verify(4, 3.3, attended=4 * 500)
    assert costs.verifications(context=500)[4] == pytest.approx(3.3)
    assert costs.verifications()[4] == pytest.approx(1.3)
    policy = Policy(costs=costs)
    drafts = []
    for context in (0, 2000):
        policy.begin_round(context)
        drafts.append(policy.best_length([0.6] * 4))
    assert drafts[0] > drafts[1]


def test_nothing_is_drafted_where_not_even_a_sure_token_would_pay():
    policy = Policy(costs=known_costs({1: 1.0, 2: 2.1, 16: 18.0}))
    policy.begin_round()
    assert policy.best_length([1.0] * 15) == 0


def test_a_draft_is_as_long_as_maximises_tokens_a_second():
    policy = Policy(costs=known_costs({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 3.0, 16: 8.0}))
    policy.begin_round()
    assert policy.best_length([0.9] * 15) == 3
    assert policy.best_length([0.9, 0.01, 0.9]) == 1
    assert policy.best_length([0.05]) == 0


def test_in_a_shared_forward_where_every_row_costs_only_good_guesses_are_drafted():
    policy = Policy(costs=known_costs({1: 1.0, 4: 1.2, 8: 2.4, 16: 4.6}))
    policy.begin_round()
    assert policy.best_length([0.4, 0.4, 0.4]) > 0  # alone, four rows cost little more than one
    policy.others = 7
    policy.begin_round()
    assert policy.best_length([0.4, 0.4, 0.4]) == 0
    assert policy.best_length([0.98, 0.98]) == 2


def test_acceptance_rates_are_learnt_by_confidence():
    rates = Acceptance()
    for number in range(200):
        rates.saw(0.95, number % 2 == 0)
        rates.saw(0.15, False)
    assert rates(0.95) == pytest.approx(0.5, abs=0.1)
    assert rates(0.15) < 0.05
