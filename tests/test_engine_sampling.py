"""From logits to seeded draws: filters, noise, and races."""

from __future__ import annotations

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine import decode, drafters
from specdemo.engine.policy import Lookahead
from specdemo.engine.sampling import (
    Distribution,
    Sampling,
    distribution,
    draw,
    draw_from,
    favoured,
    firm_draw,
    residual,
    uniform,
    uniforms,
)

rows = st.integers(0, 10**6).map(lambda seed: (np.random.default_rng(seed).normal(size=400) * 4).astype(np.float32))


def reference(row: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The filtered distribution by sorting everything in double precision."""
    z = row.astype(np.float64) / sampling.temperature
    p = np.exp(z - z.max())
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    if sampling.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(p[order]), sampling.top_p)) + 1
        p[order[kept:]] = 0
    return p / p.sum()


@settings(max_examples=200, deadline=None)
@given(rows, st.floats(0.1, 30), st.sampled_from([0, 5]), st.sampled_from([0.9, 1.0]), st.integers(0, 2**40))
def test_drawing_from_logits_draws_what_their_distribution_does(row, temperature, top_k, top_p, seed):
    sampling = Sampling(temperature, top_p, top_k, seed)
    assert draw_from(row, sampling, 7) == draw(distribution(row, sampling), seed, 7)


@settings(max_examples=300, deadline=None)
@given(rows, st.floats(0.3, 30), st.sampled_from([1e-3, 0.02, 0.2]), st.integers(0, 2**40))
def test_a_firm_draw_is_that_of_all_logits_nearby(row, temperature, guard, seed):
    sampling = Sampling(temperature, seed=seed)
    firm = firm_draw(row, sampling, 7, guard)
    if firm is None:
        return
    rng = np.random.default_rng(seed)
    moved = [np.zeros(len(row)), *rng.uniform(-0.5, 0.5, (3, len(row))), *rng.choice([-0.5, 0.5], (3, len(row)))]
    for nearby in guard * np.array(moved):
        assert draw_from((row + nearby).astype(np.float32), sampling, 7) == firm


def test_draws_are_nearly_always_firm_and_never_with_filters():
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(300, 5000)) * 4).astype(np.float32)
    firm = [firm_draw(row, Sampling(0.7, seed=at), 7, 1e-3) is not None for at, row in enumerate(logits)]
    assert sum(firm) > 280
    assert firm_draw(logits[0], Sampling(0.7, top_p=0.9), 7, 1e-3) is None


@settings(max_examples=80, deadline=None)
@given(rows, st.floats(0.1, 3), st.sampled_from([0, 1, 5, 50, 1000]), st.sampled_from([0.1, 0.5, 0.95, 0.9999, 1.0]))
def test_filters_agree_with_sorting_the_whole_vocabulary(row, temperature, top_k, top_p):
    sampling = Sampling(temperature, top_p, top_k)
    found = distribution(row, sampling)
    dense = np.zeros(len(row))
    dense[found.ids] = found.probabilities
    assert found.probabilities.sum() == pytest.approx(1)
    assert np.abs(dense - reference(row, sampling)).max() < 1e-5


def test_top_k_one_is_greedy():
    row = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert draw(distribution(row, Sampling(temperature=2.0, top_k=1)), 7, 3) == row.argmax()


def test_noise_is_uniform_and_differs_between_positions_streams_and_seeds():
    ids = np.arange(20_000)
    base = uniforms(1, 2, 3, ids)
    assert base.min() > 0 and base.max() < 1
    assert np.histogram(base, 20, (0, 1))[0] == pytest.approx(np.full(20, 1000), abs=150)
    for other in (uniforms(2, 2, 3, ids), uniforms(1, 3, 3, ids), uniforms(1, 2, 4, ids)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.03


def test_draws_follow_the_distribution_tail_included():
    weights = np.array([0.5, 0.3, 0.1999] + [0.0001 / 50] * 50)
    source = Distribution(np.arange(len(weights)), weights / weights.sum())
    many = 20_000
    seen = np.bincount([draw(source, seed, 5) for seed in range(many)], minlength=len(weights))
    assert seen[:3] / many == pytest.approx(weights[:3], abs=0.012)
    tail = Distribution(np.arange(200), np.r_[np.full(100, 0.009), np.full(100, 0.001)])
    small = Distribution(np.arange(40_000), np.full(40_000, 1 / 40_000))  # nothing reaches the head
    assert np.mean([draw(tail, seed, 1) >= 100 for seed in range(4000)]) == pytest.approx(0.1, abs=0.02)
    assert np.mean([draw(small, seed, 1) for seed in range(4000)]) == pytest.approx(20_000, rel=0.03)


def test_similar_distributions_mostly_draw_the_same_token():
    rng = np.random.default_rng(0)
    row = (rng.normal(size=500) * 3).astype(np.float32)
    near = row + (rng.normal(size=500) * 0.2).astype(np.float32)
    p, q = distribution(near, Sampling(temperature=1.0)), distribution(row, Sampling(temperature=1.0))
    total_variation = 0.5 * np.abs(p.probabilities - q.probabilities).sum()
    same = np.mean([draw(p, seed, 9) == draw(q, seed, 9) for seed in range(3000)])
    assert same > (1 - total_variation) / (1 + total_variation) - 0.03


def test_residual_of_equal_distributions_is_the_target():
    q = distribution(np.arange(5, dtype=np.float32), Sampling(temperature=1.0))
    assert residual(q, q).probabilities == pytest.approx(q.probabilities)


def test_residual_has_no_mass_where_the_draft_had_more():
    p = Distribution(np.array([0, 2]), np.array([0.9, 0.1]))
    q = Distribution(np.array([0, 1]), np.array([0.4, 0.6]))
    left = residual(p, q)
    assert left.ids.tolist() == [1] and left.probabilities == pytest.approx([1.0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2**63 - 1), st.sampled_from([0.0, 0.7, 1.5]))
def test_same_seed_gives_the_same_answer_for_every_drafter_and_draft_length(tables, seed, temperature):
    rng = np.random.default_rng(tables)
    target, draft = toy.random_table(rng, 12), toy.random_table(rng, 12)
    sampling = Sampling(temperature=temperature, seed=seed)
    prompt = (3, 1)

    def answer(make_drafter, fixed=None):
        lookahead = Lookahead(fixed=fixed)
        decoding = decode.decode(
            decode.Prompt(prompt, toy.logits_after(target, prompt[-1:])),
            target=toy.sequence(prompt),
            drafter=make_drafter(lookahead) if make_drafter else None,
            lookahead=lookahead,
            sampling=sampling,
            limits=decode.Limits(30, 1000, frozenset({11})),
        )
        return toy.answer_ids(toy.drive(decoding, {"target": target, "draft": draft})[0])

    def model(lookahead):
        return drafters.ModelDrafter(toy.sequence(), lookahead, sampling)

    def lookup(lookahead):
        return drafters.AutoDrafter([drafters.Lookup()], lookahead)

    def auto(lookahead):
        return drafters.AutoDrafter([drafters.Lookup()], lookahead, model(lookahead))

    plain = answer(None)
    for make, fixed in [(model, 1), (model, 3), (model, 8), (model, None), (lookup, 4), (auto, None)]:
        assert answer(make, fixed) == plain


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(0, 20), st.integers(0, 60_000))
def test_one_uniform_is_that_of_many(seed, position, stream, token):
    assert uniform(seed, position, stream, token) == uniforms(seed, position, stream, np.array([token]))[0]


def test_the_noise_tells_which_guesses_will_be_drawn():
    rng = np.random.default_rng(0)
    blind, seeing, hits = [], [], []
    for position in range(3000):
        source = Distribution(np.arange(6), rng.dirichlet(np.full(6, 0.4)))
        guess = int(source.probabilities.argmax())
        chance = source.probability(guess) * rng.uniform(0.6, 1)
        blind.append(min(max(chance, 0.01), 0.99))
        seeing.append(favoured(blind[-1], 5, position, guess))
        hits.append(draw(source, 5, position) == guess)
    loss = [-np.log(np.where(hits, chances, 1 - np.array(chances))).mean() for chances in (blind, seeing)]
    assert loss[1] < 0.95 * loss[0]
    assert all(0 < chance < 1 for chance in seeing)
    assert favoured(0.0, 1, 2, 3) == 0.0 and favoured(1.0, 1, 2, 3) == 1.0
