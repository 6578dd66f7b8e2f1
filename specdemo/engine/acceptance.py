"""The acceptance rule: which draft tokens stand, and the token that the target adds after them.

p is the draft model's distribution and q the target's, as in Chen et al. (arXiv 2302.01318). Two
couplings of their draws keep the output distribution exactly q:

- `shared`: both draw with the *same* noise (an exponential race, also called the Gumbel-max trick),
  and a draft token is accepted when the target draws it too (Daliri et al., arXiv 2408.07978). Same
  seed, same output, with any drafter, any draft length, or none.
- `maximal`: algorithm 2 of Chen et al.: accept with probability min(1, q/p), else redraw from
  max(0, q - p). No rule accepts more. Its output for a seed depends on the draft tokens.
"""

import math
from dataclasses import dataclass

import numpy as np

from .constraint import Mask
from .messages import Draft, Logits
from .sampling import (
    ACCEPT,
    REACH,
    RESIDUAL,
    Distribution,
    Sampling,
    choose,
    distribution,
    draw,
    uniform,
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The number of `accepted` draft tokens and the `token` added after them. `probabilities` are
    the target's, of each accepted token and then of the rejected one, if any.

    `margin` is how far the logit of the added token exceeds the next best; None if it was sampled,
    or the only one allowed. `least_margin` is the least of all choices; infinite with the maximal
    coupling, whose answer depends on the draft anyway."""

    accepted: int
    token: int
    probabilities: tuple[float, ...]
    token_probability: float
    margin: float | None = None
    least_margin: float = math.inf


def verify(
    logits: Logits,
    draft: Draft,
    position: int,
    sampling: Sampling,
    reach: float = REACH,
    masks: list[Mask] | None = None,
) -> Verification:
    """Verify a draft. `logits` has one row for each draft token and one more; `position` is the
    place in the text of the first one. Margins of sampled tokens are computed up to `reach` logits.
    With `masks`, one for each row, only allowed tokens are chosen. Greedy decoding and the shared
    coupling accept a draft token if it is the target's own choice."""
    if sampling.coupling == "maximal" and not sampling.greedy:
        return _verify_maximal(logits, draft, position, sampling, masks)
    probabilities = []
    least = math.inf
    for at, drafted in enumerate((*draft.tokens, None)):
        one = logits.allowed(at, masks)
        if sampling.greedy:
            token = one.best(0)
            margin = one.margin(0) if reach or token != drafted else math.inf
        else:
            row = one.rows[0]
            known = float(row.max()), float(one.log_sum[0])
            token, margin = choose(row, sampling, position + at, known, reach=reach)
        least = min(least, margin)
        if drafted is not None:
            probabilities.append(one.probability(0, drafted))
        if token != drafted:
            break
    shown = margin if sampling.greedy and margin < math.inf else None
    return Verification(at, token, tuple(probabilities), one.probability(0, token), shown, least)


def _verify_maximal(
    logits: Logits, draft: Draft, position: int, sampling: Sampling, masks: list[Mask] | None
) -> Verification:
    """Algorithm 2 of Chen et al."""
    probabilities = []
    for at, drafted in enumerate(draft.tokens):
        q = distribution(logits.allowed(at, masks).rows[0], sampling)
        p = draft.proposals[at].distribution or Distribution(np.array([drafted]), np.ones(1))
        probabilities.append(q.probability(drafted))
        chance = acceptance_probability(p.probability(drafted), q.probability(drafted))
        if not accepts(chance, sampling.seed, position + at):
            token = draw(residual(p, q), sampling.seed, position + at, RESIDUAL)
            return Verification(at, token, tuple(probabilities), q.probability(token))
    last = len(draft.tokens)
    q = distribution(logits.allowed(last, masks).rows[0], sampling)
    token = draw(q, sampling.seed, position + last)
    return Verification(last, token, tuple(probabilities), q.probability(token))


def acceptance_probability(p: float, q: float) -> float:
    """min(1, q/p): the chance to accept a token that the draft model drew with probability p."""
    return min(1.0, q / p)


def accepts(chance: float, seed: int, position: int) -> bool:
    """Whether a draft token with this acceptance probability is accepted at a position."""
    return uniform(seed, position, ACCEPT) < chance


def residual(p: Distribution, q: Distribution) -> Distribution:
    """max(0, q - p), normalised (Chen et al., equation 2). If p equals q up to rounding, nothing is
    left; the result is then q, which is right because a rejection has probability 0."""
    at = np.minimum(np.searchsorted(p.ids, q.ids), len(p.ids) - 1)
    drafted = np.where(p.ids[at] == q.ids, p.probabilities[at], 0.0)
    left = np.maximum(q.probabilities - drafted, 0.0)
    mass = left.sum()
    if mass <= 0:
        return q
    keep = left > 0
    return Distribution(q.ids[keep], left[keep] / mass)
