"""How many tokens are drafted, on simulated models with made-up costs: it must pay where it can
and never lose."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import toy

from specdemo.engine import decode
from specdemo.engine.messages import Logits, Prompt, Reply, Round
from specdemo.engine.policy import Acceptance, CostModel, Policy

VOCABULARY = 64
# Flat to four tokens, then a jump.
STEPPED = {1: 1.0, 2: 1.05, 3: 1.1, 4: 1.15, 5: 1.5, 8: 1.8, 16: 2.4}
LINEAR = {1: 1.0, 16: 5.0}


def rows_of(tokens: np.ndarray, chances) -> np.ndarray:
    """Logits that give each of the tokens its chance, float32 [tokens, VOCABULARY]."""
    chances = np.broadcast_to(chances, len(tokens))
    rows = np.repeat(np.log((1 - chances[:, None]) / (VOCABULARY - 1)), VOCABULARY, axis=1)
    rows[np.arange(len(tokens)), tokens] = np.log(chances)
    return rows.astype(np.float32)


class Simulation:
    """A target whose text looks random, a draft that is right with a given chance, and a clock
    that only they move."""

    def __init__(self, *, acceptance, verify, draft_step, informative=True):
        rng = np.random.default_rng(0)
        self.text = rng.integers(1, VOCABULARY, 3000).tolist()
        self.right = rng.random(3000) < acceptance
        # What the draft believes: more when it is right, if its confidence means anything.
        self.belief = np.where(
            self.right & informative, rng.uniform(0.5, 1, 3000), rng.uniform(0.2, 0.9, 3000)
        )
        self.verify = verify
        self.draft = {n: draft_step * (1 + 0.05 * (n - 1)) for n in range(1, 17)}

    def reply(self, request) -> Reply:
        run, costs = request.run, self.costs[request.model]
        start, count = run.sequence.length, len(run.tokens)
        run.sequence.tokens.extend(run.tokens)
        rows = self.rows[request.model][start + count - run.rows + 1 : start + count + 1]
        if request.model == "target":
            count = costs.choose(count)
        seconds = float(self.seconds[request.model][count])
        self.clock += seconds
        costs.record(count, seconds)
        return Reply(Logits(rows.copy(), np.zeros(len(rows))) if run.rows else None, seconds, count)

    def run(self, fixed=None, tokens=600, lookup=False) -> tuple[float, list[Round]]:
        """Seconds relative to autoregressive decoding, and the rounds."""
        model = toy.ToyModel()
        model.costs = known_costs(self.draft)
        self.costs = {"target": known_costs(self.verify), "draft": model.costs}
        text = np.array(self.text)
        drafted = (text + 1 - self.right) % VOCABULARY
        self.rows = {"target": rows_of(text, 0.99), "draft": rows_of(drafted, self.belief)}
        tables = {"target": self.verify, "draft": self.draft}
        self.seconds = {
            name: np.interp(range(len(text)), list(table), list(table.values()))
            for name, table in tables.items()
        }
        policy = Policy(fixed=fixed, costs=self.costs["target"])
        prompt, name = tuple(self.text[:8]), "auto" if lookup else "model"
        decoding = decode.decode(
            Prompt(prompt, toy.logits_of(self.rows["target"][8:9])),
            target=toy.sequence(prompt),
            drafter=toy.drafter(name, policy, model=model),
            policy=policy,
            sampling=toy.GREEDY,
            limits=decode.Limits(tokens, 3000),
        )
        self.clock, rounds, reply = 0.0, [], None
        with suppress(StopIteration):
            while True:
                event = decoding.send(reply)
                is_round = isinstance(event, Round)
                rounds += [event] if is_round else []
                reply = None if is_round else self.reply(event)
        assert toy.answer_ids(rounds) == tuple(self.text[8 : 8 + tokens])
        return self.clock / (self.verify[1] * (tokens - 1)), rounds


def known_costs(figures=STEPPED, change=0.0, attention=0.0) -> CostModel:
    costs = CostModel()
    costs.learn(figures, change, attention)
    return costs


each_verify = pytest.mark.parametrize("verify", [STEPPED, LINEAR], ids=["stepped", "linear"])


@each_verify
@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("draft_step", [0.05, 0.3, 1.0])
def test_a_useless_draft_costs_at_most_three_percent(verify, informative, draft_step):
    options = {"verify": verify, "draft_step": draft_step, "informative": informative}
    assert Simulation(acceptance=0.0, **options).run()[0] < 1.03


@each_verify
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
    simulation = Simulation(acceptance=0.6, verify=LINEAR, draft_step=0.1)
    best = min(simulation.run(fixed=length)[0] for length in range(1, 9))
    assert simulation.run()[0] < best * 1.01


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
    drafted = [token for round_ in rounds for token in round_.drafted]
    assert any(token.source == "lookup" and token.accepted for token in drafted)


def test_a_forward_costs_no_more_than_a_larger_one_that_it_could_be_padded_to():
    costs = known_costs({1: 1.0, 2: 1.1, 3: 1.9, 4: 1.8, 6: 1.3, 16: 3.0})
    assert costs.forward(3) == costs.forward(4) == pytest.approx(1.3)
    assert costs.choose(3) == 6


@pytest.mark.parametrize("sizes", [(1, 16), (1, 6, 16), (1, 3, 6, 12, 16), range(1, 17)])
def test_more_rows_than_were_measured_cost_more_whichever_sizes_were_measured(sizes):
    costs = known_costs({size: 2.0 + 0.1 * size for size in sizes})
    assert costs.forward(20) == pytest.approx(4.0)
    assert costs.forwards(others=16)[2] == pytest.approx(2.0 + 0.1 * 18)


def test_a_size_stays_until_padding_has_cost_as_much_as_a_change():
    costs = known_costs({1: 1.0, 2: 1.05, 4: 1.1, 8: 1.4}, change=0.2)

    def sizes(*tokens: int) -> list[int]:
        found = []
        for count in tokens:
            found.append(costs.choose(count))
            costs.record(found[-1], costs.seconds[found[-1]] + costs.change * (count != costs.last))
        return found

    assert sizes(4, 2, 3, 1, 4, 2) == [4] * 6
    assert sizes(8, 1) == [8, 1]
    assert sizes(4, *[1] * 9) == [4] * 4 + [1] * 6


def test_a_forward_costs_its_padding_or_its_change_of_size_and_the_baseline_neither():
    costs = known_costs(change=0.5)
    costs.record(4, STEPPED[4] + 0.5)
    rows = costs.forwards()
    assert rows[1] == rows[4] == pytest.approx(STEPPED[4])
    assert rows[5] == pytest.approx(STEPPED[5] + 0.5)
    assert costs.baseline() == pytest.approx(1.0)


@pytest.mark.parametrize(("two", "size"), [(9.2, 2), (11.0, 1)])
def test_single_tokens_run_in_the_faster_of_one_or_two_rows(two, size):
    costs = known_costs({1: 10.7, 2: two, 3: 11.5, 16: 20.0}, change=1.0)
    assert costs.baseline() == pytest.approx(min(10.7, two))
    for _ in range(9):
        assert costs.choose(1) == costs.single_token_size == size
        costs.record(size, costs.seconds[size])


def test_a_slower_machine_is_seen_at_every_size_from_the_one_that_is_used():
    costs = known_costs()
    for _ in range(100):
        costs.record(2, 3 * STEPPED[2])
    assert costs.forward(8) == pytest.approx(3 * STEPPED[8], rel=0.2)


def test_a_cost_that_a_faster_forward_disproves_is_not_kept():
    """22.8 ms were measured beside other work, 0.35 ms are true."""
    costs = CostModel()
    costs.learn({1: 0.0228}, lasting=True)
    costs.record(1, 0.00035)
    assert costs.forward(1) == pytest.approx(0.00035)
    assert not costs.lasting[0], "the next start measures again"
    costs.record(1, 0.0228)
    assert costs.forward(1) < 0.0005, "other work makes single forwards longer"


def test_what_a_change_of_size_costs_is_learnt_from_changes():
    seconds = {1: 1.0, 4: 1.1}
    costs = known_costs(seconds, change=0.1)
    for turn in range(1200):
        size = 1 if turn % 4 else 4
        costs.record(size, seconds[size] + 0.4 * (size != costs.last))
    assert costs.change * costs.level == pytest.approx(0.4, rel=0.2)
    assert costs.baseline() == pytest.approx(1.0, rel=0.1)


def test_each_row_costs_more_the_longer_its_context():
    costs = known_costs({1: 1.0, 4: 1.3, 16: 4.0}, attention=0.001)
    for _ in range(100):  # what the context explains says nothing about the machine's speed
        costs.record(4, 3.3, attended=4 * 500)
    assert costs.forwards(context=500)[4] == pytest.approx(3.3)
    assert costs.forwards()[4] == pytest.approx(1.3)
    policy = Policy(costs=costs)
    drafts = []
    for context in (0, 2000):
        drafts.append(policy.plan(context).best_length([0.6] * 4))
    assert drafts[0] > drafts[1]


def test_nothing_is_drafted_where_not_even_a_sure_token_would_pay():
    policy = Policy(costs=known_costs({n: 1.1 * n for n in range(1, 17)}))
    assert policy.plan().best_length([1.0] * 15) == 0


def test_a_draft_is_as_long_as_maximises_tokens_a_second():
    policy = Policy(costs=known_costs({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 3.0, 8: 4.0, 16: 8.0}))
    assert policy.plan().best_length([0.9] * 15) == 3
    assert policy.plan().best_length([0.9, 0.01, 0.9]) == 1
    assert policy.plan().best_length([0.05]) == 0


def test_in_a_shared_forward_where_every_row_costs_only_good_guesses_are_drafted():
    policy = Policy(costs=known_costs({1: 1.0, 2: 1.05, 4: 1.2, 8: 2.4, 16: 4.6}))
    assert policy.plan().best_length([0.4] * 3) > 0, "alone, four rows cost little more than one"
    policy.others = 7
    assert policy.plan().best_length([0.4, 0.4, 0.4]) == 0
    assert policy.plan().best_length([0.98, 0.98]) == 2


def test_a_source_that_is_not_asked_seems_less_and_less_certain():
    policy = Policy()
    rate = policy.accepted("model").total
    for _ in range(100):
        rate.record(0.2)
    share, before = rate.value, rate.upper_bound
    for _ in range(5000):
        policy.record_round(0.1, 1)
    assert rate.value == pytest.approx(share)
    assert before < 0.3 < 0.4 < rate.upper_bound


def test_acceptance_rates_are_learnt_by_confidence():
    rates = Acceptance()
    for number in range(200):
        rates.record(0.95, number % 2 == 0)
        rates.record(0.15, False)
    assert rates(0.95) == pytest.approx(0.5, abs=0.1)
    assert rates(0.15) < 0.05


def test_a_confidence_that_is_no_number_counts_as_none():
    rates = Acceptance()
    rates.record(math.nan, False)
    assert rates(math.nan) == rates(0.0) < 0.1


def test_a_fair_chunk_takes_no_longer_than_one_without_context():
    """A row costs 0.25 s more than none, and 0.001 s for each token of its context."""
    costs = known_costs({1: 1.0, 8: 2.0, 16: 4.0}, attention=0.001)
    chunks = {context: costs.fair_chunk(21, context) for context in (0, 250, 750, 10_000)}
    assert chunks == {0: 21, 250: 10, 750: 5, 10_000: 2}
    assert CostModel().fair_chunk(21, 8000) == 21, "attention is not measured yet"
