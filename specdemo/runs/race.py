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
class RaceVerdict:
    """The median speed-up of the `races` that count, and the least and the largest."""

    speedup: float
    range: tuple[float, float]
    races: int


def counted(trace: Trace) -> list[tuple[float, float]]:
    """Seconds of decoding, (speculative, baseline), of each race that counts: of the repeats
    without company. The streamed race counts if none of them does: the page is drawn meanwhile."""
    summary = summarize(trace)
    repeats = [(one.seconds, one.baseline_seconds) for one in trace.repeats if not one.disturbed]
    if summary.speedup is None or summary.baseline_decode_seconds is None:
        return []
    if not repeats and not trace.disturbed:
        return [(summary.decode_seconds, summary.baseline_decode_seconds)]
    return repeats


def verdict(trace: Trace) -> RaceVerdict | None:
    """The verdict of the races that count; None if none does. Speed-ups are per token."""
    summary = summarize(trace)
    races = counted(trace)
    if not races or not summary.baseline_decoded:
        return None
    tokens = summary.decoded / summary.baseline_decoded
    speedups = [baseline / seconds * tokens for seconds, baseline in races]
    return RaceVerdict(median(speedups), (min(speedups), max(speedups)), len(speedups))


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
