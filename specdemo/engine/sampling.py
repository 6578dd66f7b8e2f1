"""From logits to tokens: the filtered distribution, and seeded draws. Pure numpy.

Each uniform is a hash of (seed, position in the text, stream, token id). So a draw at a position
depends only on the distribution and the seed, and not on earlier drafts or requests.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TOKEN, DRAFT, ACCEPT, RESIDUAL = range(4)  # random streams at one position
TAIL, TAIL_TOKEN = 8, 16
"""Added to a stream: when the unlikely tokens arrive in a race, and which of them is drawn."""

LIKELY = 1e-4
"""Tokens at least this probable, as a share of the likeliest one's probability, get an arrival time
each; the rest, the tail, share one. So a draw does not need noise for the whole vocabulary."""

LOWEST_TEMPERATURE = 1e-20
"""At this one only the likeliest token has a weight. Lower ones would do the same, but logits
divided by them have no numbers: float32 ends at 3e38."""

_RANKED = (*np.exp([-4.0, -7.0, -10.0, -13.0, -16.0]).tolist(), 0.0)
"""As shares of the likeliest one's probability: only tokens above the first threshold are ranked,
those above the next one where these do not suffice, and so on."""
_MASK = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ARRAY_GOLDEN, _ARRAY_FIRST, _ARRAY_SECOND = map(np.uint64, (_GOLDEN, _FIRST, _SECOND))
_11, _27, _30, _31, _32, _LOW = map(np.uint64, (11, 27, 30, 31, 32, 0xFFFFFFFF))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen: after penalties and biases (`acceptance.Adjustment` defines them), by
    the filters `top_k`, then `top_p`, then `min_p`."""

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # among the smallest set that holds this share of the mass
    top_k: int = 0  # among so many of the likeliest; 0: all
    seed: int = 0
    coupling: str = "shared"
    min_p: float = 0.0  # among those with this share of the likeliest one's probability
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.temperature:
            temperature = max(self.temperature, LOWEST_TEMPERATURE)
            object.__setattr__(self, "temperature", temperature)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities (float64 [n], summing to 1) of token ids (int64 [n], ascending)."""

    ids: np.ndarray
    probabilities: np.ndarray

    def probability(self, token: int) -> float:
        index = int(np.searchsorted(self.ids, token))
        known = index < len(self.ids) and self.ids[index] == token
        return float(self.probabilities[index]) if known else 0.0


def distribution(logits: np.ndarray, sampling: Sampling) -> Distribution:
    """The distribution that `sampling` (with temperature > 0) gives for one row of logits, float
    [vocabulary]. Ties at a filter's edge go to the lower id."""
    top = logits.max()

    def unnormalised(ids: np.ndarray | slice) -> np.ndarray:
        scaled: np.ndarray = logits[ids] - top
        scaled *= np.float32(1 / sampling.temperature)
        np.exp(scaled, out=scaled)
        return scaled

    # A share of the mass needs the weights of all tokens; other filters only those near the top.
    shared = sampling.top_p < 1 and not sampling.top_k
    if shared or not sampling.filtered:
        every = unnormalised(slice(None))
    if not sampling.filtered:
        ids = np.flatnonzero(every)
        weights = every[ids].astype(np.float64)
        return Distribution(ids, weights / weights.sum())
    total = float(every.sum(dtype=np.float64)) if shared else 0.0
    # All filters keep a prefix of the ranking, so only the few tokens near the top are ranked.
    for threshold in _RANKED:
        if threshold and 0 < sampling.min_p < 10 * threshold:
            continue
        if shared:
            ids = np.flatnonzero(every > threshold)
            masses = every[ids]
        else:
            cut = sampling.temperature * (math.log(threshold) - 1e-3) if threshold else -math.inf
            rounding = 1e-6 * (abs(float(top)) + abs(cut))
            ids = np.flatnonzero(logits >= float(top) + cut - rounding)
            masses = unnormalised(ids)
            ids, masses = ids[masses > threshold], masses[masses > threshold]
        size = len(ids)
        if threshold and sampling.top_k > 0 and size <= sampling.top_k:
            continue
        if threshold and shared and masses.sum(dtype=np.float64) < sampling.top_p * total:
            continue
        ranked, weights = _ranked(ids, masses)
        if sampling.top_k > 0:
            size = min(size, sampling.top_k)
            total = weights[:size].sum()
        if sampling.top_p < 1:
            mass = np.cumsum(weights[:size])
            if threshold and mass[-1] < sampling.top_p * total:
                continue
            size = min(int(np.searchsorted(mass, sampling.top_p * total)) + 1, size)
        if sampling.min_p > 0:
            size = min(size, int(np.count_nonzero(weights >= sampling.min_p)))
        order = np.argsort(ranked[:size])
        rest = weights[:size]
        return Distribution(ranked[order], rest[order] / rest.sum())
    raise AssertionError("the last time every token is ranked")


