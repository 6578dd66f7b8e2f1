"""The page's sentences about a trace, a place in the queue, and errors. Plain text and numbers."""

from __future__ import annotations

import logging
import math
import re
from statistics import median
from typing import TYPE_CHECKING, Any

from specdemo.bench.costs import (
    Speed,
    measured_speed,
    predicted_speed,
    predicted_speedups,
    token_seconds,
)
from specdemo.errors import CacheFull, ModelError, SpecdemoError
from specdemo.runs import race as races
from specdemo.runs.trace import Trace, summarize, where

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting

log = logging.getLogger(__name__)

NOTICEABLE = 0.03  # a speed-up within this of 1 is called neither faster nor slower
AGREED = 0.05  # prediction and measurement that differ by less need no explanation


def verdict(trace: Trace, again: bool = False) -> dict[str, str]:
    """The words for a run: `tone` ("faster", "even", "slower", "stopped"), `headline`, `sentence`;
    for a finished run `reason` and `identity` too. `again`: the race is being repeated."""
    summary, baseline = summarize(trace), trace.baseline
    acceptance = "nothing was drafted"
    if summary.acceptance_rate is not None:
        acceptance = f"acceptance rate {summary.acceptance_rate:.0%}"
    stopped = trace.finish_reason == "cancelled" or (baseline and trace.identical is None)
    if stopped or summary.speedup is None:
        pace = f"{summary.tokens_per_second:.0f} tokens/s after the first"
        words = f"{_count(summary.tokens, 'token')}, {pace}; {acceptance}."
        headline = "Stopped" if stopped else "Nothing to compare"
        return {"tone": "stopped", "headline": headline, "sentence": words}
    found = races.verdict(trace)
    speedup = found.speedup if found else summary.speedup
    gain = speedup - 1.0
    tone = "faster" if gain > NOTICEABLE else "slower" if gain < -NOTICEABLE else "even"
    range_ = found.range if found else ()
    factor, *ends = (1.0 / one if tone == "slower" else one for one in (speedup, *range_))
    headline = "No faster this time" if tone == "even" else f"{factor:.2f} times {tone}"
    reason = ""
    if tone != "faster":
        cost = summary.tokens_per_round / speedup
        reason = (
            f"Why: a round yielded {summary.tokens_per_round:.2f} tokens and took as long as "
            f"{cost:.2f} tokens of the baseline. "
        )
    repeated, times = "", [(summary.decode_seconds, summary.baseline_decode_seconds)]
    if found is None:
        tone, headline = "even", f"Not counted: {headline}"
    elif trace.repeats:
        times = races.counted(trace)
        ends = " to ".join(f"{end:.2f}" for end in sorted(ends))
        repeated = f"{ends} in {_count(found.races, 'race')}. "
    # Both runs are counted from the first token, because both start from the same prefill.
    seconds, baseline_seconds = map(median, zip(*times, strict=True))
    pace = f"{_count(summary.decoded, 'token')} in {seconds:.3g} s instead of "
    if summary.decoded != summary.baseline_decoded:
        pace += f"{_count(summary.baseline_decoded, 'token')} in "
    same = "both answers are identical"
    identity = "Identical: two independent runs, with and without drafting, gave the same tokens."
    if not trace.identical:
        same = "the answers differ"
        identity = f"Not identical: {where(trace.difference)}."
    return {
        "tone": tone,
        "headline": headline + ", so far" * again,
        "sentence": f"{repeated}{pace}{baseline_seconds:.3g} s; {acceptance}; {same}.",
        "reason": reason + _company(trace),
        "identity": identity,
    }


def _company(trace: Trace) -> str:
    """What else this process did during the races that do not count, as a sentence."""
    disturbed = [race for race in (trace, *trace.repeats) if race.disturbed]
    if not disturbed:
        return ""
    others = max(trace.others, *(one.shared_with for one in disturbed))
    causes = ["models were loaded or compiled"] * any(one.compiling for one in disturbed)
    causes += [f"the machine was shared with {_count(others, 'other request')}"] * bool(others)
    return f"{_count(len(disturbed), 'race')} not counted: meanwhile {' and '.join(causes)}."


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def curve(trace: Trace) -> dict[str, Any] | None:
    """What the page says about the run's cost model, None without one: a `sentence` about checking
    the median number of `tokens`; the seconds of `one`; the `predicted` speed-up, at the run's
    acceptance `rate` and `by_rate` of 0, 1, ... 100 %; the `measured` one, and what `differs`."""
    if trace.costs is None:
        return None
    sizes = sorted(len(round_.drafted) + 1 for round_ in trace.decoding_rounds if round_.drafted)
    tokens = min(max(sizes[len(sizes) // 2] if sizes else 4, 2), len(trace.costs.target))
    one = token_seconds(trace)
    ratio = trace.costs.target[tokens - 1] / one
    predicted, measured, found = predicted_speed(trace), measured_speed(trace), races.verdict(trace)
    speedups = predicted_speedups(trace, [percent / 100 for percent in range(101)])
    return {
        "sentence": f"Checking {tokens} tokens takes {ratio:.1f} times as long as making one.",
        "tokens": tokens,
        "one": one,
        "predicted": predicted and predicted.speedup,
        "measured": found.speedup if found else measured and measured.speedup,
        "differs": difference(predicted, measured) if predicted and measured else "",
        "rate": summarize(trace).acceptance_rate,
        "by_rate": [round(speedup, 3) for speedup in speedups],
    }


def difference(predicted: Speed, measured: Speed) -> str:
    """What makes prediction and measurement differ most, if they do noticeably."""
    if abs(predicted.speedup / measured.speedup - 1) <= AGREED:
        return ""
    tokens = measured.tokens_per_round / predicted.tokens_per_round
    seconds = measured.round_seconds / predicted.round_seconds
    both = measured, predicted
    if abs(math.log(tokens)) >= abs(math.log(seconds)):
        words, figures = "yielded", [f"{one.tokens_per_round:.2f} tokens" for one in both]
    else:
        words, figures = "took", [f"{1000 * one.round_seconds:.3g} ms" for one in both]
    return f"They differ because a round {words} {figures[0]}, not {figures[1]} as predicted."


def origin(trace: Trace, when: str = "Recorded") -> str:
    """The machine, the date, the pair and the question of a run."""
    place = f" on {trace.machine}" if trace.machine else ""
    day = f", {trace.created[:10]}" if trace.created else ""
    question = " ".join(trace.instruction.split())[:80]
    return f"{when}{place}{day}, pair {trace.pair.name}: “{question}”"


def while_loading(line: str, ahead: int) -> str:
    """What happens to the pair of a waiting question (`line`), and the question's place."""
    place = f"{_count(ahead, 'request')} ahead" if ahead else "Your question is next"
    return f"{line}. {place}."


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
