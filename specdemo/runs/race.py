"""Races: the same prompt decoded speculatively and autoregressively, how often that is repeated,
and which of the races is on show."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from specdemo.engine.rounds import Round
from specdemo.runs.answer_run import AnswerRun
from specdemo.runs.judge import MIN_RACES
from specdemo.runs.trace import Baseline, BaselineToken, Repeat, Trace, judged, summarize

ENOUGH_SECONDS = 3.0
"""Seconds of decoding of the faster way, summed over the races that count, after which a race is
not repeated if MIN_RACES count. No race ends because of the results so far: a lucky moment would
decide."""

PATIENCE, MAX_REPEATS = 6, 24
"""A race is not repeated after PATIENCE times as many seconds, those of races that do not count
included, nor after MAX_REPEATS."""


def on_show(races: Sequence[Trace]) -> Trace:
    """The race of median speed-up, of those that count, with the others as its repeats. Other work
    takes time from a race, and so does the page, which draws the first one while it runs; that one
    counts only if no other does. If none counts, the first is on show. The race on show gets the
    candidates of the first."""
    quiet = [race for race in races if not race.why]
    counting = [race for race in quiet if not race.watched] or quiet or list(races[:1])
    counting.sort(key=lambda race: race.speedup or 0.0)
    shown = counting[(len(counting) - 1) // 2]
    known = dict(_rejections(races[0].rounds))
    for place, round_ in _rejections(shown.rounds):
        round_.candidates = known.get(place, round_).candidates
    return replace(shown, repeats=tuple(_repeat(race) for race in races if race is not shown))


def _rejections(rounds: Sequence[Round]) -> Iterator[tuple[object, Round]]:
    """The rounds with a rejected token, by what makes its candidates the same in every race of a
    question: the tokens before it, and its probability. Only the first race looks for them."""
    ends = accumulate(len(round_.tokens) for round_ in rounds)
    for end, round_ in zip(ends, rounds, strict=True):
        for rejected in judged(round_)[round_.accepted :]:
            yield (end, rejected.id, rejected.draft_probability), round_


def _repeat(race: Trace) -> Repeat:
    assert race.baseline
    (times, tokens), (baseline_times, _) = (curves[0] for curves in race.curves.values())
    return Repeat(
        seconds=times[-1],
        baseline_seconds=baseline_times[-1],
        shared_with=max(race.shared_with, race.baseline.shared_with),
        compiling=race.compiling,
        watched=race.watched,
        times=tuple(times),
        tokens=tuple(tokens),
        baseline_times=tuple(baseline_times),
        share=min(race.share, race.baseline.share),
    )


def enough(trace: Trace, enough_seconds: float = ENOUGH_SECONDS) -> bool:
    """Whether a race is not to be repeated: as many count as decide, for `enough_seconds` (0: one
    race only); they took too long; there is nothing to compare, or answers differ."""
    pairs = trace.pairs
    if not trace.identical or not pairs or not enough_seconds:
        return True
    summary = summarize(trace)
    seconds = [min(summary.decode_seconds, summary.baseline_decode_seconds or 0.0)]
    seconds += [min(race.seconds, race.baseline_seconds) for race in trace.repeats]
    counted = [spent for spent, pair in zip(seconds, pairs, strict=True) if not pair.why]
    decided = len(counted) >= MIN_RACES and sum(counted) >= enough_seconds
    late = sum(seconds) >= PATIENCE * enough_seconds
    return decided or late or len(trace.repeats) >= MAX_REPEATS


def with_run(trace: Trace, run: AnswerRun, *, baseline: bool) -> Trace:
    """`trace` with one of its two runs replaced by `run`, which has ended."""
    trace = replace(trace, compiling=trace.compiling or run.compiling)
    cpu, others = run.handle.timing.cpu, run.handle.max_others
    same = run.token_ids == trace.token_ids
    if baseline:
        tokens = tuple(map(baseline_token, run.rounds))
        made = Baseline(tokens, trace.prefill_seconds, cpu, others, run.joules, run.share)
        identical = None if run.finish_reason == "cancelled" else same
        return replace(trace, baseline=made, identical=identical)
    return replace(
        trace,
        rounds=tuple(run.rounds),
        cpu_seconds=cpu,
        joules=run.joules,
        outside_seconds=run.outside_seconds,
        share=run.share,
        shared_with=others,
        identical=same,
    )


def baseline_token(round_: Round) -> BaselineToken:
    token = round_.emitted
    assert token, "without drafts each round has one token, the target's"
    return BaselineToken(token.id, round_.shown_at, token.text, token.margin)


def repeated(
    trace: Trace, seconds: float, run: Callable[[bool], AnswerRun | None]
) -> Iterator[Trace]:
    """Race again until it is `enough` for `seconds`. `run(baseline)` runs the question once more,
    and gives None where that would disturb others or be disturbed. Yields the race on show, with
    one repeat more each time. The two ways take turns in running first, so a drift of the machine's
    speed favours neither."""
    races, ways = [trace], [True, False]
    while not enough(trace, seconds):
        race = replace(races[0], watched=False, compiling=False)
        for baseline in ways:
            result = run(baseline)
            if result is None or result.finish_reason == "cancelled":
                return
            race = with_run(race, result, baseline=baseline)
            if not race.identical:
                yield race
                return
        races.append(race)
        trace = on_show(races)
        yield trace
        ways.reverse()
