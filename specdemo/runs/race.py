"""How often a race is repeated, and what all of its races say. Pure functions of traces."""

from dataclasses import dataclass
from statistics import median

from specdemo.runs.trace import Trace, summarize

ENOUGH_SECONDS = 3.0
"""Seconds of decoding of each way, summed over its races, after which a race is not repeated."""

CERTAIN, CERTAIN_RACES = 0.05, 3
"""So many races are enough if the speed-ups of all are within this share of their median."""

MOST_REPEATS = 24  # answers of a few tokens would be repeated for longer than anybody waits


@dataclass(frozen=True, slots=True)
class Verdict:
    """The median speed-up of the `races` that count, and the least and the largest."""

    speedup: float
    range: tuple[float, float]
    races: int


def counted(trace: Trace) -> list[tuple[float, float]]:
    """Seconds of decoding, (speculative, baseline), of each race that counts: of the repeats
    without company. The streamed race counts if none of them does: the page is drawn meanwhile."""
    summary = summarize(trace)
    streamed = [(summary.decode_seconds, summary.baseline_decode_seconds)]
    repeats = [(one.seconds, one.baseline_seconds) for one in trace.repeats if not one.disturbed]
    if summary.speedup is None or not repeats and trace.disturbed:
        return []
    return repeats or streamed


def verdict(trace: Trace) -> Verdict | None:
    """The verdict of the races that count; None if none does. Speed-ups are per token."""
    summary = summarize(trace)
    speedups = [
        baseline / seconds * summary.decoded / summary.baseline_decoded
        for seconds, baseline in counted(trace)
    ]
    if not speedups:
        return None
    return Verdict(median(speedups), (min(speedups), max(speedups)), len(speedups))


def enough(trace: Trace, enough_seconds: float = ENOUGH_SECONDS) -> bool:
    """Whether another race would add nothing: each way has `enough_seconds` (0 for one race only),
    the verdict is CERTAIN, there is nothing to compare, or runs do not give the same tokens."""
    found, races = verdict(trace), counted(trace)
    if not trace.identical or summarize(trace).speedup is None:
        return True
    if not enough_seconds or len(trace.repeats) >= MOST_REPEATS:
        return True
    if found is None:
        return False
    seconds = min(map(sum, zip(*races, strict=True)))
    certain = all(abs(one / found.speedup - 1) <= CERTAIN for one in found.range)
    return seconds >= enough_seconds or (found.races >= CERTAIN_RACES and certain)
