"""Races: the same prompt decoded speculatively and autoregressively, how often that is repeated,
which of the races is on show, and what all of them say."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from specdemo.engine.rounds import Round
from specdemo.errors import Busy
from specdemo.runs.trace import Baseline, BaselineToken, Repeat, Trace, summarize

if TYPE_CHECKING:
    from specdemo.engine.policy import Acceptance
    from specdemo.runs.question import Event, Question
    from specdemo.runs.session import AnswerRun, Session

ENOUGH_SECONDS = 3.0
"""Seconds of decoding of each way, summed over its races, after which a race is not repeated."""

CERTAIN, CERTAIN_RACES = 0.05, 3
"""So many races are enough if the speed-ups of all are within this share of their median."""

MOST_REPEATS = 24  # answers of a few tokens would be repeated for longer than anybody waits


@dataclass(frozen=True, slots=True)
class RaceVerdict:
    """The speed-up of the race on show, which is the median one of the `races` that count, the
    least and the largest of these, and the seconds that all took to decode in the faster way."""

    speedup: float
    range: tuple[float, float]
    races: int
    seconds: float


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


def verdict(trace: Trace) -> RaceVerdict | None:
    """The verdict of the races that count; None if none does. Speed-ups are per token."""
    summary = summarize(trace)
    if not summary.speedup or not summary.baseline_decoded or trace.disturbed:
        return None
    quiet = [race for race in trace.repeats if not (race.disturbed or race.watched)]
    seconds = [summary.decode_seconds, *(race.seconds for race in quiet)]
    baseline = [summary.baseline_decode_seconds or 0.0, *(race.baseline_seconds for race in quiet)]
    tokens = summary.decoded / summary.baseline_decoded
    speedups = [slow / fast * tokens for fast, slow in zip(seconds, baseline, strict=True)]
    extent, least_seconds = (min(speedups), max(speedups)), min(sum(seconds), sum(baseline))
    return RaceVerdict(summary.speedup, extent, len(speedups), least_seconds)


def enough(trace: Trace, enough_seconds: float = ENOUGH_SECONDS) -> bool:
    """Whether another race would add nothing: each way has `enough_seconds` (0 for one race only),
    the verdict is CERTAIN, there is nothing to compare, or runs do not give the same tokens."""
    if not trace.identical or summarize(trace).speedup is None:
        return True
    if not enough_seconds or len(trace.repeats) >= MOST_REPEATS:
        return True
    result = verdict(trace)
    if result is None:
        return False
    certain = all(abs(speedup / result.speedup - 1) <= CERTAIN for speedup in result.range)
    return result.seconds >= enough_seconds or (result.races >= CERTAIN_RACES and certain)


def with_baseline(
    session: Session, question: Question, trace: Trace
) -> Generator[Event, None, Trace]:
    """Decode the question autoregressively, independently of the answer in `trace`; yields each
    token, and returns the trace with `baseline` and `identical` set."""
    run = _start(session, question, trace, autoregressive=True)
    for event in run.events():
        yield _baseline_token(event) if isinstance(event, Round) else event
    same = run.token_ids == trace.token_ids
    trace = _with_run(trace, run, autoregressive=True)
    identical = None if run.finish_reason == "cancelled" else same
    return replace(trace, identical=identical, compiling=trace.compiling or question.loading())


def repeated(
    session: Session, question: Question, trace: Trace, rates: Mapping[str, Acceptance] | None
) -> Iterator[Trace]:
    """Race again until it is `enough`, while nobody else asks and nothing is compiled. Yields the
    race on show, with one repeat more each time. The two ways take turns in running first, so a
    drift of the machine's speed favours neither. Speculative runs begin with the acceptance `rates`
    of the first: a question that was learnt would seem fast."""
    races = [trace]
    ways = [True, False]
    while not enough(trace, question.repeat):
        race = replace(races[0], watched=False, shared_with=0, compiling=question.loading())
        for autoregressive in ways:
            activity = session.activity
            if activity.active or activity.waiting or activity.preparing or question.loading():
                return
            try:
                run = _start(session, question, trace, autoregressive, deepcopy(rates))
                deque(run.events(), maxlen=0)
            except Busy:  # the models were closed; the race stands without more repeats
                return
            if run.finish_reason == "cancelled":
                return
            race = _with_run(race, run, autoregressive)
            if run.token_ids != trace.token_ids:
                yield replace(race, identical=False)
                return
        costs = session.costs(trace.settings.numerics, trace.prompt_tokens, len(trace.tokens))
        races.append(replace(race, compiling=race.compiling or question.loading()))
        trace = replace(on_show(races), costs=costs)
        yield trace
        ways.reverse()


def _start(
    session: Session,
    question: Question,
    trace: Trace,
    autoregressive: bool,
    rates: Mapping[str, Acceptance] | None = None,
) -> AnswerRun:
    """Run the question again. Times count as if the prefill had taken as long as that of `trace`,
    because the prompt is in the prefix cache now."""
    if autoregressive:
        question = replace(question, settings=replace(question.settings, drafter="none"))
    request = session.request(
        question, timed=True, rates=rates, prefill_seconds=trace.prefill_seconds
    )
    return session.submit(question, request, first=True)


def _with_run(trace: Trace, run: AnswerRun, autoregressive: bool) -> Trace:
    """`trace` with one of its two runs replaced by `run`."""
    trace = replace(trace, compiling=trace.compiling or run.handle.compiling)
    if autoregressive:
        tokens = tuple(map(_baseline_token, run.rounds))
        cpu, others = run.request.cpu, run.handle.most_others
        baseline = Baseline(tokens, trace.prefill_seconds, cpu, others, run.joules)
        return replace(trace, baseline=baseline)
    return replace(
        trace,
        rounds=tuple(run.rounds),
        cpu_seconds=run.request.cpu,
        joules=run.joules,
        outside_seconds=run.outside_seconds,
        shared_with=run.handle.most_others,
    )


def _baseline_token(round_: Round) -> BaselineToken:
    [token] = round_.tokens
    margin = round_.emitted.margin if round_.emitted else None
    return BaselineToken(token.id, round_.shown_at, token.text, margin)
