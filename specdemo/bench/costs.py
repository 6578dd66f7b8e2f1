"""The speed of a run, measured and as Leviathan et al. (arXiv 2211.17192) predict it."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from specdemo.engine.rounds import Round
from specdemo.runs.race import counted
from specdemo.runs.trace import Trace, judged, summarize

LONG_DRAFT = 4  # tokens; drafts beyond it have acceptance rates of their own in a prediction


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
    """The measured Speed of a run, by the medians of its repeats; None if it has no speed-up."""
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
    takes its drafting, the modelled forward and the run's mean time outside inference; a token of
    autoregressive decoding what it took, without a baseline the modelled forward. With `rate` all
    acceptance rates change alike, to this mean. None without a cost model or draft tokens."""
    rounds, summary = trace.decoding_rounds, summarize(trace)
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
    return Speed(1 + tokens / count, seconds / count + outside, token_seconds(trace))


def token_seconds(trace: Trace) -> float:
    """What a token of autoregressive decoding took in a run with a cost model; as modelled if there
    was no baseline."""
    measured = measured_speed(trace)
    return measured.token_seconds if measured else trace.costs.token or trace.costs.target[0]


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
