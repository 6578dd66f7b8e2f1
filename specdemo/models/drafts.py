"""Which of a pair's drafts to use, and what a draft promises by Leviathan et al. (arXiv
2211.17192)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specdemo.models import ir, measured, sources
from specdemo.models.registry import ASSUMED_ACCEPTANCE, NO_DRAFT, Pair
from specdemo.models.sources import Source
from specdemo.settings import ModelChoice

SEEN_ENOUGH = 20
"""Draft tokens from which an acceptance rate counts for more than an assumption."""


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens that a round yields: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))


def promised_speedup(costs: Mapping[int, float], step: float, rate: float) -> float:
    """Theorem 3.8 at the best draft length, with a target's `costs` of forwards by their number of
    tokens (from 1 on, linear between those given), and a draft step's; in one unit of time."""
    sizes = sorted(costs)
    verify = np.maximum.accumulate([costs[size] for size in sizes])

    def speedup(length: int) -> float:
        seconds = length * step + np.interp(length + 1, sizes, verify)
        return float(expected_tokens(rate, length) * costs[1] / seconds)

    return max(map(speedup, range(1, sizes[-1])))


def chosen_draft(pair: Pair, choice: ModelChoice) -> tuple[Source, ...]:
    """The one draft of `pair` to use: the one that was asked for; else the fastest of `tune`; else,
    of those that are here, the one that promises most; else the first. Empty for n-grams only."""
    tuned = measured.read().tuned.get(pair.name)
    if choice.draft:
        return pair.drafts
    if tuned and tuned.winner == NO_DRAFT:
        return ()
    if len(pair.drafts) < 2:
        return pair.drafts
    here = [draft for draft in pair.drafts if sources.here(draft)]
    if not tuned and here and sources.here(pair.target):
        return (max(here, key=lambda draft: _promise(pair.target, draft, choice)),)
    won = [draft for draft in here or pair.drafts if tuned and draft.name == tuned.winner]
    return tuple([*won, *here, *pair.drafts][:1])


def _promise(target: Source, draft: Source, choice: ModelChoice) -> float:
    """The speed-up by what the machine profile knows of these models; else by rehearsed costs; else
    by the sizes of their weights and an assumed acceptance rate."""
    from specdemo.engine.policy import TYPICAL
    from specdemo.models import profiles

    folders, steps = [sources.here(one) for one in (target, draft)], measured.read().steps
    known = profiles.of_pair(*folders, choice)
    exact = known.targets.get("exact")
    costs = exact.costs if exact else {}
    if costs and known.draft_step:
        step = known.draft_step
    elif target.name in steps and draft.name in steps:
        costs = dict(enumerate(steps[target.name], start=1))
        step = steps[draft.name][0]
    else:
        weights = [(folder / ir.WEIGHTS).stat().st_size for folder in folders]
        costs, step = TYPICAL, weights[1] / weights[0]
    rate = ASSUMED_ACCEPTANCE.get(draft.name, 0.5)
    accepted, seen = known.acceptance.get("model", [(0.0, 0.0)])[-1]
    return promised_speedup(costs, step, accepted / seen if seen > SEEN_ENOUGH else rate)
