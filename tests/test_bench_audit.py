"""The audit tells a lossless decoder from a broken one, and its statistics are right."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import toy
from fakes import FakeSession
from test_bench import FakePeer

from specdemo.bench.auditor import _peer_draw, _session_draw, audit, goodness, outcomes, sample_cell
from specdemo.bench.prompts import read_prompts
from specdemo.engine import acceptance
from specdemo.engine.decode import Limits
from specdemo.engine.drafters import make_drafter
from specdemo.engine.messages import Draft
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Sampling, distribution
from specdemo.engine.scheduler import Waiting
from specdemo.errors import RequestFailed
from specdemo.runs.settings import Settings

SAMPLED = Settings(temperature=1.0, drafter="model", draft_tokens=3, max_new_tokens=24)


def test_draws_of_the_distribution_lie_at_its_noise_floor_with_uniform_p_values():
    rng = np.random.default_rng(0)
    exact = {(at,): share for at, share in enumerate(rng.dirichlet(np.ones(40)).tolist())}
    found = []
    for _ in range(60):
        counts = rng.multinomial(400, list(exact.values())).tolist()
        found.append(goodness(Counter(dict(zip(exact, counts, strict=True))), exact))
    distances, values = ([one[name] for one in found] for name in ("tv_distance", "p_value"))
    assert np.mean(distances) == pytest.approx(found[0]["tv_noise_floor"], rel=0.05)
    assert 0.35 < np.mean(values) < 0.65 and np.mean(np.array(values) < 0.1) < 0.2
    assert goodness(Counter({(0,): 99, (77,): 1}), {(0,): 0.99, (1,): 0.01})["p_value"] == 0


# Decoders on toy tables of logits


TARGET, DRAFT_TABLE = (toy.random_table(np.random.default_rng(seed), 4) for seed in (1, 2))


def toy_draw(settings: Settings, tokens: int):
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
    return toy.answer_ids(rounds)[:tokens], None


def accept_everything(rows, draft, sampling, reach=0.0, verify=acceptance.verify):
    last = len(draft.tokens)
    context = [*rows.context, *draft.tokens]
    whole = acceptance.TargetRows(rows.logits.part(last, last + 1), context)
    true = verify(whole, Draft(), sampling)
    return dataclasses.replace(true, accepted=last, probabilities=(1.0,) * last)


def test_a_draw_that_waits_for_its_turn_counts():
    session = FakeSession()
    session.waits = [Waiting(2, None), Waiting(1, 0.5)]
    assert _session_draw(session, SAMPLED, 3)[0] == (1, 2, 3)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_right_rule_passes_and_a_residual_that_is_the_targets_distribution_is_caught(
    wrong, monkeypatch
):
    if wrong:
        monkeypatch.setattr(acceptance, "residual", lambda p, q: q)

    def after(prefix):
        return distribution(TARGET[prefix[-1] if prefix else 0], Sampling(1.0))

    settings = dataclasses.replace(SAMPLED, coupling="maximal")
    found = sample_cell(toy_draw, outcomes(after, 3, frozenset()), settings, 600, "toy")
    assert (found["p_value"] == 0) == wrong
    assert (found["tv_distance"] > 2 * found["tv_noise_floor"]) == wrong


def test_outcomes_are_enumerated_to_the_end_and_past_no_stop_token():
    found = outcomes(
        lambda prefix: distribution(TARGET[len(prefix)], Sampling(1.0)), 2, frozenset({3})
    )
    assert sum(found.values()) == pytest.approx(1.0)
    assert (3,) in found
    assert len(found) == 3 * 4 + 1


def test_every_draw_has_a_seed_of_its_own_and_those_that_fail_are_counted():
    seeds = []

    def draw(settings, tokens):
        seeds.append(settings.seed)
        return None if settings.seed % 3 == 0 else ((0,), 2)

    found = sample_cell(draw, {(0,): 0.5, (1,): 0.5}, SAMPLED, 30, "x", together=4)
    assert len(set(seeds)) == 30
    assert (found["draws"], found["failures"], found["drafted_per_draw"]) == (20, 10, 2)
    assert _peer_draw(FakePeer(failing=(0,)), SAMPLED, 2) is None
    with pytest.raises(RequestFailed, match="None of the draws"):
        sample_cell(lambda *_: None, {(0,): 1.0}, SAMPLED, 3, "x")


def test_a_peer_is_compared_with_its_own_autoregressive_decoding_and_may_fail():
    peers = [
        FakePeer("fake/autoregressive"),
        FakePeer("fake/failing", failing=(0,)),
        FakePeer("fake/same"),
        FakePeer("fake/other", tokens=(1, 5, 3)),
        FakePeer("fake/shorter", tokens=(1, 2)),
    ]
    found = audit(FakeSession(), read_prompts()[:1], SAMPLED, draws=0, peers=peers).peers
    assert "no reason" in found["fake/failing"]["note"]
    greedy = {name.removeprefix("fake/"): peer["greedy"] for name, peer in found.items()}
    assert greedy["autoregressive"] is greedy["failing"] is None
    assert greedy["same"].identical == 1 and greedy["other"].identical == 0
    parted = [greedy[name].differences for name in ("other", "shorter")]
    assert [difference.position for [(_, difference)] in parted] == [1, 2]
