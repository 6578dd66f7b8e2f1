"""What the steps of a run cost, and its speed as Leviathan et al. (arXiv 2211.17192) predict it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from statistics import fmean

import numpy as np

from specdemo.engine.messages import Round
from specdemo.runs.trace import Trace, judged, over, summarize

LONG_DRAFT = 4  # tokens; drafts beyond it have acceptance rates of their own in a prediction

Position = tuple[int, str, bool]
"""Index and source of a draft token, and whether its draft is long. Draft tokens of one position
share an acceptance rate. The policy drafts far where it is confident: with one rate for short and
long drafts, 52 runs of the embedded pair had up to 33 % more tokens a round than predicted, with
two 5 %."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step of `tokens` tokens took in a run: the median of `rounds`, and the ends between
    which half of them lie, all in seconds and with the time outside inference."""

    tokens: int
    seconds: float
    low: float
    high: float
    rounds: int


def step_costs(trace: Trace) -> list[StepCost]:
    """The costs of the steps of a run, by their number of tokens. Autoregressive decoding makes the
    steps of one token, if there was a baseline."""
    rounds, baseline = trace.decoding_rounds, trace.baseline
    outside = trace.outside_seconds / max(len(rounds), 1)
    steps: dict[int, list[float]] = {}
    for round_ in rounds:
        steps.setdefault(len(round_.drafted) + 1, []).append(round_.verify_seconds + outside)
    if baseline and len(baseline.tokens) > 1:
        steps[1] = [b.shown_at - a.shown_at for a, b in pairwise(baseline.tokens)]
    costs = []
    for tokens, times in sorted(steps.items()):
        low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
        costs.append(StepCost(tokens, middle, low, high, len(times)))
    return costs


def predicted_speedups(trace: Trace, rates: Sequence[float]) -> list[float]:
    """The expected speed-ups of a run if its acceptance rates were scaled to each of these means
    and its rounds took as long as before. The run must have draft tokens, and steps of one token.

    A draft token is accepted, if all before it are, with the acceptance rate of its position; so a
    round yields 1 + a1 + a1 a2 + ... tokens (equation 1 with a rate for each token)."""
    rounds, summary = trace.decoding_rounds, summarize(trace)
    token = over(summary.baseline_decode_seconds, summary.baseline_decoded)
    token = token or step_costs(trace)[0].seconds
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
