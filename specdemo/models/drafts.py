"""Which of a pair's drafts to use, and what a draft promises by Leviathan et al. (arXiv
2211.17192)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specdemo.models import ir, measured, sources
from specdemo.models.registry import ASSUMED_ACCEPTANCE, NO_DRAFT, Pair
from specdemo.models.sources import Source
from specdemo.settings import ModelChoice

SEEN_ENOUGH = 20
"""Draft tokens from which an acceptance rate counts for more than an assumption."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """The draft length that pays best at an acceptance rate, tokens per round, and the speed-up."""

    acceptance_rate: float
    draft_tokens: int
    tokens_per_round: float
    speedup: float


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens that a round yields: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))


def prospect(costs: Mapping[int, float], step: float, rate: float) -> Prospect:
    """Theorem 3.8 with a target's `costs` of forwards by their number of tokens (from 1 on, linear
    between those given), and a draft step's; in one unit of time."""
    sizes = sorted(costs)
    verify = np.maximum.accumulate([costs[size] for size in sizes])

    def speedup(length: int) -> float:
        seconds = length * step + np.interp(length + 1, sizes, verify)
        return float(expected_tokens(rate, length) * costs[1] / seconds)

    best = max(range(1, sizes[-1]), key=speedup)
    return Prospect(rate, best, expected_tokens(rate, best), speedup(best))


def chosen_draft(pair: Pair, choice: ModelChoice) -> tuple[Source, ...]:
    """The one draft of `pair` to use: the one that was asked for; else the fastest of `tune`; else,
    of those that are here, the one that promises most; where none is, of all, if they were
    rehearsed, else the first. Empty for n-grams only."""
    if choice.draft:
        return pair.drafts
    figures = measured.read()
    tuned = figures.tuned.get(pair.name)
    if tuned and (choice.device, choice.draft_device) == ("CPU", "CPU"):
        if tuned.winner == NO_DRAFT:
            return ()
        won = [draft for draft in pair.drafts if draft.name == tuned.winner]
        if won and sources.is_ready(won):
            return tuple(won)
    if len(pair.drafts) < 2:
        return pair.drafts
    ready = [draft for draft in pair.drafts if sources.is_ready([draft])]
    rehearsed = {pair.target.name, *(draft.name for draft in pair.drafts)} <= figures.steps.keys()
    if not (ready and sources.is_ready([pair.target]) or rehearsed):
        return tuple((ready or pair.drafts)[:1])
    return (max(ready or pair.drafts, key=lambda draft: _promise(pair.target, draft, choice)),)


def _promise(target: Source, draft: Source, choice: ModelChoice) -> float:
    """The speed-up by what the machine profile knows of these models; else by rehearsed costs; else
    by the sizes of their weights and an assumed acceptance rate."""
    from specdemo.engine.policy import TYPICAL
    from specdemo.engine.profile import Profile
    from specdemo.models import profiles

    folders, steps = [sources.here(one) for one in (target, draft)], measured.read().steps
    known = Profile() if None in folders else profiles.of_pair(*folders, choice)
    exact = known.targets.get("exact")
    costs = exact.costs if exact else {}
    if costs and known.draft_step:
        step = known.draft_step / costs[1]
    elif target.name in steps and draft.name in steps:
        costs = dict(enumerate(steps[target.name], start=1))
        step = steps[draft.name][0] / costs[1]
    else:
        weights = [(folder / ir.WEIGHTS).stat().st_size for folder in folders]
        step = weights[1] / weights[0]
    relative = {size: seconds / costs[1] for size, seconds in costs.items()} or TYPICAL
    rate = ASSUMED_ACCEPTANCE.get(draft.name, 0.5)
    if "model" in known.acceptance:
        accepted, seen = known.acceptance["model"][-1]
        rate = accepted / seen if seen > SEEN_ENOUGH else rate
    return prospect(relative, step, rate).speedup
