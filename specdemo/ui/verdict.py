"""Says in words what a trace shows: how much faster, why not, and whether the answers are the same. No markup."""

from __future__ import annotations

from dataclasses import dataclass

from specdemo.trace import Summary, Trace, summarize
from specdemo.ui.costs import measured_costs

NOTICEABLE = 0.03
"""A speed-up within this of 1 is called neither faster nor slower."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Plain text. `tone` is "faster", "even", "slower", "plain" (nothing to compare) or "stopped"."""

    tone: str
    headline: str
    sentence: str
    reason: str
    identity: str


def verdict(trace: Trace) -> Verdict:
    """The words for a finished or stopped run."""
    summary = summarize(trace)
    cut_short = trace.baseline and trace.identical is None and len(trace.baseline.tokens) < summary.tokens
    if trace.finish_reason == "cancelled" or cut_short:
        return Verdict("stopped", "Stopped", _speculative_only(summary), "", "")
    if summary.speedup is None:
        words = _speculative_only(summary)
        if trace.baseline is not None and summary.tokens <= 1:
            words = "The answer is a single token, so there is nothing to speed up: ask for something longer."
        return Verdict("plain", _count(summary.tokens), words, "", identity(trace))
    gain = summary.speedup - 1.0
    tone = "faster" if gain > NOTICEABLE else "slower" if gain < -NOTICEABLE else "even"
    reasons = ["" if tone == "faster" else why_not(trace), shared(trace)]
    return Verdict(tone, _headline(summary.speedup, tone), _sentence(trace, summary),
                   " ".join(filter(None, reasons)), identity(trace))


def shared(trace: Trace) -> str:
    """That others' requests were at work meanwhile, "" when none was."""
    others = max(trace.shared_with, trace.baseline.shared_with if trace.baseline else 0)
    if not others:
        return ""
    return (f"The machine was shared with {others} other request{'s' if others > 1 else ''} meanwhile, so these seconds "
            "say less than those of a quiet one.")


def _headline(speedup: float, tone: str) -> str:
    if tone == "even":
        return "No faster this time"
    factor = speedup if tone == "faster" else 1.0 / speedup
    return f"{factor:.2f} times {tone}" if factor < 1.2 else f"{factor:.1f} times {tone}"


def _count(tokens: int) -> str:
    return f"{tokens} token" + ("" if tokens == 1 else "s")


def seconds(value: float) -> str:
    """A duration for reading: "0.61 s", "12.4 s", "850 µs"."""
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 0.095:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def _guesses(summary: Summary) -> str:
    if summary.acceptance_rate is None:
        return "nothing was drafted"
    # Halves go up, as the script rounds them on the lane: 22.5 % must not be 22 here and 23 there.
    return f"the draft guessed {int(100 * summary.acceptance_rate + 0.5)} % right"


def _sentence(trace: Trace, summary: Summary) -> str:
    """The comparison; seconds run from the first token, because both runs start from the same prompt."""
    after = summary.tokens - len(trace.rounds[0].tokens)
    plain_after = len(trace.baseline.tokens) - 1
    spent, plain = summary.decode_seconds, summary.baseline_decode_seconds
    if after == plain_after:
        pace = f"{_count(after)} in {seconds(spent)} instead of {seconds(plain)}"
    else:
        pace = (f"{_count(after)} in {seconds(spent)}, against {_count(plain_after)} in {seconds(plain)} "
                "(compared a token)")
    same = {True: "both answers are identical", False: "the answers differ", None: "the answers were not compared"}
    return f"{pace}; {_guesses(summary)}; {same[trace.identical]}."


def _speculative_only(summary: Summary) -> str:
    if summary.tokens == 0:
        return "Nothing had been generated yet."
    if summary.tokens == 1:
        return "One token had been generated."
    return (f"{_count(summary.tokens)}, {summary.tokens_per_second:.0f} tokens/s after the first; "
            f"{_guesses(summary)}. Plain decoding was not run to the end, so there is no comparison.")


def why_not(trace: Trace) -> str:
    """Why speculation did not pay in this run: what a round cost and what it brought, in plain tokens."""
    summary, costs = summarize(trace), measured_costs(trace)
    if summary.acceptance_rate is None or costs is None:
        return "Why: nothing was drafted, so every token was decoded plainly, and there was nothing to gain."
    rounds = max(1, summary.rounds - 1)
    drafting = summary.draft_seconds / rounds / costs.plain
    verifying = summary.verify_seconds / rounds / costs.plain
    outside = max(0.0, summary.decode_seconds / rounds / costs.plain - drafting - verifying)
    text = (f"Why: a round brought {summary.tokens_per_round:.2f} tokens and took as long as "
            f"{drafting + verifying + outside:.2f} plain ones (drafting {drafting:.2f}, verifying {verifying:.2f}, "
            f"the rest {outside:.2f}). ")
    if sum(1 for r in trace.rounds if r.drafted) < rounds / 2:
        return text + ("Most rounds had nothing to guess: without a draft model, guesses are copied from the text so "
                       "far, and this text repeats little." if trace.pair.draft is None else
                       "Most rounds had no draft: guessing was not worth its cost on this text.")
    if costs.ratio > 0.4 and drafting > 0.8:
        return text + "The draft is too dear for what it guesses: a smaller draft, or fewer draft tokens, would help."
    if summary.acceptance_rate < 0.5:
        return text + "The draft guessed too few right on this text: fewer draft tokens would waste less."
    return text + "Rounds were too short for what they cost here."


def identity(trace: Trace) -> str:
    """Whether the two answers are the same tokens, how that was checked, and where a near tie was rounded otherwise."""
    parts = []
    certificate, baseline = trace.certificate, trace.baseline
    if trace.identical:
        parts.append("Identical: both runs gave the same tokens.")
    elif trace.identical is False:
        parts.append(_difference(trace))
    if certificate is not None and certificate.certified:
        parts.append(f"Certified: one parallel forward over the finished answer chose each of its "
                     f"{certificate.checked} tokens again ({seconds(certificate.seconds)}).")
    elif certificate is not None:
        where = "" if certificate.first_difference is None else f" from token {certificate.first_difference + 1} on"
        parts.append(f"Not certified: one parallel forward over the finished answer chose otherwise{where}.")
    for tie in baseline.near_ties[:1] if baseline else ():
        more = len(baseline.near_ties) - 1
        parts.append(f"Plain decoding, timed one token at a time, rounds a near tie the other way at token "
                     f"{tie.position + 1} (margin {tie.margin:.3g} logits)"
                     + (f", and {more} more like it" if more else "")
                     + "; so seconds a token are compared.")
    return " ".join(parts)


def _difference(trace: Trace) -> str:
    ours, plain = trace.token_ids, tuple(t.id for t in trace.baseline.tokens) if trace.baseline else ()
    where = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), min(len(ours), len(plain)))
    why = (" Sampling draws its tokens at random, so two runs need not agree." if trace.settings.temperature > 0
           else " With fast numerics the same token may get other logits in a bigger forward."
           if trace.settings.numerics == "fast" else "")
    return f"Not identical: the answers part at token {where + 1}.{why}"
