"""The audit tells a lossless decoder from a broken one, and its statistics are right."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import toy
from fakes import FakeSession
from test_bench import FakePeer

from specdemo.bench.audit import audit
from specdemo.bench.draws import (
    Draw,
    chi_square_tail,
    distance,
    enumerate_outcomes,
    expected_distance,
    p_value,
    peer_draw,
    sample_cell,
)
from specdemo.bench.prompts import read_prompts, spread
from specdemo.engine import decode
from specdemo.engine.decode import Limits
from specdemo.engine.drafters import Draft, make_drafter
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Sampling, distribution
from specdemo.errors import BadInput, RequestFailed
from specdemo.settings import Settings

PROMPTS = spread(read_prompts(), 3)
SAMPLED = Settings(temperature=1.0, drafter="model", draft_tokens=3, max_new_tokens=24)


def drawn(probabilities, size: int, seed: int) -> Counter:
    counts = np.random.default_rng(seed).multinomial(size, list(probabilities.values()))
    return Counter(dict(zip(probabilities, counts.tolist(), strict=True)))


def uneven(outcomes: int) -> dict[int, float]:
    return dict(enumerate(np.random.default_rng(0).dirichlet(np.ones(outcomes)).tolist()))


# Statistics


@pytest.mark.parametrize(
    ("statistic", "degrees", "chance"),
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (13.277, 4, 0.01), (24.996, 15, 0.05), (0.0, 7, 1.0)],
)
def test_the_chi_square_tail_is_that_of_the_tables(statistic, degrees, chance):
    assert chi_square_tail(statistic, degrees) == pytest.approx(chance, rel=1e-3)


def test_the_noise_floor_is_the_mean_distance_of_draws_from_the_distribution_itself():
    exact = uneven(16)
    distances = [distance(drawn(exact, 500, seed), exact) for seed in range(400)]
    assert expected_distance(exact, 500) == pytest.approx(np.mean(distances), rel=0.03)


def test_p_values_of_draws_from_the_distribution_are_uniform():
    exact = uneven(40)
    values = [p_value(drawn(exact, 400, seed), exact) for seed in range(300)]
    assert 0.42 < np.mean(values) < 0.58
    assert np.mean(np.array(values) < 0.1) < 0.17


# Decoders on toy tables of logits


TARGET, DRAFT_TABLE = (toy.random_table(np.random.default_rng(seed), 4) for seed in (1, 2))


def toy_sampler(instruction: str, settings: Settings, tokens: int) -> Draw:
    sampling = Sampling(1.0, seed=settings.seed, coupling=settings.coupling)
    policy = Policy(fixed=3)
    work = toy.decoding(
        TARGET,
        (0,),
        Limits(tokens + 3, 100),
        drafter=make_drafter("model", policy, sampling, sequence=toy.sequence()),
        policy=policy,
        sampling=sampling,
    )
    rounds, _ = toy.drive(work, {"target": TARGET, "draft": DRAFT_TABLE})
    return Draw(toy.answer_ids(rounds)[:tokens])


def toy_cell(coupling: str, draws: int = 600):
    def after(prefix):
        return distribution(TARGET[prefix[-1] if prefix else 0], Sampling(1.0))

    outcomes = enumerate_outcomes(after, 3, frozenset())
    exact = {("x", tokens): chance for tokens, chance in outcomes.items()}
    settings = dataclasses.replace(SAMPLED, coupling=coupling)
    return sample_cell(toy_sampler, exact, settings, draws, "toy")


def accept_everything(logits, draft, position, sampling, reach=0.0, verify=decode.verify):
    last = len(draft.tokens)
    true = verify(logits.part(last, last + 1), Draft(), position + last, sampling)
    return dataclasses.replace(true, accepted=last, probabilities=(1.0,) * last)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_right_rule_passes_and_a_residual_that_is_the_targets_distribution_is_caught(
    wrong, monkeypatch
):
    if wrong:
        monkeypatch.setattr(decode, "residual", lambda p, q: q)
    found = toy_cell("maximal")
    assert (found["p_value"] < 1e-6) == wrong
    assert (found["tv_distance"] > 2 * found["tv_noise_floor"]) == wrong


def test_outcomes_are_enumerated_to_the_end_and_past_no_stop_token():
    outcomes = enumerate_outcomes(
        lambda prefix: distribution(TARGET[len(prefix)], Sampling(1.0)), 2, frozenset({3})
    )
    assert sum(outcomes.values()) == pytest.approx(1.0)
    assert (3,) in outcomes
    assert len(outcomes) == 3 * 4 + 1


def test_every_draw_has_a_seed_of_its_own():
    seeds = []

    def sampler(instruction, settings, tokens):
        seeds.append(settings.seed)
        return Draw((0,))

    sample_cell(sampler, {("a", (0,)): 0.5, ("b", (0,)): 0.5}, SAMPLED, 30, "x", together=4)
    assert len(set(seeds)) == 30


# On a real pair


def test_the_next_distribution_is_the_one_that_answers_are_drawn_from(session):
    settings = dataclasses.replace(SAMPLED, drafter="none", max_new_tokens=6)
    *rounds, trace = session.answer("Why?", settings)
    for at, round_ in enumerate(rounds):
        after = session.next_distribution("Why?", settings, trace.token_ids[:at])
        emitted = round_.emitted
        chance = after.probability(emitted.id)
        assert chance == pytest.approx(emitted.target_probability, rel=1e-3)
    with pytest.raises(BadInput, match="empty"):
        session.next_distribution(" ", settings)


# Peers


def test_a_peer_is_compared_with_its_own_autoregressive_decoding_and_may_fail():
    peers = [
        FakePeer("fake/autoregressive"),
        FakePeer("fake/failing", failing=(0,)),
        FakePeer("fake/same"),
        FakePeer("fake/other", tokens=(1, 5, 3)),
        FakePeer("fake/shorter", tokens=(1, 2)),
    ]
    found = audit(FakeSession(), PROMPTS[:1], SAMPLED, draws=0, peers=peers).peers
    assert "no reason" in found["fake/failing"]["note"]
    greedy = {name.removeprefix("fake/"): peer["greedy"] for name, peer in found.items()}
    assert greedy["autoregressive"] is greedy["failing"] is None
    assert greedy["same"].identical == 1 and greedy["other"].identical == 0
    parted = [greedy[name].differences for name in ("other", "shorter")]
    assert [difference.position for [(_, difference)] in parted] == [1, 2]


def test_a_peers_failed_draw_is_repeated_with_another_seed_and_counted():
    peer = FakePeer(failing=(7,))
    assert peer_draw(peer, "x", dataclasses.replace(SAMPLED, seed=6), 2) == Draw((1, 2), None, 0)
    assert peer_draw(peer, "x", dataclasses.replace(SAMPLED, seed=7), 2).failures == 1
    always = FakePeer(failing=[attempt * 1_000_003 for attempt in range(10)])
    with pytest.raises(RequestFailed, match="no reason"):
        peer_draw(always, "x", SAMPLED, 2)
