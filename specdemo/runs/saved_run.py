"""Reads a saved run, which comes from strangers: what it says is computed with and drawn."""

from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.errors import BadInput
from specdemo.options import wrong_parameter
from specdemo.runs.settings import MAX_LOGPROBS, MAX_NEW_TOKENS
from specdemo.runs.trace import MAX_COUNT, MAX_SECONDS, MAX_TEXT, Trace, over, summarize
from specdemo.text.tokenizer import StopStrings

MAX_DRAFTED = 64  # tokens of a round
MAX_SPEEDUP = 1e9  # more than clocks of nanoseconds can give two runs of a few tokens
MAX_RATE = 1e12  # tokens a second

_READER = TypeAdapter(Trace)


def from_json(text: str | bytes) -> Trace:
    """Read the JSON of a trace, of this version or an earlier one; unknown fields are ignored.
    Raises BadInput, naming the field, for anything else, and for what no run can be."""
    try:
        trace = _READER.validate_json(text, strict=True)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise BadInput("The file is not JSON; choose a trace that this demo saved.") from None
        why = wrong_parameter(error.errors(), whole="it")
        raise BadInput(f"The file is not a trace of schema 1: {why}") from None
    if problem := _problem(trace):
        raise BadInput(f"The file is not a trace: {problem}.")
    stops = StopStrings(trace.settings.stop)
    for round_ in trace.rounds:
        round_.text = stops.push("".join(token.text for token in round_.tokens))
    if trace.rounds:
        trace.rounds[-1].text += stops.rest()
    # Earlier versions kept the watched run of a repeated race, which does not count.
    counted = any(not race.why for race in trace.repeats)
    return replace(trace, repeats=()) if trace.watched and counted else trace


def _problem(trace: Trace) -> str:
    """Why no run can be this one; "" if one can."""
    summary, baseline = summarize(trace), trace.baseline.tokens if trace.baseline else ()
    rates = summary.tokens_per_second, summary.baseline_tokens_per_second or 0.0
    repeats = (over(race.baseline_seconds, race.seconds) for race in trace.repeats)
    speedups = filter(None, (summary.speedup, *repeats))
    for number, round_ in enumerate(trace.rounds):
        if not _possible(round_, number):
            return f"no run has such a round {number}"
    for events in (trace.rounds, baseline):
        times = [event.shown_at for event in events]
        if times != sorted(times):
            return "its times go back"
    if summary.tokens > MAX_NEW_TOKENS:
        return f"it has {summary.tokens} tokens, and a run has at most {MAX_NEW_TOKENS}"
    same = trace.baseline and tuple(token.id for token in baseline) == trace.token_ids
    if trace.identical and not same:
        return "it calls two answers identical that differ"
    if max(rates) > MAX_RATE:
        return f"it makes more than {MAX_RATE:,.0f} tokens a second"
    if not all(1 / MAX_SPEEDUP < ratio < MAX_SPEEDUP for ratio in speedups):
        return f"one of its runs is more than {MAX_SPEEDUP:,.0f} times as fast as the other"
    return ""


def _possible(round_: Round, number: int) -> bool:
    """Whether decoding can yield this as its round `number`, from 0. The engine's own classes have
    no limits in their types."""
    drafted, emitted = round_.drafted, round_.emitted
    guesses = *drafted, *round_.candidates
    tokens: list[DraftToken | EmittedToken] = [*guesses, *([emitted] if emitted else [])]
    probabilities = [token.target_probability for token in tokens]
    probabilities += [token.draft_probability for token in guesses]
    times = round_.draft_seconds, round_.verify_seconds, round_.shown_at
    if emitted and emitted.kind == "first" and (number or drafted):
        return False
    return (
        bool(round_.tokens)
        and len(guesses) <= MAX_DRAFTED
        and len(round_.logprobs) in (0, len(round_.tokens))
        and all(len(logprobs.top) <= MAX_LOGPROBS for logprobs in round_.logprobs)
        and all(token.accepted for token in drafted[: round_.accepted])
        and all(0 <= token.id <= MAX_COUNT for token in tokens)
        and all(len(token.text) <= MAX_TEXT for token in tokens)
        and all(0 <= share <= 1.001 for share in probabilities if share is not None)
        and all(0 <= seconds <= MAX_SECONDS for seconds in times)
    )
