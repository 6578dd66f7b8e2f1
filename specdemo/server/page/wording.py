"""The page's sentences about a trace, a place in the queue, and errors. Plain text and numbers."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shlex
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdemo.bench.costs import predicted_speedups, step_costs
from specdemo.errors import CacheFull, ModelError, SpecdemoError
from specdemo.machine.terminal import counted
from specdemo.pairs.sources import EMBEDDED_DRAFT
from specdemo.runs.judge import Verdict, times
from specdemo.runs.saved_run import MAX_RATE
from specdemo.runs.settings import Settings
from specdemo.runs.trace import WATCHED, Trace, describe_difference, summarize
from specdemo.server.page import race_charts

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting
    from specdemo.pairs.registry import PairInfo

log = logging.getLogger(__name__)

BELIEVED = 1.1  # of the speed-up that would be had if drafts and their check cost nothing
DISAGREEING = 0.1  # share of the measured figure; predictions that differ more are not shown
READING_SHARE = 0.1  # of a run's time; above it, the time from the question on is shown too
LOOP_PHRASE, LOOP_WINDOW, LOOP_TOKENS = 6, 32, 20
"""Tokens. Of 17 answers those that looped had 28 or more such tokens, all others at most 7."""
BUSY = "other programs take"  # as judge.starved begins
OTHERS = "other programs took part of this machine"
SHORT_SECONDS = 0.05  # of decoding; shorter runs that look the same are not compared
LOOP = "This answer repeats itself, so guessing is easy."
GENERATES = {"max_new_tokens", "draft_tokens", "drafter", "temperature", "top_p", "top_k", "seed"}
GENERATES |= {"numerics"}
CUTS = {
    "length": "The answer was cut at {}, the maximum that was set.",
    "context": "The answer was cut at {}: the model's context is full.",
}
UNFINISHED = "Its JSON is not complete: allow more tokens, or bound its strings by maxLength."
TONES = {"faster": "faster", "slower": "slower", "undecided": "unclear"}
EXPECTED = {0.5: ": quick, often wrong", 4.0: ": small, sometimes wrong"}
"""By billions of weights: what to expect of a model with fewer."""


def verdict(trace: Trace) -> dict[str, Any]:
    """The words for a run: `tone` ("faster", "slower", "unclear", "differ", or "neutral" for a
    stopped or looping one), a `headline` of few words or one figure, what it holds for as
    `qualifier`, a `sentence`, `notes` (a list of sentences); for a finished run also `identity`,
    `difference` (the first position where the answers differ, or None), its `races`, the one on
    show first: `speedup`, `counted`, and `why` not, and their `result` as one line."""
    summary = summarize(trace)
    stopped = trace.finish_reason == "cancelled" or (trace.baseline and trace.identical is None)
    acceptance = _acceptance(trace)
    result = trace.verdict
    if stopped or result is None:
        pace = f", {summary.tokens_per_second:.0f} tokens/s after the first"
        words = counted(summary.tokens, "token") + (pace if summary.decoded else "")
        headline = "Stopped" if stopped else "Nothing to compare"
        return _words("neutral", headline, sentence=f"{words}; {acceptance}.")
    notes = _notes(trace)
    told = _result(trace, result)
    identity = "Identical: two independent runs, with and without drafting, gave the same tokens."
    if not trace.identical:
        told = _words("differ", "The answers differ")
        identity = f"Not identical: {describe_difference(trace)}."
        if trace.settings.temperature and trace.settings.coupling == "maximal":
            told = _words("neutral", "Different answers", "as expected")
            identity = "This rule keeps the distribution, not the tokens."
    elif LOOP in notes and told["tone"] == "faster":
        told["tone"] = "neutral"
    return told | {
        "sentence": f"{_pace(trace)}; {acceptance}.",
        "notes": notes,
        "identity": identity,
        "difference": trace.difference,
        "races": [
            {"speedup": pair.speedup, "counted": not pair.why, "why": pair.why}
            for pair in trace.pairs
            if summary.drafted
        ],
        "result": result.sentence,
    }


def _acceptance(trace: Trace) -> str:
    rounds, summary = trace.decoding_rounds, summarize(trace)
    if summary.acceptance_rate is None:
        return "nothing was drafted"
    rate, drafting = f"{summary.acceptance_rate:.0%}", sum(bool(each.drafted) for each in rounds)
    if 2 * drafting < len(rounds):  # then the tokens of a round say nothing about drafts
        return f"drafts in {drafting} of {len(rounds)} rounds, {rate} accepted"
    return f"acceptance rate {rate}, {summary.tokens_per_round:.1f} tokens a round"


def _words(tone: str, headline: str, qualifier: str = "", sentence: str = "") -> dict[str, Any]:
    words = {"tone": tone, "headline": headline, "qualifier": qualifier, "sentence": sentence}
    return words | {"notes": []}


def _result(trace: Trace, result: Verdict) -> dict[str, Any]:
    """The headline of a race whose answers are the same. Every race has a figure; whether it counts
    stands beside it."""
    summary = summarize(trace)
    seconds, baseline = summary.decode_seconds, summary.baseline_decode_seconds or 0.0
    if not summary.drafted:
        return _words("neutral", "Nothing was drafted", "so both runs do the same work")
    if f"{seconds:.2f}" == f"{baseline:.2f}" and seconds < SHORT_SECONDS:
        return _words("neutral", "Too short to matter", counted(summary.tokens, "token"))
    if not result.races:
        busy = "busy machine" if result.why.startswith(BUSY) else result.why
        figure = f"about {summary.speedup or 0.0:.1f}x"
        return _words("unclear", figure, f"in this race; {busy}, no verdict")
    tone, figure = TONES[result.result], times(result.speedup)
    if result.races == 1:
        place = "the one race that counts" if trace.pairs[0].why else "this race"
        return _words(tone, figure, f"in {place}; {result.detail}")
    if result.result == "undecided":
        lead = f"undecided, {result.faster} of {result.races} races were faster: "
        return _words(tone, figure, lead + result.detail)
    return _words(tone, figure, result.detail)


def _pace(trace: Trace) -> str:
    """Seconds of both runs of the race on show, counted from the first token because both start
    from the same prefill."""
    summary = summarize(trace)
    seconds, baseline_seconds = summary.decode_seconds, summary.baseline_decode_seconds or 0.0
    baseline_decoded = summary.baseline_decoded or 0
    if not summary.drafted:  # a difference is the machine's: neither saved nor lost
        return f"{counted(summary.tokens, 'token')} in {seconds:.2f} s and {baseline_seconds:.2f} s"
    words = f"{counted(summary.tokens, 'token')} in {seconds:.2f} s instead of "
    if summary.decoded != baseline_decoded:  # two texts: seconds saved would compare their lengths
        each, other = seconds / summary.decoded, baseline_seconds / baseline_decoded
        words += f"{counted(baseline_decoded + 1, 'token')} in {baseline_seconds:.2f} s"
        return f"{words}: {1000 * each:.0f} ms a token instead of {1000 * other:.0f} ms"
    saved = round(baseline_seconds, 2) - round(seconds, 2)  # as a reader would subtract
    words += f"{baseline_seconds:.2f} s, {abs(saved):.2f} s "
    return words + ("saved" if saved >= 0 else "lost")


def _notes(trace: Trace) -> list[str]:
    """What a reader should know of the answer and of the races that do not count."""
    summary, notes = summarize(trace), []
    if repeats_itself(trace.token_ids):
        notes.append(LOOP)
    if trace.finish_reason in CUTS:
        notes.append(CUTS[trace.finish_reason].format(counted(summary.tokens, "token")))
        if trace.settings.json_schema:
            notes.append(UNFINISHED)
    if not summary.drafted:
        return notes
    result = trace.verdict
    if not (result and result.races):  # the headline has the reason
        bound = summary.tokens_per_round
        if (summary.speedup or 0.0) > BELIEVED * bound:
            notes.append(
                f"With {bound:.1f} tokens a round drafts cannot give more than {bound:.1f}x: "
                "the machine slowed down one of the runs."
            )
        return notes
    if result.interval[0] <= 1:
        cost = summary.tokens_per_round / result.speedup
        notes.append(
            f"A round gives {summary.tokens_per_round:.2f} tokens and takes as long as "
            f"{cost:.2f} tokens of the baseline."
        )
    whys = [pair.why for pair in trace.pairs if pair.why not in ("", WATCHED)]
    reasons = Counter(OTHERS if why.startswith(BUSY) else why for why in whys)
    return notes + [f"{counted(n, 'race')} not counted: {why}." for why, n in reasons.items()]


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Whether most of some LOOP_WINDOW tokens in a row end a phrase that came before: a loop of any
    period, also where a word or a line break differs from one time to the next."""
    seen = set[tuple[int, ...]]()
    repeated = deque[bool](maxlen=LOOP_WINDOW)
    for phrase in zip(*(tokens[start:] for start in range(LOOP_PHRASE)), strict=False):
        repeated.append(phrase in seen)
        seen.add(phrase)
        if sum(repeated) >= LOOP_TOKENS:
            return True
    return False


