"""What steps of runs cost, and speed-ups as Leviathan et al. (arXiv 2211.17192) predict them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from statistics import fmean

import numpy as np

from specdemo.engine.cost_model import CostModel
from specdemo.engine.rounds import Round
from specdemo.runs.trace import Trace, combined, judged, over, summarize

RATES = tuple(percent / 100 for percent in range(0, 101, 5))
MOST_DRAFTED = 8  # draft tokens a round of an estimate
LONG_DRAFT = 4  # tokens; drafts beyond it have acceptance rates of their own in a prediction

Position = tuple[int, str, bool]
"""Index and source of a draft token, and whether its draft is long. Draft tokens of one position
share an acceptance rate. The policy drafts far where it is confident: with one rate for short and
long drafts, 52 runs of the embedded pair had up to 33 % more tokens a round than predicted, with
two 5 %."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step of so many tokens took, in seconds and with the time outside inference."""

    tokens: int
    seconds: float  # the median of the rounds
    low: float  # half of them lie between these two
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Estimates from races."""

    acceptance_rate: float  # measured
    rates: list[float]  # of acceptance, that are assumed
    users: list[int]  # at once
    seconds: list[float]  # that a token without drafts takes each of so many users
    speedups: list[list[list[float]]]
    """By users, by draft length (0: as in the races), by rate."""


def step_costs(*traces: Trace) -> list[StepCost]:
    """The costs of the steps of runs, by their number of tokens. Autoregressive decoding makes the
    steps of one token, if there was a baseline."""
    steps: dict[int, list[float]] = {}
    single: list[float] = []
    for trace in traces:
        rounds, baseline = trace.decoding_rounds, trace.baseline
        outside = trace.outside_seconds / max(len(rounds), 1)
        for round_ in rounds:
            steps.setdefault(len(round_.drafted) + 1, []).append(round_.verify_seconds + outside)
        if baseline:
            single += [b.shown_at - a.shown_at for a, b in pairwise(baseline.tokens)]
    if single:
        steps[1] = single
    costs = []
    for tokens, times in sorted(steps.items()):
        low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
        costs.append(StepCost(tokens, middle, low, high, len(times)))
    return costs


def what_if(traces: Sequence[Trace], measured: Mapping[int, tuple[float, float]]) -> WhatIf | None:
    """Estimates from these races and the `measured` speed-up, and seconds of a token without
    drafts, by users at once, one user among them. None if nothing was drafted or compared.

    Drafts of gamma tokens give (1 - a^(gamma + 1)) / (1 - a) tokens a round (equation 1) in the
    measured seconds of gamma steps of the draft and of a step of gamma + 1 tokens. More users
    change the seconds of a round, relative to a step of one token, as in the races."""
    total = combined(map(summarize, traces))
    if not total.examined or not total.baseline_decode_seconds or not total.decode_seconds:
        return None
    costs, acceptance = CostModel(), total.accepted / total.examined
    costs.learn({cost.tokens: cost.seconds for cost in step_costs(*traces)})
    draft = total.draft_seconds / total.drafted
    rates = sorted({*RATES, acceptance})
    as_raced = predicted_speedups(traces, rates)
    scale = measured[1][0] / as_raced[rates.index(acceptance)]
    by_length = [[speedup * scale for speedup in as_raced]]
    for length in range(1, MOST_DRAFTED + 1):
        cost = (length * draft + costs.forward(length + 1)) / costs.forward(1)
        by_length.append([sum(rate**n for n in range(length + 1)) / cost for rate in rates])
    return WhatIf(
        acceptance,
        rates,
        [*measured],
        [seconds for _, seconds in measured.values()],
        [
            [[each * speedup / measured[1][0] for each in line] for line in by_length]
            for speedup, _ in measured.values()
        ],
    )


def predicted_speedups(traces: Sequence[Trace], rates: Sequence[float]) -> list[float]:
    """The expected speed-ups of runs if their acceptance rates were scaled to each of these means
    and their rounds took as long as before. They must have draft tokens, and steps of one token.

    A draft token is accepted, if all before it are, with the acceptance rate of its position; so a
    round yields 1 + a1 + a1 a2 + ... tokens (equation 1 with a rate for each token)."""
    rounds = [round_ for trace in traces for round_ in trace.decoding_rounds]
    summary = combined(map(summarize, traces))
    token = over(summary.baseline_decode_seconds, summary.baseline_decoded)
    token = token or step_costs(*traces)[0].seconds
    scale = len(rounds) * token / summary.decode_seconds
    tokens = _tokens_per_round(rounds, summary.acceptance_rate or 0.0, rates)
    return [each * scale for each in tokens]


def _tokens_per_round(
    rounds: Sequence[Round], overall: float, rates: Sequence[float]
) -> Iterator[float]:
    """The mean for each of `rates` in place of the `overall` acceptance rate."""
    accepted, examined = Counter[Position](), Counter[Position]()
    drafts: list[list[Position]] = []
    for round_ in rounds:
        long = len(round_.drafted) > LONG_DRAFT
        drafts.append([(i, token.source, long) for i, token in enumerate(round_.drafted)])
        accepted.update(drafts[-1][: round_.accepted])
        examined.update(drafts[-1][: len(judged(round_))])
    for rate in rates:
        shares = {place: accepted[place] / count for place, count in examined.items()}
        chances = {place: _scaled(share, overall, rate) for place, share in shares.items()}
        unseen = _scaled(overall, overall, rate)
        known = ([chances.get(place, unseen) for place in draft] for draft in drafts)
        yield 1 + fmean(sum(accumulate(each, mul)) for each in known)


def _scaled(share: float, overall: float, rate: float) -> float:
    """`share` moved towards 0 or 1 as far as `overall` is to become `rate`."""
    if rate == overall:  # both can be 0
        return share
    if rate <= overall:
        return share * rate / overall
    return 1 - (1 - share) * (1 - rate) / (1 - overall)
