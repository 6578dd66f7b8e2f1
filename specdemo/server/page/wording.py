"""The page's sentences about a trace, a place in the queue, and errors. Plain text and numbers."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdemo.bench.costs import predicted_speedups, token_seconds
from specdemo.errors import CacheFull, ModelError, SpecdemoError
from specdemo.runs.trace import Repeat, Trace, describe_difference, summarize

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting
    from specdemo.pairs.registry import PairInfo

log = logging.getLogger(__name__)

NOTICEABLE = 0.03  # one race's speed-up within this of 1 is called neither faster nor slower
LOOP_PERIOD, LOOP_TOKENS = 48, 24
LOOP = "This answer repeats itself, so guessing is easy."
CUTS = {
    "length": "The answer was cut at {}, the maximum that was set.",
    "context": "The answer was cut at {}: the model's context is full.",
}
EXPECTED = {0.5: ": quick, often wrong", 4.0: ": small, sometimes wrong"}
"""By billions of weights: what to expect of a model with fewer."""
COMPILING = "models were loaded or compiled"


def verdict(trace: Trace, again: bool = False) -> dict[str, Any]:
    """The words for a run: `tone` ("faster", "slower", "unclear", "differ", or "neutral" for a
    stopped or looping one), `headline`, `sentence`, `notes` (a list of sentences); for a finished
    run also `identity`, `difference` (the first position where the answers differ, or None) and its
    `races`, the one on show first: `speedup`, `counted`, and `why` not. `again`: it is being
    repeated."""
    summary = summarize(trace)
    stopped = trace.finish_reason == "cancelled" or (trace.baseline and trace.identical is None)
    acceptance = "nothing was drafted"
    if summary.acceptance_rate is not None:
        acceptance = f"acceptance rate {summary.acceptance_rate:.0%}"
    if stopped or summary.speedup is None:
        pace = f"{summary.tokens_per_second:.0f} tokens/s after the first"
        words = f"{_count(summary.tokens, 'token')}, {pace}; {acceptance}."
        headline = "Stopped" if stopped else "Nothing to compare"
        return {"tone": "neutral", "headline": headline, "sentence": words, "notes": []}
    notes = _notes(trace)
    identity = "Identical: two independent runs, with and without drafting, gave the same tokens."
    if not trace.identical:
        tone, headline = "differ", "The answers differ"
        identity = f"Not identical: {describe_difference(trace)}."
        if trace.settings.temperature and trace.settings.coupling == "maximal":
            tone, headline = "neutral", "Different answers, as expected"
            identity = "This rule keeps the distribution, not the tokens."
    else:
        tone, headline = _headline(trace)
        if LOOP in notes and tone == "faster":
            tone = "neutral"
    return {
        "tone": tone,
        "headline": headline + (", so far" if again else ""),
        "sentence": f"{_pace(trace)}; {acceptance}.",
        "notes": notes,
        "identity": identity,
        "difference": trace.difference,
        "races": _races(trace),
    }


def _headline(trace: Trace) -> tuple[str, str]:
    """Tone and headline of a comparison. A difference is claimed only where all races agree, to
    the two digits that are shown."""
    result = trace.verdict
    if result is None:
        return "unclear", "Not counted"
    slowest, fastest = (round(speedup, 2) for speedup in result.range)
    alike = result.races == 1 and abs(result.speedup - 1) <= NOTICEABLE
    if not alike and slowest > 1:
        return "faster", f"{result.speedup:.2f} times faster"
    if not alike and fastest < 1:
        return "slower", f"{1 / result.speedup:.2f} times slower"
    return "unclear", "No clear difference"


def _pace(trace: Trace) -> str:
    """Seconds of both runs of the race on show, counted from the first token because both start
    from the same prefill, and the range of the races."""
    summary, result = summarize(trace), trace.verdict
    seconds, baseline_seconds = summary.decode_seconds, summary.baseline_decode_seconds or 0.0
    baseline_decoded = summary.baseline_decoded or 0
    words = f"{_count(summary.tokens, 'token')} in {seconds:.2f} s instead of "
    if summary.decoded != baseline_decoded:
        words += f"{_count(baseline_decoded + 1, 'token')} in "
    saved = round(baseline_seconds, 2) - round(seconds, 2)  # as a reader would subtract
    words += f"{baseline_seconds:.2f} s, {abs(saved):.2f} s {'saved' if saved >= 0 else 'lost'}"
    if result and result.races > 1:
        slowest, fastest = result.range
        words += f"; {slowest:.2f} to {fastest:.2f} times as fast in {result.races} races"
    return words


def _notes(trace: Trace) -> list[str]:
    """What a reader should know of the answer and of the races that do not count."""
    summary, notes = summarize(trace), []
    if repeats_itself(trace.token_ids):
        notes.append(LOOP)
    if trace.finish_reason in CUTS:
        notes.append(CUTS[trace.finish_reason].format(_count(summary.tokens, "token")))
    result = trace.verdict
    if result and result.range[0] <= 1:
        cost = summary.tokens_per_round / result.speedup
        notes.append(
            f"A round yielded {summary.tokens_per_round:.2f} tokens and took as long as "
            f"{cost:.2f} tokens of the baseline."
        )
    every: list[Trace | Repeat] = [trace, *trace.repeats]
    disturbed = [race for race in every if race.disturbed]
    if disturbed:
        others = max(trace.others, *(race.shared_with for race in disturbed))
        causes = [COMPILING] if any(race.compiling for race in disturbed) else []
        if others:
            causes.append(f"the machine was shared with {_count(others, 'other request')}")
        number = _count(len(disturbed), "race")
        notes.append(f"{number} not counted: meanwhile {' and '.join(causes)}.")
    return notes


def _races(trace: Trace) -> list[dict[str, Any]]:
    """Speed-up of each race, per token, and whether it counts."""
    counted = bool(trace.verdict)
    shown = {"speedup": summarize(trace).speedup, "counted": counted, "why": _why(trace)}
    repeats = [
        {
            "speedup": race.baseline_seconds / race.seconds,
            "counted": counted and not (race.disturbed or race.watched),
            "why": _why(race),
        }
        for race in trace.repeats
    ]
    return [shown, *repeats]


def _why(race: Trace | Repeat) -> str:
    """Why a race does not count, if it does not."""
    if race.compiling:
        return COMPILING
    if race.disturbed:
        return "other requests ran beside it"
    return "showing it live slows the models"


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Whether the same few tokens come again and again: at least LOOP_TOKENS in a row, each as it
    was one period earlier, and at least twice the period."""
    for period in range(1, LOOP_PERIOD + 1):
        alike = 0
        for earlier, later in zip(tokens, tokens[period:], strict=False):
            alike = alike + 1 if earlier == later else 0
            if alike >= max(LOOP_TOKENS, 2 * period):
                return True
    return False


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def curve(trace: Trace) -> dict[str, Any] | None:
    """What the page says about the run's cost model, None without one: a `sentence` about checking
    the median number of `tokens`; the `token_seconds` of one token; the `predicted` speed-up, at
    the run's acceptance `rate` and `by_rate` of 0, 1, ... 100 %; and the `measured` one."""
    if trace.costs is None:
        return None
    sizes = sorted(len(round_.drafted) + 1 for round_ in trace.decoding_rounds if round_.drafted)
    tokens = min(max(sizes[len(sizes) // 2] if sizes else 4, 2), len(trace.costs.target))
    seconds = token_seconds(trace)
    ratio = trace.costs.target[tokens - 1] / seconds
    figures = summarize(trace)
    rates = [figures.acceptance_rate or 0.0, *(percent / 100 for percent in range(101))]
    speedups = predicted_speedups(trace, rates)
    return {
        "sentence": f"Checking {tokens} tokens takes {ratio:.1f} times as long as making one.",
        "tokens": tokens,
        "token_seconds": seconds,
        "predicted": speedups[0] if speedups else None,
        "measured": (trace.verdict or figures).speedup,
        "rate": figures.acceptance_rate,
        "by_rate": [round(speedup, 3) for speedup in speedups[1:]],
    }


def origin(trace: Trace, when: str) -> str:
    """The machine, the date and the models of a run."""
    place = f" on {trace.machine}" if trace.machine else ""
    day = f", {trace.created[:10]}" if trace.created else ""
    draft = trace.pair.draft or "n-gram lookup"
    return f"{when}{place}{day}. Model {trace.pair.target}, draft: {draft}."


def recorded_name(trace: Trace) -> str:
    """A recorded race in the page's list of them."""
    return f"{trace.pair.target.removesuffix('-Instruct')}: {trace.instruction}"


def model_line(info: PairInfo) -> str:
    """What answers, and what to expect of it, by the number of weights in its name."""
    words = info.target
    if size := re.search(r"(\d+(?:\.\d+)?)([bm])\b", info.target, re.IGNORECASE):
        number, unit = size[1], {"b": "billion", "m": "million"}[size[2].lower()]
        words += f", {number} {unit} weights"
        billions = float(number) / (1 if unit == "billion" else 1000)
        words += next((note for limit, note in EXPECTED.items() if billions < limit), "")
    draft = info.draft or "n-gram lookup (no draft model)"
    return f"{words}. Drafts by {draft}. We measure speed and whether answers match, not truth"


def queue_place(waiting: Waiting) -> str:
    """A request's place in the queue and its expected wait, as one line."""
    if waiting.place == 0:
        return "Compiling the models for this machine, so that both runs are timed at their best"
    line = f"In the queue, {_count(waiting.place - 1, 'request')} ahead"
    return line if waiting.seconds is None else f"{line}; about {max(1, round(waiting.seconds))} s"


_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+)+/([\w.@+-]+)")


def error_sentence(error: BaseException) -> str:
    """One sentence for the page, without paths of this machine; the rest is logged."""
    if isinstance(error, SpecdemoError) and not isinstance(error, (ModelError, CacheFull)):
        return _PATH.sub(r"\1", str(error))
    log.error("The page shows only a sentence of this.", exc_info=error)
    if isinstance(error, (ModelError, CacheFull)):
        return "The model could not be run for this request; please ask again."
    if isinstance(error, OSError):
        return "A file could not be written or read on the server: its disk may be full."
    name = type(error).__name__
    return f"Something went wrong inside ({name}); the server's log has the details."