def curve(trace: Trace) -> dict[str, Any] | None:
    """What the page says about the costs of a run's steps, None if it has too few or they took no
    time: a `sentence` about checking the median number of tokens; the `figure` of their costs; the
    speed-up `predicted` at the run's acceptance rate; and the `measured` one. Nothing is predicted
    that disagrees with what was measured."""
    costs = {cost.tokens: cost for cost in step_costs(trace)}
    sizes = sorted(len(round_.drafted) + 1 for round_ in trace.decoding_rounds if round_.drafted)
    step, figures = costs[1].seconds if 1 in costs else 0.0, summarize(trace)
    if not sizes or step * MAX_RATE < 1 or not figures.decode_seconds:
        return None
    tokens = sizes[len(sizes) // 2]
    several = costs[tokens]
    ratio, low, high = (each / step for each in (several.seconds, several.low, several.high))
    comparable = ratio >= 1 - DISAGREEING  # reading more tokens cannot take less time
    length = f"{ratio:.1f}x as long" if ratio >= 1.05 else "as long"
    spread = counted(several.rounds, "such step")
    if several.rounds > 3:
        spread = f"half of {spread} took {low:.1f}x to {high:.1f}x"
    measured = result.speedup if (result := trace.verdict) and result.races else figures.speedup
    [predicted] = predicted_speedups([trace], [figures.acceptance_rate or 0.0])
    agreeing = measured is None or abs(predicted / measured - 1) <= DISAGREEING
    return {
        "sentence": f"Checking {tokens} tokens took {length} as making one ({spread})."
        if comparable
        else "The machine's speed changed between both runs: their steps cannot be compared.",
        "figure": race_charts.step_costs([*costs.values()], trace),
        "predicted": predicted if comparable and agreeing else None,
        "measured": measured,
    }


def reading(trace: Trace) -> str:
    """Both runs from the question to the last token, where reading the question takes a noticeable
    share of that; else empty. The headline compares only what follows the first token."""
    figures, shown = summarize(trace), trace.baseline.tokens if trace.baseline else ()
    total = figures.time_to_first_token + figures.decode_seconds
    comparable = trace.identical and figures.speedup and figures.drafted
    if not comparable or trace.prefill_seconds <= READING_SHARE * total:
        return ""
    return (
        f"Including the prompt: {times(shown[-1].shown_at / total)}, {total:.2f} s instead of "
        f"{shown[-1].shown_at:.2f} s; first token after {figures.time_to_first_token:.2f} s, "
        f"without drafts {shown[0].shown_at:.2f} s."
    )


def program(trace: Trace) -> dict[str, str]:
    """The question and its settings as code: `python`, and `curl` for /generate of the page whose
    address takes the place of {page}. It has the settings GENERATES."""
    usual, settings = dataclasses.asdict(Settings()), dataclasses.asdict(trace.settings)
    changed = {name: value for name, value in settings.items() if value != usual[name]}
    arguments = [repr(trace.instruction), *(f"{name}={value!r}" for name, value in changed.items())]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    body = {"instruction": trace.instruction}
    body |= {name: value for name, value in changed.items() if name in GENERATES}
    url = "$page/gradio_api/call/v2/generate"
    missing = ", ".join(sorted(changed.keys() - GENERATES))
    note = f"# /generate has no {missing}\n" if missing else ""
    return {
        "python": f"import specdemo\n\npair = specdemo.load({trace.pair.name!r})\n"
        f"print(pair.generate(\n{lines}))",
        "curl": f"page={{page}}\n{note}id=$(curl -s {url} -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body))} | cut -d'\"' -f4)\ncurl -sN {url}/$id",
    }


def origin(trace: Trace, when: str) -> str:
    """The machine, the date and the models of a run."""
    place = f" on {trace.machine}" if trace.machine else ""
    day = f", {trace.created[:10]}" if trace.created else ""
    return f"{when}{place}{day}. Model {trace.pair.target}, draft: {draft_of(trace.pair)}."


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
    return (
        f"{words}. Draft: {draft_of(info)}. We measure speed and whether answers match, not truth"
    )


def draft_of(info: PairInfo) -> str:
    """What drafts, in words."""
    if info.draft == EMBEDDED_DRAFT.name:
        return "a head trained for this model"
    return info.draft or "n-gram lookup (no draft model)"


def queue_place(waiting: Waiting) -> str:
    """A request's place in the queue and its expected wait, as one line."""
    if waiting.place == 0:
        return "Compiling the models for this machine, so that both runs are timed at their best"
    line = f"In the queue, {counted(waiting.place - 1, 'request')} ahead"
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
