"""The expected speed-up by Leviathan et al. (arXiv 2211.17192), with costs measured from traces.
Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from specdemo.engine.rounds import Round
from specdemo.trace import Trace, judged, summarize
from specdemo.verdict import counted

LONG_DRAFT = 4
"""Tokens; drafts beyond it have acceptance rates of their own in a prediction."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Median seconds. `plain`: of one token of autoregressive decoding. `draft_step`: of one token
    of the draft model, 0 if it drafted none. `verify`: of a target forward, by number of tokens,
    ascending."""

    plain: float
    draft_step: float
    verify: dict[int, float]

    def verify_seconds(self, tokens: float) -> float:
        """Seconds to verify `tokens` tokens: linear interpolation between the measured sizes, made
        non-decreasing. Beyond the largest size, the mean slope continues."""
        sizes = list(self.verify)
        seconds = np.maximum.accumulate(list(self.verify.values()))
        slope = (seconds[-1] - seconds[0]) / max(sizes[-1] - sizes[0], 1)
        beyond = max(tokens - sizes[-1], 0) * slope
        return float(np.interp(tokens, sizes, seconds) + beyond)


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Expected tokens of a round: 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), equation 1."""
    return sum(acceptance**position for position in range(draft_tokens + 1))


def expected_speedup(
    acceptance: float, draft_tokens: int, costs: CostTable, draft_step: float | None = None
) -> float:
    """Speed-up over autoregressive decoding: theorem 3.8, but a verification takes its measured
    seconds, not those of one token. `draft_step` (seconds) replaces the measured one."""
    step = costs.draft_step if draft_step is None else draft_step
    seconds = draft_tokens * step + costs.verify_seconds(draft_tokens + 1)
    return expected_tokens(acceptance, draft_tokens) * costs.plain / seconds


@dataclass(frozen=True, slots=True)
class Speed:
    """What makes a speed-up: the tokens of a round on average, and the seconds of a round and of a
    token of autoregressive decoding."""

    tokens_per_round: float
    round_seconds: float
    token_seconds: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_round * self.token_seconds / self.round_seconds


def measured_speed(trace: Trace) -> Speed | None:
    """The measured Speed of a run, by the medians of its repeats; None without a round or a
    baseline."""
    summary = summarize(trace)
    if not summary.speedup:
        return None
    times = counted(trace) or [(summary.decode_seconds, summary.baseline_decode_seconds)]
    seconds, baseline = map(median, zip(*times, strict=True))
    rounds, tokens = summary.decode_rounds, summary.baseline_decoded
    return Speed(summary.tokens_per_round, seconds / rounds, baseline / tokens)


def predicted_speed(trace: Trace, rate: float | None = None) -> Speed | None:
    """The Speed that a run's cost model and acceptance rates let expect for its drafts.

    A draft token is accepted, if all before it are, with the run's acceptance rate of its `_place`;
    so a round yields 1 + a1 + a1 a2 + ... tokens (equation 1 with a rate for each token). A round
    takes its drafting, the modelled forward and the run's mean time outside inference. A token of
    autoregressive decoding takes what it took, without a baseline the modelled forward. With `rate`
    all acceptance rates change alike, so that theirs in all is `rate`. None without a cost model or
    draft tokens.
    """
    rounds, summary, measured = trace.decoding_rounds, summarize(trace), measured_speed(trace)
    overall = summary.acceptance_rate
    if not trace.costs or overall is None:
        return None
    accepted, examined = Counter[tuple](), Counter[tuple]()
    for round_ in rounds:
        places = [_place(round_, at) for at in range(len(judged(round_)))]
        accepted.update(places[: round_.accepted])
        examined.update(places)
    tokens = seconds = 0.0
    for round_ in rounds:
        survival = 1.0
        for at in range(len(round_.drafted)):
            place = _place(round_, at)
            share = accepted[place] / examined[place] if examined[place] else overall
            survival *= _scaled(share, overall, rate)
            tokens += survival
        size = min(len(round_.drafted), len(trace.costs.target) - 1)
        seconds += round_.draft_seconds + trace.costs.target[size]
    count = len(rounds)
    outside = summary.outside_seconds / count
    token = measured.token_seconds if measured else trace.costs.target[0]
    return Speed(1 + tokens / count, seconds / count + outside, token)


def _place(round_: Round, at: int) -> tuple[int, str, bool]:
    """Draft tokens of one place share an acceptance rate: those of one position and source, in long
    drafts or in short ones. The policy drafts far where it is confident: with one rate for both, 52
    runs of the embedded pair had up to 33 % more tokens a round than predicted, with two 5 %."""
    return at, round_.drafted[at].source, len(round_.drafted) > LONG_DRAFT


def _scaled(share: float, overall: float, rate: float | None) -> float:
    """`share` moved towards 0 or 1 as far as `overall` is to become `rate`."""
    if rate is None or rate == overall:  # both can be 0
        return share
    if rate <= overall:
        return share * rate / overall
    return 1 - (1 - share) * (1 - rate) / (1 - overall)


def measured_costs(traces: Sequence[Trace]) -> CostTable | None:
    """Median costs over all traces; None if they have no baseline or no round."""
    verify: dict[int, list[float]] = defaultdict(list)
    steps: list[float] = []
    plain: list[float] = []
    for trace in traces:
        for round_ in trace.decoding_rounds:
            verify[len(round_.drafted) + 1].append(round_.verify_seconds)
            if round_.draft_seconds:
                from_model = sum(token.draft_probability is not None for token in round_.drafted)
                steps.append(round_.draft_seconds / max(from_model, 1))
        if trace.baseline:
            plain += np.diff([token.shown_at for token in trace.baseline.tokens]).tolist()
    if not verify or not plain:
        return None
    sizes = {size: median(seen) for size, seen in sorted(verify.items())}
    return CostTable(median(plain), median(steps or [0.0]), sizes)
