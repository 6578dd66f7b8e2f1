"""The speed of a run as Leviathan et al. (arXiv 2211.17192) predict it."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from specdemo.engine.rounds import Round
from specdemo.runs.trace import Trace, judged, over, summarize

LONG_DRAFT = 4  # tokens; drafts beyond it have acceptance rates of their own in a prediction

Place = tuple[int, str, bool]  # of a draft token, as `_place` tells


def predicted_speedups(trace: Trace, rates: Sequence[float]) -> list[float]:
    """The speed-ups that a run's cost model lets expect for its drafts, if all its acceptance rates
    changed alike, to these means. Empty without a cost model or draft tokens.

    A draft token is accepted, if all before it are, with the acceptance rate of its `_place`; so a
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
    tokens = _tokens_per_round(trace, summary.acceptance_rate, rates)
    return [each * scale for each in tokens]


def _tokens_per_round(trace: Trace, overall: float, rates: Sequence[float]) -> list[float]:
    """The tokens of a round on average, for each mean acceptance rate in place of `overall`."""
    accepted, examined = Counter[Place](), Counter[Place]()
    drafts = []
    for round_ in trace.decoding_rounds:
        drafts.append([_place(round_, position) for position in range(len(round_.drafted))])
        accepted.update(drafts[-1][: round_.accepted])
        examined.update(drafts[-1][: len(judged(round_))])
    rows = {place: row for row, place in enumerate(dict.fromkeys(chain(*drafts)))}
    chances = np.zeros((len(rows) + 1, len(rates)))  # the last row is for no token
    for place, row in rows.items():
        share = accepted[place] / examined[place] if examined[place] else overall
        chances[row] = [_scaled(share, overall, rate) for rate in rates]
    longest = max(map(len, drafts))
    table = [[rows[place] for place in draft] + [-1] * (longest - len(draft)) for draft in drafts]
    survival = np.cumprod(chances[np.array(table)], axis=1)  # [rounds, position, rate]
    tokens: list[float] = (1 + survival.sum(axis=1).mean(axis=0)).tolist()
    return tokens


def token_seconds(trace: Trace) -> float:
    """What a token of autoregressive decoding took in a run with a cost model; as modelled if there
    was no baseline."""
    summary = summarize(trace)
    measured = over(summary.baseline_decode_seconds, summary.baseline_decoded)
    assert trace.costs is not None
    return measured or trace.costs.token or trace.costs.target[0]


def _place(round_: Round, position: int) -> Place:
    """Draft tokens of one place share an acceptance rate: those of one position and source, in long
    drafts or in short ones. The policy drafts far where it is confident: with one rate for both, 52
    runs of the embedded pair had up to 33 % more tokens a round than predicted, with two 5 %."""
    return position, round_.drafted[position].source, len(round_.drafted) > LONG_DRAFT


def _scaled(share: float, overall: float, rate: float) -> float:
    """`share` moved towards 0 or 1 as far as `overall` is to become `rate`."""
    if rate == overall:  # both can be 0
        return share
    if rate <= overall:
        return share * rate / overall
    return 1 - (1 - share) * (1 - rate) / (1 - overall)
