"""Runs of the page as messages, lines of JSON that its scripts read as they come: a race, a race of
several drafters, a saved run; and the endpoint /generate. The server keeps no run."""

# No `from __future__ import annotations` here: Gradio reads the endpoint's types from annotations.
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from threading import Event, Timer
from typing import Any

import gradio as gr

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.machine.terminal import counted
from specdemo.runs.display import SOURCES, Curve, wall_clock
from specdemo.runs.judge import MIN_RACES, times
from specdemo.runs.question import Question, SessionEvent, trace_of, with_text
from specdemo.runs.race import enough
from specdemo.runs.saved_run import from_json
from specdemo.runs.settings import Drafter
from specdemo.runs.trace import Trace, as_json, judged, over, summarize
from specdemo.server.metrics import REQUEST_ID
from specdemo.server.page import MAX_EVENTS, race_charts, wording
from specdemo.server.page.model_menu import ModelMenu, models_of, settings_of
from specdemo.server.page.service import LimitedSession, Service, visitor_of

REPEATING = "Repeating in the background: {}, {} counted (at least {} decide)"
REPEAT_SECONDS = 10.0  # of repeats in the background, at most
DRAWING_SECONDS = 0.5  # before the first repeat: the browser here may draw the race

DRAFTERS: dict[Drafter, str] = {
    "none": "autoregressive, no draft",
    "lookup": "n-gram lookup",
    "model": "",
    "auto": "the fastest",
}
"""The ways that "Race the drafts" tries; what "model" is depends on the pair."""
DRAFTS_SECONDS, MAX_TURNS = 12.0, 5  # no turn of all drafters begins after these


def message(phase: str, note: str = "", **extra: Any) -> str:
    """`phase`: "loading", "waiting", "speculative", "baseline", "again" (the race is on show, and
    repeated in the background), "drafts", "done", "stopped", "error" or "opened"; `note` is a
    sentence for the status line."""
    return as_json({"phase": phase, "note": note, **extra})


def finished(trace: Trace, phase: str, note: str = "") -> str:
    """The message of a run that can be shown: its trace, words and charts."""
    recorded = phase == "opened"
    words = {
        "verdict": wording.verdict(trace),
        "curve": wording.curve(trace),
        "figure": wall_clock(trace.curves, bool(trace.identical)),
        "model": wording.model_line(trace.pair),
        "reading": wording.reading(trace),
        "program": wording.program(trace),
        "origin": wording.origin(trace, "Recorded" if recorded else "Measured"),
        "recorded": recorded,
    }
    return f'{message(phase, note, **words)[:-1]}, "trace": {trace.to_json()}}}'


def opened(text: str) -> str:
    """The message of a saved run. Raises BadInput for anything else."""
    return finished(from_json(text), "opened")


Kind = Callable[[LimitedSession, Question], Iterator[str]]


def run(
    kind: Kind, service: Service, menu: ModelMenu, values: Mapping[str, Any], stop: Event
) -> Iterator[str]:
    """The state of the pair that the inputs `values` name, then the messages of a run of this kind
    (`race`, ...), until `stop` is set. An error ends it with one sentence."""
    try:
        settings, pair = settings_of(values), menu.resolve(models_of(values))
        yield message("loading", "Starting")
        for state in service.states(pair, stop):
            yield message("loading", f"{state.line}. Your question is answered next.")
        with service.session(pair) as session:
            yield message("loading", "Reading the question")
            question = Question(str(values.get("question") or ""), settings, stop=stop)
            yield from kind(session, question)
    except Exception as error:
        yield message("error", wording.error_sentence(error))


def race(session: LimitedSession, question: Question) -> Iterator[str]:
    """The messages of a race, and of its repeats in the background."""
    seconds = session.limits.race_seconds
    question = replace(question, baseline=True, repeat=seconds, measured=False, candidates=True)
    trace: Trace | None = None
    sent = 0.0
    new: dict[str, list[Any]] = {"rounds": [], "baseline": []}
    with closing(session.ask(question)) as events:
        for event in events:
            if isinstance(event, Trace):
                trace = event
                break
            if isinstance(event, Waiting):
                phase, note = "waiting", wording.queue_place(event)
            elif isinstance(event, Round):
                new["rounds"].append(event)
                phase, note = "speculative", "Answering with speculative decoding"
            else:
                new["baseline"].append(event)
                phase, note = "baseline", "Answering again, one token at a time"
            if time.monotonic() - sent >= session.update_seconds:
                yield message(phase, note, **new)
                new, sent = {"rounds": [], "baseline": []}, time.monotonic()
        assert trace is not None
        if summarize(trace).drafted and not enough(trace, seconds):
            yield finished(trace, "again", _repeating(trace))
            figures = {"sentence": wording.verdict(trace)["sentence"]}  # of the race in the panes
            for trace in _repeats(session, question.stop, events):
                verdict = wording.verdict(trace) | figures
                yield message("again", _repeating(trace), verdict=verdict)
    ended = ("stopped", "Stopped.") if trace.identical is None else ("done",)
    yield finished(trace, *ended)


def _repeating(trace: Trace) -> str:
    count = trace.verdict.races if trace.verdict else 0
    raced = counted(len(trace.pairs), "race")
    return REPEATING.format(raced, count, MIN_RACES)