def _ranked(ids: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids (int64 [n], ascending) and their positive weights (float32 [n]; given back as float64),
    heaviest first, ties by id. Positive floats are ordered as their bits are, so one integer holds
    both keys: numpy sorts integers many times as fast as it ranks floats."""
    bits = (~weights.view(np.uint32)).astype(np.uint64) << _32
    order = (np.sort(bits | np.arange(len(ids), dtype=np.uint64)) & _LOW).astype(np.int64)
    return ids[order], weights[order].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Noise:
    """Uniforms in (0, 1): hashes (SplitMix64's finaliser) of seed, position in the text, stream and
    token id. `stream` is TOKEN, DRAFT, ACCEPT or RESIDUAL."""

    seed: int
    position: int
    stream: int = TOKEN

    def uniforms(self, ids: np.ndarray) -> np.ndarray:
        """The uniform of each token id, float64 [n]."""
        x = (ids.astype(np.uint64) * _ARRAY_GOLDEN) + np.uint64(self._key())
        x ^= x >> _30
        x *= _ARRAY_FIRST
        x ^= x >> _27
        x *= _ARRAY_SECOND
        x ^= x >> _31
        return ((x >> _11).astype(np.float64) + 0.5) * 2.0**-53

    def uniform(self, token: int = 0) -> float:
        """One of `uniforms`, in Python integers: several times as fast for a single value."""
        x = _mixed((token * _GOLDEN + self._key()) & _MASK)
        return ((x >> 11) + 0.5) * 2.0**-53

    def of_tail(self, offset: int) -> float:
        """A uniform for all tail tokens together; `offset` is TAIL or TAIL_TOKEN."""
        return Noise(self.seed, self.position, self.stream + offset).uniform()

    def _key(self) -> int:
        key = self.seed
        for part in (self.position, self.stream, _GOLDEN):
            key = _mixed((key + _GOLDEN) & _MASK) + part
        return key & _MASK


def _mixed(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def draw(source: Distribution, seed: int, position: int, stream: int = TOKEN) -> int:
    """A token from `source`, by an exponential race (`_Runners`). Each token is drawn with exactly
    its probability, and two similar distributions mostly draw the same token."""
    return int(source.ids[_runners_of(source).winner(Noise(seed, position, stream))])


def choose(
    logits: np.ndarray,
    sampling: Sampling,
    position: int,
    known: tuple[float, float] | None = None,
    ids: np.ndarray | None = None,
) -> int:
    """`draw` from the `distribution` of one row of logits; gives the column. `ids` maps columns to
    tokens (None: they are equal). `known` is the row's maximum and log-sum-exp, if computed
    before."""
    noise = Noise(sampling.seed, position)
    if not sampling.filtered:
        return _likely_runners(logits, sampling.temperature, known, ids).winner(noise)
    source = distribution(logits, sampling)
    columns = source.ids
    if ids is not None:
        source = Distribution(ids[columns], source.probabilities)
    return int(columns[_runners_of(source).winner(noise)])


@dataclass(frozen=True, slots=True)
class _Runners:
    """The tokens of a distribution in an exponential race: the first to arrive is drawn.

    Each likely token arrives at Exponential(1) / weight; the tail shares one arrival at
    Exponential(1) / (sum of its weights). If the tail is first, one of its tokens is drawn in
    proportion to the weights. Exponential arrivals are first with probabilities proportional to
    their rates, so every token wins with its share of all weights."""

    columns: np.ndarray  # int64 [n]: all of weight LIKELY and more
    weights: np.ndarray  # relative to the largest
    ids: np.ndarray  # of the tokens
    others: float  # the other weights sum to this at most
    all_weights: Callable[[], np.ndarray]  # of every column

    def winner(self, noise: Noise) -> int:
        """The winner's column."""
        arrivals = -np.log(noise.uniforms(self.ids)) / self.weights
        first = int(arrivals.argmin())
        tail_noise = -math.log(noise.of_tail(TAIL))
        # A larger mass only lets the tail arrive earlier. If it loses with a bound of its mass, it
        # loses with the mass itself, which is computed only otherwise.
        if tail_noise < arrivals[first] * self.others:
            tail = self.all_weights()
            tail[self.columns] = 0.0
            mass = np.cumsum(tail, dtype=np.float64)
            if tail_noise < arrivals[first] * mass[-1]:
                return int(np.searchsorted(mass, noise.of_tail(TAIL_TOKEN) * mass[-1]))
        return int(self.columns[first])


def _runners_of(source: Distribution) -> _Runners:
    """The runners of a distribution; columns are indices of it."""
    weights = source.probabilities / source.probabilities.max()
    likely = np.flatnonzero(weights >= LIKELY)
    others = float(weights.sum() - weights[likely].sum()) if len(likely) < len(weights) else 0.0
    return _Runners(likely, weights[likely], source.ids[likely], others, weights.copy)


def _likely_runners(
    logits: np.ndarray,
    temperature: float,
    known: tuple[float, float] | None,
    ids: np.ndarray | None,
) -> _Runners:
    """The runners of a row of logits without filters; arguments as in `choose`. The distribution is
    rarely computed: a bound of the mass of the less likely tokens mostly suffices."""
    top, log_sum = known or (float(logits.max()), math.inf)
    cut = temperature * math.log(LIKELY)
    columns = (logits >= np.float32(top + cut)).nonzero()[0]
    above = logits[columns].astype(np.float64) - top

    def all_weights() -> np.ndarray:
        scaled = logits - np.float32(top)
        scaled *= np.float32(1 / temperature)
        return np.exp(scaled, out=scaled)

    weights = np.exp(above / temperature)
    if log_sum < math.inf and temperature <= 1:
        # For x < cut <= 0: exp(x / T) = exp(x) exp(x (1 / T - 1)) <= exp(x) exp(cut (1 / T - 1)).
        mass = math.exp(log_sum - top)
        below = max(mass - float(np.exp(above).sum()), 0.0) + 1e-4 * mass
        others = below * math.exp(cut * (1 / temperature - 1))
    else:
        beside = all_weights().sum(dtype=np.float64) - weights.sum()
        others = max(float(beside), 0.0) + 1e-4
    return _Runners(columns, weights, columns if ids is None else ids[columns], others, all_weights)
