"""The speed of a run as Leviathan et al. (arXiv 2211.17192) predict it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from statistics import fmean

from specdemo.engine.messages import Round
from specdemo.runs.trace import Trace, judged, over, summarize

LONG_DRAFT = 4  # tokens; drafts beyond it have acceptance rates of their own in a prediction

Position = tuple[int, str, bool]
"""Index and source of a draft token, and whether its draft is long. Draft tokens of one position
share an acceptance rate. The policy drafts far where it is confident: with one rate for short and
long drafts, 52 runs of the embedded pair had up to 33 % more tokens a round than predicted, with
two 5 %."""


def predicted_speedups(trace: Trace, rates: Sequence[float]) -> list[float]:
    """The speed-ups that a run's cost model lets expect for its drafts, if all its acceptance rates
    changed alike, to these means. Empty without a cost model or draft tokens.

    A draft token is accepted, if all before it are, with the acceptance rate of its position; so a
    round yields 1 + a1 + a1 a2 + ... tokens (equation 1 with a rate for each token). A round takes
    its drafting, the modelled forward and the run's mean time outside inference; a token of
    autoregressive decoding what it took, without a baseline the modelled forward."""
    rounds, summary = trace.decoding_rounds, summarize(trace)
    if not trace.costs or summary.acceptance_rate is None:
        return []
    seconds = summary.outside_seconds
    for round_ in rounds:
        size = min(len(round_.drafted), len(trace.costs.target) - 1)
        seconds += round_.draft_seconds + trace.costs.target[size]
    scale = len(rounds) * token_seconds(trace) / seconds
    tokens = _tokens_per_round(rounds, summary.acceptance_rate, rates)
    return [each * scale for each in tokens]


def _tokens_per_round(
    rounds: Sequence[Round], overall: float, rates: Sequence[float]
) -> Iterator[float]:
    """The mean for each acceptance rate in place of `overall`."""
    accepted, examined = Counter[Position](), Counter[Position]()
    drafts: list[list[Position]] = []
    for round_ in rounds:
        long = len(round_.drafted) > LONG_DRAFT
        drafts.append([(i, token.source, long) for i, token in enumerate(round_.drafted)])
        accepted.update(drafts[-1][: round_.accepted])
        examined.update(drafts[-1][: len(judged(round_))])
    for rate in rates:
        chances = {
            position: _scaled(accepted[position] / count, overall, rate)
            for position, count in examined.items()
        }
        unseen = _scaled(overall, overall, rate)
        yield 1 + fmean(
            sum(accumulate((chances.get(position, unseen) for position in draft), mul))
            for draft in drafts
        )


def token_seconds(trace: Trace) -> float:
    """What a token of autoregressive decoding took in a run with a cost model; as modelled if there
    was no baseline."""
    summary = summarize(trace)
    measured = over(summary.baseline_decode_seconds, summary.baseline_decoded)
    assert trace.costs is not None
    return measured or trace.costs.token or trace.costs.target[0]


def _scaled(share: float, overall: float, rate: float) -> float:
    """`share` moved towards 0 or 1 as far as `overall` is to become `rate`."""
    if rate == overall:  # both can be 0
        return share
    if rate <= overall:
        return share * rate / overall
    return 1 - (1 - share) * (1 - rate) / (1 - overall)
