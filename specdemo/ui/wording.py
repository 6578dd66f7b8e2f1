"""Says in words what a trace shows, where a request stands, and what went wrong. Plain text."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdemo.bench.costs import measured_costs
from specdemo.errors import CacheFull, ModelError, SpecdemoError
from specdemo.terminal import where
from specdemo.trace import Trace, summarize

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting

log = logging.getLogger(__name__)

NOTICEABLE = 0.03
"""A speed-up within this of 1 is called neither faster nor slower."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tone` is "faster", "even", "slower" or "stopped" (nothing to compare)."""

    tone: str
    headline: str
    sentence: str
    reason: str = ""
    identity: str = ""


def verdict(trace: Trace) -> Verdict:
    """The words for a finished or stopped run."""
    summary, baseline = summarize(trace), trace.baseline
    acceptance = "nothing was drafted"
    if summary.acceptance_rate is not None:
        acceptance = f"acceptance rate {summary.acceptance_rate:.0%}"
    stopped = trace.finish_reason == "cancelled" or (baseline and trace.identical is None)
    if stopped or summary.speedup is None:
        pace = f"{summary.tokens_per_second:.0f} tokens/s after the first"
        words = f"{_count(summary.tokens, 'token')}, {pace}; {acceptance}."
        return Verdict("stopped", "Stopped" if stopped else "Nothing to compare", words)
    gain = summary.speedup - 1.0
    tone = "faster" if gain > NOTICEABLE else "slower" if gain < -NOTICEABLE else "even"
    factor = 1.0 / summary.speedup if tone == "slower" else summary.speedup
    reason = "" if tone == "faster" else why_not(trace)
    if others := max(trace.shared_with, baseline.shared_with):
        reason += (
            f" The machine was shared with {_count(others, 'other request')}, "
            "so these times are not those of a quiet machine."
        )
    # Both runs are counted from the first token, because both start from the same prefill.
    pace = f"{_count(summary.decoded, 'token')} in {summary.decode_seconds:.3g} s instead of "
    if summary.decoded != summary.baseline_decoded:
        pace += f"{_count(summary.baseline_decoded, 'token')} in "
    same = "both answers are identical" if trace.identical else "the answers differ"
    return Verdict(
        tone,
        "No faster this time" if tone == "even" else f"{factor:.2f} times {tone}",
        f"{pace}{summary.baseline_decode_seconds:.3g} s; {acceptance}; {same}.",
        reason.strip(),
        identity(trace),
    )


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def origin(trace: Trace) -> str:
    """What was asked in a run that was measured before, on which machine and when."""
    place = f" on {trace.machine.partition(',')[0]}" if trace.machine else ""
    day = f", {trace.created[:10]}" if trace.created else ""
    return f"Recorded{place}{day}: “{' '.join(trace.instruction.split())[:80]}”"


def why_not(trace: Trace) -> str:
    """Why speculation did not pay in this run: what a round cost, in baseline tokens, and gave."""
    summary, costs = summarize(trace), measured_costs([trace])
    if summary.acceptance_rate is None or costs is None:
        return "Why: nothing was drafted, so there was nothing to gain."
    rounds = max(1, summary.rounds - 1)
    drafting = summary.draft_seconds / rounds / costs.plain
    verifying = summary.verify_seconds / rounds / costs.plain
    whole = max(summary.decode_seconds / rounds / costs.plain, drafting + verifying)
    return (
        f"Why: a round yielded {summary.tokens_per_round:.2f} tokens and took as long as "
        f"{whole:.2f} tokens of the baseline (drafting {drafting:.2f}, verifying {verifying:.2f}, "
        f"the rest {whole - drafting - verifying:.2f})."
    )


def identity(trace: Trace) -> str:
    """Whether answer and baseline, decoded independently, have the same tokens; if not, where they
    differ first."""
    if trace.identical is None:
        return ""
    if trace.identical:
        return "Identical: two independent runs, with and without drafting, gave the same tokens."
    text = f"Not identical: {where(trace.difference) or 'one of the two runs ends early'}."
    if trace.settings.temperature > 0 and trace.settings.coupling == "maximal":
        return text + " The classic acceptance rule keeps the distribution, not the tokens."
    if trace.settings.numerics == "fast":
        return text + " With fast numerics a token can get other logits in a larger forward."
    return text


def queue_place(waiting: Waiting) -> str:
    """What a request waits for: its place in the queue, and the time to expect."""
    if waiting.place == 0:
        return "Compiling the models for this machine, so that both runs are timed at their best"
    line = f"In the queue, {_count(waiting.place - 1, 'request')} ahead"
    return line if waiting.seconds is None else f"{line}; about {max(1, round(waiting.seconds))} s"


_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+)+/([\w.@+-]+)")


def error_sentence(error: BaseException) -> str:
    """One sentence for the page, without paths of this machine. What the sentence leaves out is
    logged."""
    if isinstance(error, SpecdemoError) and not isinstance(error, (ModelError, CacheFull)):
        return _PATH.sub(r"\1", str(error))
    log.error("The page shows only a sentence of this.", exc_info=error)
    match error:
        case ModelError():
            return "The model could not be run for this request; please ask again."
        case CacheFull():
            return "The KV cache was full and this request had to be given up; please ask again."
        case MemoryError():
            return "The machine is out of memory; ask for a shorter answer, or again in a moment."
        case OSError():
            return "A file could not be written or read on the server: its disk may be full."
    name = type(error).__name__
    return f"Something went wrong inside ({name}); the server's log has the details."
