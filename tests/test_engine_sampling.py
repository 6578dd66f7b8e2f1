"""From logits to seeded draws: filters, noise, and races."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine import sampling
from specdemo.engine.sampling import Distribution, Noise, Sampling, choose, distribution, draw

rows = st.integers(0, 10**6).map(
    lambda seed: (np.random.default_rng(seed).normal(size=400) * 4).astype(np.float32)
)


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
    p[p < sampling.min_p * p.max()] = 0
    return p / p.sum()


FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 0, 1, 5, 50, 1000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.1, 0.3, 0.9, 0.99, 0.9999]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-9, 0.02, 0.1, 0.5, 1.0]),
    }
)


@settings(max_examples=200, deadline=None)
@given(rows, st.floats(0.1, 30), FILTERS, st.integers(0, 2**40))
def test_choosing_from_logits_draws_what_their_distribution_does(row, temperature, filters, seed):
    sampling = Sampling(temperature, seed=seed, **filters)
    drawn = draw(distribution(row, sampling), seed, 7)
    known = float(row.max()), float(np.log(np.exp(row.astype(np.float64)).sum()))
    assert choose(row, sampling, 7) == choose(row, sampling, 7, known) == drawn


@settings(max_examples=150, deadline=None)
@given(rows, st.floats(0.1, 3), FILTERS)
def test_filters_agree_with_sorting_the_whole_vocabulary(row, temperature, filters):
    sampling = Sampling(temperature, **filters)
    found = distribution(row, sampling)
    dense = np.zeros(len(row))
    dense[found.ids] = found.probabilities
    assert found.probabilities.sum() == pytest.approx(1)
    assert np.abs(dense - reference(row, sampling)).max() < 1e-5


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-39])
@pytest.mark.parametrize("filters", [{}, {"min_p": 1.0}, {"top_p": 0.5}, {"top_k": 3}])
def test_the_lowest_temperatures_draw_the_likeliest_token(temperature, filters):
    row = np.array([0, 3, 2.9999, -50], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        assert choose(row, Sampling(temperature=temperature, **filters), 0) == 1


def test_noise_is_uniform_and_differs_between_positions_streams_and_seeds():
    ids = np.arange(20_000)
    base = Noise(1, 2, 3).uniforms(ids)
    assert base.min() > 0 and base.max() < 1
    assert np.histogram(base, 20, (0, 1))[0] == pytest.approx(np.full(20, 1000), abs=150)
    for other in (Noise(2, 2, 3), Noise(1, 3, 3), Noise(1, 2, 4)):
        assert abs(np.corrcoef(base, other.uniforms(ids))[0, 1]) < 0.03


def test_draws_follow_the_distribution_tail_included():
    weights = np.array([0.5, 0.3, 0.1999] + [0.0001 / 50] * 50)
    source = Distribution(np.arange(len(weights)), weights / weights.sum())
    many = 20_000
    seen = np.bincount([draw(source, seed, 5) for seed in range(many)], minlength=len(weights))
    assert seen[:3] / many == pytest.approx(weights[:3], abs=0.012)
    tail = Distribution(np.arange(200), np.r_[np.full(100, 0.009), np.full(100, 0.001)])
    small = Distribution(np.arange(40_001), np.r_[0.8, np.full(40_000, 0.2 / 40_000)])
    in_tail = np.mean([draw(tail, seed, 1) >= 100 for seed in range(4000)])
    assert in_tail == pytest.approx(0.1, abs=0.02)
    drawn = np.array([draw(small, seed, 1) for seed in range(4000)])
    assert np.mean(drawn > 0) == pytest.approx(0.2, abs=0.02), "only the first reaches the head"
    assert np.mean(drawn[drawn > 0]) == pytest.approx(20_000, rel=0.06)


def test_similar_distributions_mostly_draw_the_same_token():
    rng = np.random.default_rng(0)
    row = (rng.normal(size=500) * 3).astype(np.float32)
    near = row + (rng.normal(size=500) * 0.2).astype(np.float32)
    p, q = (distribution(logits, Sampling(temperature=1.0)) for logits in (near, row))
    total_variation = 0.5 * np.abs(p.probabilities - q.probabilities).sum()
    same = np.mean([draw(p, seed, 9) == draw(q, seed, 9) for seed in range(3000)])
    assert same > (1 - total_variation) / (1 + total_variation) - 0.03


@given(*(st.integers(0, most) for most in (2**64 - 1, 10_000, 20, 60_000)))
def test_one_uniform_is_that_of_many(seed, position, stream, token):
    noise = Noise(seed, position, stream)
    assert noise.uniform(token) == noise.uniforms(np.array([token]))[0]


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 12.0])
@pytest.mark.parametrize(
    "filters",
    [{"top_p": 0.95}, {"top_p": 0.9999}, {"top_k": 40}, {"top_k": 3000}, {"min_p": 0.05}]
    + [{"top_k": 50, "top_p": 0.9}, {"top_p": 0.8, "min_p": 1e-6}, {"top_k": 9, "min_p": 0.5}],
)
def test_what_ranks_few_tokens_is_bitwise_what_ranks_them_all(monkeypatch, scale, filters):
    """With ties, which the places of tokens decide."""
    rng = np.random.default_rng(3)
    for _ in range(4):
        logits = (np.round(rng.normal(size=4000), 2) * scale).astype(np.float32)
        fast = distribution(logits, Sampling(0.9, **filters))
        with monkeypatch.context() as patch:
            patch.setattr(sampling, "_RANKED", (0.0,))
            slow = distribution(logits, Sampling(0.9, **filters))
        assert fast.ids.tolist() == slow.ids.tolist()
        assert fast.probabilities.tobytes() == slow.probabilities.tobytes()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 15, 16, 17, 255, 257, 8191, 8193]),
    st.sampled_from([0.0, 0.5, 3.0, 1e4]),
    st.floats(-3e4, 3e4),
    st.sampled_from([1e-20, 0.01, 0.7, 1.0, 30.0]),
    st.sampled_from([0, 1, 3, 40, 9000]),
    st.sampled_from([0.0, 0.3, 0.95, 0.9999, 1.0]),
    st.sampled_from([0.0, 1e-9, 0.05, 1.0]),
)
def test_filters_are_bitwise_those_of_a_plain_ranking(
    seed, size, scale, level, temperature, top_k, top_p, min_p
):
    """Of rows with ties and -inf, all weights taken and a stable sort of them."""
    rng = np.random.default_rng(seed)
    row = (np.round(rng.normal(size=size), 1) * scale + level).astype(np.float32)
    row[1:][rng.random(size - 1) < 0.2] = -np.inf
    asked = Sampling(temperature, top_p, top_k, min_p=min_p)
    found = distribution(row, asked)
    weights = np.exp((row - row.max()) * np.float32(1 / asked.temperature))
    total = float(weights.sum(dtype=np.float64))
    ids = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
    if not asked.filtered:
        ids.sort()
    ranked = weights[ids].astype(np.float64)
    if top_k:
        ids, ranked = ids[:top_k], ranked[:top_k]
        total = ranked.sum()
    if top_p < 1:
        kept = int(np.searchsorted(np.cumsum(ranked), top_p * total)) + 1
        ids, ranked = ids[:kept], ranked[:kept]
    if min_p:
        ids, ranked = ids[ranked >= min_p], ranked[ranked >= min_p]
    order = np.argsort(ids)
    assert found.ids.tolist() == ids[order].tolist()
    assert found.probabilities.tobytes() == (ranked[order] / ranked.sum()).tobytes()
