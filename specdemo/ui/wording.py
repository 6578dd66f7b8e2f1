"""Says in words what a trace shows, where a request stands, and what went wrong. Plain text."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdemo.bench.costs import measured_costs
from specdemo.errors import CacheFull, ModelError, SpecdemoError
from specdemo.trace import Trace, summarize

if TYPE_CHECKING:
    from specdemo.engine.handle import Waiting

log = logging.getLogger(__name__)

NOTICEABLE = 0.03
"""A speed-up within this of 1 is called neither faster nor slower."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tone` is "faster", "even", "slower", "plain" (nothing to compare) or "stopped"."""

    tone: str
    headline: str
    sentence: str
    reason: str
    identity: str


def verdict(trace: Trace) -> Verdict:
    """The words for a finished or stopped run."""
    summary, baseline = summarize(trace), trace.baseline
    acceptance = "nothing was drafted"
    if summary.acceptance_rate is not None:
        acceptance = f"acceptance rate {percent(summary.acceptance_rate)}"
    tokens = _count(summary.tokens, "token")
    alone = f"{tokens} had been generated."
    if summary.tokens > 1:
        pace = f"{summary.tokens_per_second:.0f} tokens/s after the first"
        end = "The baseline did not run to the end, so there is no comparison."
        alone = f"{tokens}, {pace}; {acceptance}. {end}"
    cut_short = baseline and trace.identical is None and len(baseline.tokens) < summary.tokens
    if trace.finish_reason == "cancelled" or cut_short:
        return Verdict("stopped", "Stopped", alone, "", "")
    if summary.speedup is None:
        if baseline and summary.tokens <= 1:
            alone = "The answer is a single token, so there is nothing to speed up."
        return Verdict("plain", tokens, alone, "", identity(trace))
    gain = summary.speedup - 1.0
    tone = "faster" if gain > NOTICEABLE else "slower" if gain < -NOTICEABLE else "even"
    factor = 1.0 / summary.speedup if tone == "slower" else summary.speedup
    headline = f"{factor:.{2 if factor < 1.2 else 1}f} times {tone}"
    reason = "" if tone == "faster" else why_not(trace)
    others = max(trace.shared_with, baseline.shared_with)
    if others:
        reason += (
            f" The machine was shared with {_count(others, 'other request')}, "
            "so these times are not those of a quiet machine."
        )
    # Both runs are counted from the first token, because both start from the same prefill.
    pace = f"{_count(summary.decoded, 'token')} in {seconds(summary.decode_seconds)}"
    took = seconds(summary.baseline_decode_seconds)
    if summary.decoded == summary.baseline_decoded:
        pace += f" instead of {took}"
    else:
        other = _count(summary.baseline_decoded, "token")
        pace += f", the baseline {other} in {took} (compared per token)"
    same = {True: "both answers are identical", False: "the answers differ", None: "not compared"}
    return Verdict(
        tone,
        "No faster this time" if tone == "even" else headline,
        f"{pace}; {acceptance}; {same[trace.identical]}.",
        reason.strip(),
        identity(trace),
    )


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def seconds(value: float) -> str:
    """A duration for reading: "0.61 s", "12.4 s", "8.5 ms"."""
    if value < 0.095:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.{1 if value >= 10 else 2}f} s"


def percent(share: float) -> str:
    """Halves go up, as in the page's script: 22.5 % must not be 22 here and 23 there."""
    return f"{int(100 * share + 0.5)} %"


def origin(trace: Trace) -> str:
    """What was asked in a run that was measured before, on which machine and when."""
    question = " ".join(trace.instruction.split())
    question = question if len(question) <= 80 else question[:79] + "…"
    where = f" on {trace.machine.partition(',')[0]}" if trace.machine else ""
    return f"Recorded{where}{f', {trace.created[:10]}' if trace.created else ''}: “{question}”"


def why_not(trace: Trace) -> str:
    """Why speculation did not pay in this run: what a round cost, in baseline tokens, and gave."""
    summary, costs = summarize(trace), measured_costs([trace])
    if summary.acceptance_rate is None or costs is None:
        return "Why: nothing was drafted, so there was nothing to gain."
    rounds = max(1, summary.rounds - 1)
    drafting = summary.draft_seconds / rounds / costs.plain
    verifying = summary.verify_seconds / rounds / costs.plain
    whole = max(summary.decode_seconds / rounds / costs.plain, drafting + verifying)
    text = (
        f"Why: a round yielded {summary.tokens_per_round:.2f} tokens and took as long as "
        f"{whole:.2f} tokens of the baseline (drafting {drafting:.2f}, verifying {verifying:.2f}, "
        f"the rest {whole - drafting - verifying:.2f}). "
    )
    if sum(1 for round_ in trace.rounds if round_.drafted) < rounds / 2:
        if trace.pair.draft is None:
            return text + "Most rounds drafted nothing: n-gram lookup found few repetitions."
        return text + "Most rounds drafted nothing: drafting was not worth its cost on this text."
    if costs.draft_step > 0.4 * costs.plain and drafting > 0.8:
        return text + "Drafting is expensive: a smaller draft model or a shorter draft would help."
    if summary.acceptance_rate < 0.5:
        return text + "The acceptance rate is low on this text: a shorter draft would waste less."
    return text + "Rounds yielded too few tokens for their cost."


def identity(trace: Trace) -> str:
    """Whether answer and baseline, decoded independently, have the same tokens; if not, where they
    differ first. A certificate is told of where there is no baseline."""
    if trace.identical:
        return "Identical: two independent runs, with and without drafting, gave the same tokens."
    if trace.identical is False:
        return _difference(trace)
    certificate = trace.certificate
    if trace.baseline is not None or certificate is None:
        return ""
    sure = certificate.certified
    words = f"{'C' if sure else 'Not c'}ertified: one parallel pass over the finished answer chose"
    if sure:
        return f"{words} the same {_count(certificate.checked, 'token')}."
    return f"{words} another token at position {(certificate.first_difference or 0) + 1}."


def _difference(trace: Trace) -> str:
    found, settings = trace.difference, trace.settings
    if found is None:
        shorter = min(len(trace.token_ids), len(trace.baseline.tokens))
        return f"Not identical: one of the two runs ends after {_count(shorter, 'token')}."
    margin = "" if found.margin is None else f", by {found.margin:.3g} logits over the next best"
    text = (
        f"Not identical: at token {found.position + 1} the answer has “{found.text}”, the baseline "
        f"chose “{found.baseline_text}”{margin}."
    )
    if settings.temperature > 0 and settings.coupling == "maximal":
        return text + " The classic acceptance rule keeps the distribution, not the tokens."
    if settings.numerics == "fast":
        return text + " With fast numerics a token can get other logits in a larger forward."
    return text


def queue_place(waiting: Waiting) -> str:
    """What a request waits for: its place in the queue, and the time to expect."""
    if waiting.place == 0:
        return "Compiling the models for this machine, so that both runs are timed at their best"
    ahead = waiting.place - 1
    line = f"In the queue, {_count(ahead, 'request')} ahead" if ahead > 0 else "Next in the queue"
    if waiting.seconds is None:
        return line
    wait = max(1, round(waiting.seconds))
    return line + (f"; about {wait} s" if wait < 90 else f"; about {round(wait / 60)} minutes")


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
