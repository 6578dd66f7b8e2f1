"""The audit tells a lossless decoder from a broken one, and its statistics are right on known distributions."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest

from specdemo.bench import audit as auditing
from specdemo.bench.audit import Answered, Audit, AuditedPeer, AuditError, AuditPlan, SampledArm, audit
from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.run import Step
from specdemo.bench.stats import noise_floor, permutation_test, tv_distance
from specdemo.engine import decode
from specdemo.trace import Settings
from specdemo.session import Session

PROMPTS = spread(read_prompts(), 3)


def drawn(probabilities, size: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).choice(len(probabilities), size, p=probabilities).tolist()


# Statistics


def test_distance_of_disjoint_samples_is_one_and_of_equal_ones_zero():
    assert tv_distance([["a", "a"]], [["b", "b"]]) == 1.0
    assert tv_distance([["a", "b"]], [["b", "a"]]) == 0.0


def test_distance_is_half_the_summed_differences():
    assert tv_distance([["a"] * 3 + ["b"]], [["a"] + ["b"] * 2 + ["c"]]) == pytest.approx(0.5)


def test_distance_of_several_prompts_is_their_weighted_mean_and_never_mixes_them():
    assert tv_distance([["a"], ["b"]], [["b"], ["a"]]) == 1.0
    assert tv_distance([["a"] * 3, ["b"]], [["a"] * 3, ["c"]]) == pytest.approx(0.25)


def test_distance_approaches_the_distributions_own():
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    assert tv_distance([drawn(p, 40_000, 1)], [drawn(q, 40_000, 2)]) == pytest.approx(0.3, abs=0.01)


def test_samples_without_common_prompts_are_refused():
    for a, b in (([], []), ([[1]], [[1], [2]]), ([[]], [[1]])):
        with pytest.raises(ValueError, match="same prompts"):
            tv_distance(a, b)


def test_p_values_of_equal_distributions_are_uniform():
    p = np.full(30, 1 / 30)
    values = [
        permutation_test([drawn(p, 200, 2 * i)], [drawn(p, 200, 2 * i + 1)], permutations=300) for i in range(120)
    ]
    assert 0.4 < np.mean(values) < 0.6
    assert np.mean(np.array(values) < 0.1) < 0.2


def test_p_value_of_different_distributions_is_small():
    p, q = np.full(10, 0.1), np.array([0.2, *[0.8 / 9] * 9])
    assert permutation_test([drawn(p, 1000, 1)], [drawn(q, 1000, 2)], permutations=500) < 0.01


def test_noise_floor_is_above_what_equal_distributions_show_and_below_a_real_difference():
    p, q = np.full(20, 0.05), np.array([0.15, *[0.85 / 19] * 19])
    floor = noise_floor([drawn(p, 1000, 1)], [drawn(p, 1000, 2)])
    above = [tv_distance([drawn(p, 1000, 2 * i)], [drawn(p, 1000, 2 * i + 1)]) > floor for i in range(5, 105)]
    assert sum(above) <= 5
    assert tv_distance([drawn(p, 1000, 3)], [drawn(q, 1000, 4)]) > floor


# Sampling, with decoders made of known distributions


def decoder(probabilities):
    def decode_(instruction, settings, wanted):
        rng = np.random.default_rng([settings.seed, len(instruction)])
        return Answered(tuple(rng.choice(len(probabilities), wanted or 3, p=probabilities).tolist()))

    return decode_


def finished(generator):
    while True:
        try:
            assert isinstance(next(generator), Step)
        except StopIteration as done:
            return done.value


def sampled(arm_probabilities, plain_probabilities=(0.6, 0.3, 0.1), draws=1200):
    arm = SampledArm("x", decoder(arm_probabilities))
    settings = Settings(temperature=1.0)
    return finished(
        auditing.audit_sampling(
            PROMPTS, decoder(plain_probabilities), (arm,), settings, AuditPlan(settings, draws, 3), name="x"
        )
    )["x"]


def test_sampling_audit_passes_a_decoder_with_the_plain_distribution():
    found = sampled((0.6, 0.3, 0.1))
    assert found.draws == 1200
    assert found.p_value > 0.01
    assert found.tv_distance <= found.tv_noise_floor


def test_sampling_audit_catches_a_decoder_that_favours_the_likeliest_token():
    found = sampled((0.75, 0.2, 0.05))
    assert found.p_value < 0.01
    assert found.tv_distance > found.tv_noise_floor


def test_every_draw_has_a_seed_of_its_own():
    seeds = []

    def plain(instruction, settings, wanted):
        seeds.append(settings.seed)
        return Answered((0,))

    settings = Settings(temperature=1.0)
    finished(
        auditing.audit_sampling(
            PROMPTS, plain, (SampledArm("x", plain),), settings, AuditPlan(settings, 30, 2), name="x"
        )
    )
    assert len(seeds) == len(set(seeds)) == 90


# The whole audit, on a real pair


@pytest.fixture(scope="module")
def session(tiny_llama_pair):
    session = Session(tiny_llama_pair)
    yield session
    session.close()


def audited(session, **options) -> Audit:
    plan = AuditPlan(Settings(max_new_tokens=40, drafter="model", draft_tokens=3), draws=options.pop("draws", 120))
    *_, found = audit(session, PROMPTS, plan, **options)
    return found


def accepting_everything(verify):
    def broken(logits, draft, position, sampling, choices=()):
        true = verify(logits, draft, position, sampling, choices)
        return dataclasses.replace(true, accepted=len(draft.tokens), probabilities=(1.0,) * len(draft.tokens))

    return broken


def test_audit_passes_the_true_rule(session, monkeypatch):
    monkeypatch.setattr(auditing, "SAME_SEED_DRAWS", 6)
    found = audited(session)
    assert (found.greedy.prompts, found.greedy.identical, found.greedy.certified) == (3, 3, 3)
    assert found.sampling.same_seed_identical == found.sampling.same_seed_draws == 6
    assert found.sampling.p_value > 0.01
    assert found.sampling_maximal.p_value > 0.01
    assert found.lossless


def test_audit_catches_a_rule_that_accepts_everything(session, monkeypatch):
    monkeypatch.setattr(auditing, "SAME_SEED_DRAWS", 6)
    monkeypatch.setattr(decode, "verify", accepting_everything(decode.verify))
    found = audited(session)
    assert found.greedy.identical < found.greedy.prompts
    assert found.greedy.certified < found.greedy.prompts
    assert len(found.greedy.differences) == found.greedy.prompts - found.greedy.identical
    assert found.sampling.same_seed_identical < found.sampling.same_seed_draws
    assert not found.lossless


def test_a_stopped_audit_holds_what_was_finished(session):
    stop = threading.Event()
    steps = audit(session, PROMPTS, AuditPlan(Settings(max_new_tokens=8), draws=90), stop=stop)
    found = None
    for event in steps:
        if isinstance(event, Step) and "sampling" in event.text:
            stop.set()
        found = event
    assert found.stopped
    assert found.greedy.prompts == 3
    assert found.sampling is None


def test_a_peer_that_fails_is_reported_and_does_not_end_the_audit(session):
    def failing(instruction, settings, wanted):
        raise AuditError("The peer failed: out of luck.")

    plain = decoder((0.5, 0.5))
    peers = [AuditedPeer("broken", failing, plain), AuditedPeer("works", plain, plain)]
    found = audited(session, draws=0, peers=peers)
    assert found.peers["broken"].greedy is None
    assert "out of luck" in found.peers["broken"].note
    assert found.peers["works"].greedy.identical == 3


def test_first_difference_of_a_beginning_is_its_length():
    assert auditing.first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert auditing.first_difference((1, 2), (1, 2, 3)) == 2


def test_audit_json_has_the_contracts_fields(session):
    data = json.loads(auditing.to_json(audited(session, draws=0)))
    assert {"prompts", "identical"} <= data["greedy"].keys()
    assert data["settings"]["draft_tokens"] == 3
    fields = {"draws", "tv_distance", "tv_noise_floor", "p_value"}
    assert fields <= set(auditing.SamplingAudit.__dataclass_fields__)


def test_a_peers_failed_draw_is_repeated_with_another_seed_and_counted():
    from specdemo.bench.peers import PeerError, _decoder

    class Flaky:
        def tokens(self, instruction, settings, wanted):
            if settings.seed == 7:
                raise PeerError("an assertion failed.")
            return (settings.seed,)

    decode_ = _decoder(Flaky())
    assert decode_("x", Settings(temperature=1.0, seed=6), 3) == Answered((6,), failures=0)
    assert decode_("x", Settings(temperature=1.0, seed=7), 3).failures == 1
    with pytest.raises(AuditError, match="an assertion failed"):
        decode_("x", Settings(seed=7), None)