def _repeats(
    session: LimitedSession, stop: Event, events: Iterator[SessionEvent]
) -> Iterator[Trace]:
    """The race on show after each repeat. Repeats of two visitors' races wait for each other, and
    for questions; they end with `stop`, and after REPEAT_SECONDS."""
    stop.wait(DRAWING_SECONDS)
    while not session.repeating.acquire(timeout=0.1):
        if stop.is_set():
            return
    late = Timer(REPEAT_SECONDS, stop.set)
    late.start()
    try:
        while not stop.is_set():
            if session.occupied:
                stop.wait(0.1)
            elif isinstance(event := next(events, None), Trace):
                yield event
            elif event is None:
                return
    finally:
        late.cancel()
        session.repeating.release()


def drafts(session: LimitedSession, question: Question) -> Iterator[str]:
    """Races all drafters on one question in turns. The last message has the chart of the median run
    of each."""
    ways = [way for way in DRAFTERS if way != "model" or session.info.draft]
    runs: dict[Drafter, list[Trace]] = {way: [] for way in ways}
    until, turn = time.monotonic() + DRAFTS_SECONDS, 0
    while turn < MAX_TURNS and (not turn or time.monotonic() < until):
        turn += 1
        for way in ways:
            yield message("drafts", f"Race {turn} of the drafts: {DRAFTERS[way] or 'draft'}")
            settings = replace(question.settings, drafter=way)
            trace = trace_of(session.ask(replace(question, settings=settings)))
            if trace.finish_reason == "cancelled":
                yield message("stopped", "Stopped.")
                return
            runs[way].append(trace)
        ways.reverse()  # so that a drift of the machine's speed favours none
    curves: dict[str, Curve] = {}
    best, fastest, baseline = 0.0, "", 0.0
    for way, traces in runs.items():
        trace = sorted(traces, key=lambda trace: summarize(trace).decode_seconds)[(turn - 1) // 2]
        figures, label = summarize(trace), DRAFTERS[way] or _draft_of(trace)
        baseline = baseline or figures.decode_seconds  # of "none", the first
        speedup = over(baseline, figures.decode_seconds)
        if (speedup or 1.0) > best:
            best, fastest = speedup or 1.0, label
        if speedup is not None:
            label += f": {times(speedup)}"
        if figures.acceptance_rate is not None:
            label += f", {figures.acceptance_rate:.0%} accepted"
        curves[label] = trace.curves["speculative"][0]
    note = f"Fastest: {fastest}, {times(best)}. Medians of {turn} races with each drafter."
    yield message("done", note, figure=race_charts.of_drafters(curves))


def _draft_of(trace: Trace) -> str:
    """The name of the draft model or head that drafted most."""
    sources = Counter(token.source for round_ in trace.rounds for token in round_.drafted)
    models = [source for source, _ in sources.most_common() if source in [*SOURCES][:4]]
    return SOURCES[models[0]] if models else "draft"


def add_endpoint(service: Service, menu: ModelMenu) -> None:
    """Adds /generate, for programs, to the Blocks being built. It answers with `menu.first`."""

    def generate(  # type: ignore[misc]  # Gradio reads the type of an item, not Iterator
        request: gr.Request,
        instruction: str,
        max_new_tokens: int = 100,
        draft_tokens: str = "auto",
        drafter: str = "auto",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        numerics: str = "exact",
    ) -> dict:  # type: ignore[type-arg]  # Gradio knows no dict[...]
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before in "delta", and the figures so
        far: "tokens", "tokens_per_second" and "acceptance_rate". The last one has "done": true, the
        whole answer in "text" and why it ended in "finish_reason". The settings are those of
        `python -m specdemo run --help`.
        """
        values = dict(locals())
        REQUEST_ID.set(request.state.request_id)  # Gradio calls this outside the request's context
        stop, pair = Event(), menu.first
        try:
            if not isinstance(instruction, str):
                raise BadInput(f"instruction is {instruction!r:.60}; it must be text.")
            with service.request(visitor_of(request, request.session_hash)):
                service.load(pair).result()
                with service.session(pair) as session:
                    events = session.ask(Question(instruction, settings_of(values), stop=stop))
                    yield from _pieces(events, session.update_seconds)
        except Exception as error:
            raise gr.Error(wording.error_sentence(error), print_exception=False) from error
        finally:
            stop.set()

    gr.api(generate, api_name="generate", concurrency_limit=MAX_EVENTS)


def _pieces(events: Iterator[SessionEvent], every: float) -> Iterator[dict[str, Any]]:
    rounds: list[Round] = []
    delta, sent_at = "", 0.0
    for event, text in with_text(events):
        delta += text
        if isinstance(event, Waiting):
            continue
        if isinstance(event, Round):
            rounds.append(event)
            if time.monotonic() - sent_at < every:
                continue
        tokens = sum(len(round_.tokens) for round_ in rounds)
        accepted = sum(round_.accepted for round_ in rounds)
        examined = sum(len(judged(round_)) for round_ in rounds)
        spent = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        yield {
            "delta": delta,
            "tokens": tokens,
            "tokens_per_second": over(tokens - 1, spent) or 0.0,
            "acceptance_rate": over(accepted, examined),
            "done": isinstance(event, Trace),
            "text": event.text if isinstance(event, Trace) else "",
            "finish_reason": event.finish_reason if isinstance(event, Trace) else "",
        }
        delta, sent_at = "", time.monotonic()
