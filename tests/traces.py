"""Traces of made-up races, with figures that can be worked out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdemo.engine.messages import DraftToken, EmittedToken, Round
from specdemo.pairs.registry import PairInfo
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Baseline, BaselineToken, Trace


def race_trace(
    *texts: str,
    instruction: str = "What is it?",
    settings: Settings = Settings(),  # noqa: B008
    pair: PairInfo = PairInfo("toy", "toy target", None, "abc123"),  # noqa: B008
) -> Trace:
    """A watched race whose answer has these tokens, with ids 1, 2, 3, ...: the first token, then in
    turn an accepted draft token and a correction of the draft token 99. A token takes 0.01 s with
    drafts and 0.02 s without."""
    rounds, tokens = [], []
    for number, text in enumerate(texts):
        shown_at, id = 0.01 * number + 0.01, number + 1
        drafted, emitted = (), EmittedToken(id, "first", 0.5, text)
        if number % 2:
            drafted, emitted = (DraftToken(id, 0.5, 0.5, True, text=text),), None
        elif number:
            drafted = (DraftToken(99, 0.5, 0.1, False, text=text),)
            emitted = EmittedToken(id, "correction", 0.9, text)
        draft_seconds = 0.001 if number else 0.0
        rounds.append(Round(drafted, emitted, draft_seconds, 0.01, shown_at))
        tokens.append(BaselineToken(id, 2 * shown_at, text, 0.25))
    return Trace(
        instruction=instruction,
        prompt_tokens=5,
        prompt_reused=0,
        pair=pair,
        settings=settings,
        prefill_seconds=0.01,
        rounds=tuple(rounds),
        finish_reason="length",
        cpu_seconds=0.1,
        outside_seconds=0.0,
        baseline=Baseline(tuple(tokens), 0.01, 0.2),
        identical=True,
    )


def at_pace(trace: Trace, seconds: float, baseline_seconds: float) -> Trace:
    """An unwatched race with the same tokens and these seconds of decoding."""

    def paced(events: Sequence, whole: float) -> tuple:
        begin, span = events[0].shown_at, events[-1].shown_at - events[0].shown_at
        times = [begin + whole * (event.shown_at - begin) / span for event in events]
        return tuple(
            map(lambda event, time: dataclasses.replace(event, shown_at=time), events, times)
        )

    tokens = paced(trace.baseline.tokens, baseline_seconds)
    baseline = dataclasses.replace(trace.baseline, tokens=tokens)
    rounds = paced(trace.rounds, seconds)
    return dataclasses.replace(trace, rounds=rounds, baseline=baseline, watched=False)
