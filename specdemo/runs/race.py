"""How often a race is repeated, which of its races is on show, and what all of them say. Pure
functions of traces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from specdemo.runs.trace import Repeat, Trace, summarize

ENOUGH_SECONDS = 3.0
"""Seconds of decoding of each way, summed over its races, after which a race is not repeated."""

CERTAIN, CERTAIN_RACES = 0.05, 3
"""So many races are enough if the speed-ups of all are within this share of their median."""

MOST_REPEATS = 24  # answers of a few tokens would be repeated for longer than anybody waits


@dataclass(frozen=True, slots=True)
class RaceVerdict:
    """The speed-up of the race on show, which is the median one of the `races` that count, and the
    least and the largest of these."""

    speedup: float
    range: tuple[float, float]
    races: int


def on_show(races: Sequence[Trace]) -> Trace:
    """The race of median speed-up, of those that count, with the others as its repeats. Other work
    takes time from a race, and so does the page, which draws the first one while it runs; that one
    counts only if no other does. If none counts, the first is on show."""
    quiet = [race for race in races if not race.disturbed]
    counting = [race for race in quiet if not race.watched] or quiet or list(races[:1])
    counting.sort(key=lambda race: summarize(race).speedup or 0.0)
    shown = counting[(len(counting) - 1) // 2]
    return replace(shown, repeats=tuple(_repeat(race) for race in races if race is not shown))


def _repeat(race: Trace) -> Repeat:
    rounds, baseline = race.rounds, race.baseline.tokens if race.baseline else ()
    times = tuple(round_.shown_at - rounds[0].shown_at for round_ in rounds)
    baseline_times = tuple(token.shown_at - baseline[0].shown_at for token in baseline)
    lengths = tuple(accumulate(len(round_.tokens) for round_ in rounds))
    return Repeat(
        times[-1],
        baseline_times[-1],
        race.others,
        race.compiling,
        race.watched,
        times,
        lengths,
        baseline_times,
    )


def counted(trace: Trace) -> list[tuple[float, float]]:
    """Seconds of decoding, (speculative, baseline), of each race that counts; the first is the one
    on show."""
    summary = summarize(trace)
    if summary.speedup is None or summary.baseline_decode_seconds is None or trace.disturbed:
        return []
    quiet = [one for one in trace.repeats if not (one.disturbed or one.watched)]
    races = [(one.seconds, one.baseline_seconds) for one in quiet]
    return [(summary.decode_seconds, summary.baseline_decode_seconds), *races]


def verdict(trace: Trace) -> RaceVerdict | None:
    """The verdict of the races that count; None if none does. Speed-ups are per token."""
    summary, races = summarize(trace), counted(trace)
    if not races or not summary.speedup or not summary.baseline_decoded:
        return None
    tokens = summary.decoded / summary.baseline_decoded
    speedups = [baseline / seconds * tokens for seconds, baseline in races]
    return RaceVerdict(summary.speedup, (min(speedups), max(speedups)), len(speedups))


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
