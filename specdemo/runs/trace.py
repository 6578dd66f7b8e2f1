"""The record of one run: dataclasses, their summary, and JSON in both directions."""

import dataclasses
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, count, islice, pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from specdemo.engine.messages import DraftToken, EmittedToken, Logprobs, Round, Source
from specdemo.errors import BadInput
from specdemo.options import wrong_parameter
from specdemo.pairs.registry import PairInfo
from specdemo.runs.judge import PairedRuns, Verdict, judge, starved
from specdemo.runs.settings import MAX_LOGPROBS, MAX_NEW_TOKENS, Settings
from specdemo.text.tokenizer import StopStrings
from specdemo.text.tools import FunctionCall

MAX_TEXT = 1000  # characters of a token; public vocabularies have up to 256
MAX_DRAFTED = 64
MAX_RACES = 64
MAX_COUNT = 2**31 - 1
MAX_SECONDS = 1e6  # eleven days
MAX_SPEEDUP = 1e9  # more than clocks of nanoseconds can give two runs of a few tokens
MAX_RATE = 1e12  # tokens a second

COMPILING = "models were loaded or compiled"
WATCHED = "showing it live slows the models"

STYLES = {
    "accepted": "background: #00785a33",
    "forced": "background: #8a3fa033",
    "correction": "background: #b04a0033; text-decoration: wavy underline",
    "bonus": "background: #0069a833; text-decoration: double underline",
}
"""CSS of a token in a notebook, by kind; others have none."""

SPECULATIVE, AUTOREGRESSIVE = "#0072B2", "#64748b"
COLOURS = {"speculative": SPECULATIVE, "autoregressive": AUTOREGRESSIVE}
"""The colours of both runs in every chart; they differ in brightness too."""

SOURCES: dict[Source, str] = {
    "model": "draft model",
    "head": "draft head",
    "eagle3": "EAGLE-3 head",
    "lookup": "n-gram lookup",
    "prediction": "predicted text",
    "ngrams": "n-gram table",
    "grammar": "grammar",
}
"""The names of the sources of draft tokens, for the scripts too; the first three are a pair's."""

Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Joules = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Times = Annotated[tuple[Seconds, ...], Field(max_length=MAX_NEW_TOKENS)]
Shown = TypeVar("Shown", Round, "BaselineToken")


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


def _require_rounds(rounds: tuple[Round, ...]) -> tuple[Round, ...]:
    for number, round_ in enumerate(rounds):
        if not _possible(round_, number):
            raise ValueError(f"no run has such a round {number}")
    return _require_order(rounds)


def _require_order(events: tuple[Shown, ...]) -> tuple[Shown, ...]:
    if any(later.shown_at < earlier.shown_at for earlier, later in pairwise(events)):
        raise ValueError("the times go back")
    return events


@dataclass(frozen=True, slots=True)
class BaselineToken:
    """A token of autoregressive decoding, shown `shown_at` seconds after the start. `margin`: its
    logit minus the next best, None if sampled."""

    id: Count
    shown_at: Seconds
    text: Text = ""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Autoregressive decoding of the same prompt, one token a forward, independent of the answer.
    Times include the prefill seconds of the speculative run; other fields are as in Trace."""

    tokens: Annotated[
        tuple[BaselineToken, ...], Field(max_length=MAX_NEW_TOKENS), AfterValidator(_require_order)
    ]
    prefill_seconds: Seconds
    cpu_seconds: Seconds
    shared_with: Count = 0
    joules: Joules | None = None
    share: Share = 1.0


@dataclass(frozen=True, slots=True)
class Repeat:
    """Another race of the same question, with the same tokens: seconds of decoding of both runs,
    first token to last. `times` are the seconds from the first token to each round of its
    speculative run, after which the answer has so many `tokens`; `baseline_times` those to each
    token of its baseline. All three may be left out. `share` is the smaller one of both runs. Other
    fields are as in Trace."""

    seconds: Annotated[Seconds, Field(gt=0)]
    baseline_seconds: Annotated[Seconds, Field(gt=0)]
    shared_with: Count = 0
    compiling: bool = False
    watched: bool = False
    times: Times = ()
    tokens: Annotated[tuple[Count, ...], Field(max_length=MAX_NEW_TOKENS)] = ()
    baseline_times: Times = ()
    share: Share = 1.0

    @property
    def why(self) -> str:
        return _disturbance(self.compiling, self.shared_with, self.share)


def _disturbance(compiling: bool, others: int, share: float) -> str:
    """Why a race does not count; "" if nothing disturbed it."""
    if compiling:
        return COMPILING
    if others:
        return f"{others} other request{'s' if others > 1 else ''} ran beside it"
    return starved(share)


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """A whole run; `str(trace)` is the answer's text. `prompt_reused` counts the prompt tokens that
    were already in the KV cache; `prefill_seconds` is the time of the prefill. `cpu_seconds` (of
    all threads), `outside_seconds` (wall time outside inference) and `joules` (of the machine's
    processors, None where they cannot be read) are of decoding, without prefill. At most
    `shared_with` other requests ran beside it at once; seconds include their work. `share`: of the
    processor time that its threads could use, what other programs left it. `compiling`: models were
    loaded or compiled meanwhile. `watched`: its tokens were shown while it ran, which
    takes time from the models. `identical`: answer and baseline, and those of the `repeats`,
    decoded independently, are equal. Of several races the fields are those of the one on show
    (`race.on_show`), and the others are its `repeats`. `calls` are those of tools in the text."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="ignore")

    instruction: str
    prompt_tokens: Count
    prompt_reused: Count
    pair: PairInfo
    settings: Settings
    prefill_seconds: Seconds
    rounds: Annotated[
        tuple[Round, ...], Field(max_length=MAX_NEW_TOKENS), AfterValidator(_require_rounds)
    ]
    finish_reason: Literal["stop", "length", "context", "cancelled"]
    cpu_seconds: Seconds
    outside_seconds: Seconds
    baseline: Baseline | None = None
    identical: bool | None = None
    created: Text = ""
    machine: Text = ""
    shared_with: Count = 0
    share: Share = 1.0
    compiling: bool = False
    watched: bool = True
    repeats: Annotated[tuple[Repeat, ...], Field(max_length=MAX_RACES)] = ()
    joules: Joules | None = None
    calls: Annotated[tuple[FunctionCall, ...], Field(max_length=MAX_NEW_TOKENS)] = ()
    schema: Literal[1] = 1

    @property
    def why(self) -> str:
        """Why its race does not count; "" if nothing disturbed one of its two runs."""
        both: list[Trace | Baseline] = [self, *([self.baseline] if self.baseline else [])]
        others, share = max(run.shared_with for run in both), min(run.share for run in both)
        return _disturbance(self.compiling, others, share)

    @property
    def tokens(self) -> list[DraftToken | EmittedToken]:
        """The answer's tokens, in order. Each has `id`, `text` and `kind`: "accepted" for a draft
        token, "forced" if the schema allows no other, and for tokens of the target "first",
        "correction", "bonus", or "plain" where nothing was drafted."""
        return [token for round_ in self.rounds for token in round_.tokens]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def text(self) -> str:
        """The answer, without a stop string."""
        return "".join(round_.text for round_ in self.rounds)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        words = f"{len(self.tokens)} tokens, {self.finish_reason}"
        return f"<Answer {reprlib.repr(self.text)}, {words}>"

    def to_json(self) -> str:
        """The trace as JSON (schema 1), with its summary. It opens on the page; `from_json` gives
        back an equal trace."""
        summary = summarize(self)
        derived = [name for name, item in vars(Summary).items() if isinstance(item, property)]
        figures = dataclasses.asdict(summary) | {name: getattr(summary, name) for name in derived}
        words = {"seed": self.settings.seed, "summary": figures, "verdict": self.verdict}
        return as_json(_fields(self) | words)

    @property
    def time_to_first_token(self) -> float:
        """Seconds, without the time in the queue."""
        return summarize(self).time_to_first_token

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token that the target judged; None without any."""
        return summarize(self).acceptance_rate

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: without the first token, which comes from the prefill."""
        return summarize(self).tokens_per_second

    @property
    def speedup(self) -> float | None:
        """Of a race: seconds of autoregressive decoding over those of speculative decoding, per
        token after the first. Otherwise None."""
        return summarize(self).speedup

    @property
    def pairs(self) -> list[PairedRuns]:
        """The race on show, then its repeats; empty without a baseline. A watched race counts only
        if no other does."""
        if not (speedup := self.speedup) or not self.baseline:
            return []
        tokens = summarize(self).decoded / (len(self.baseline.tokens) - 1)  # per token of both
        races: list[Trace | Repeat] = [self, *self.repeats]
        speedups = [speedup]
        speedups += [race.baseline_seconds / race.seconds * tokens for race in self.repeats]
        unwatched = any(not (race.watched or race.why) for race in races)
        return [
            PairedRuns(speedup, race.why or (WATCHED if race.watched and unwatched else ""))
            for speedup, race in zip(speedups, races, strict=True)
        ]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of its races, None without a baseline."""
        pairs = [pair for pair in self.pairs if pair.why != WATCHED]
        return judge(pairs) if pairs else None

    @property
    def speedup_range(self) -> tuple[float, float] | None:
        """The interval of the verdict: where the median speed-up of many races lies. None if none
        counts."""
        return verdict.interval if (verdict := self.verdict) and verdict.races else None

    def _repr_html_(self) -> str:
        """The answer in a notebook: tokens coloured by kind, and the figures."""
        tokens = "".join(
            f'<span style="{STYLES.get(token.kind, "")}" title="{token.kind}">'
            f"{escape(token.text)}</span>"
            for token in self.tokens
        )
        figures = [f"{len(self.tokens)} tokens", f"{self.tokens_per_second:.1f} tokens/s"]
        if self.acceptance_rate is not None:
            figures.append(f"{self.acceptance_rate:.0%} of the draft tokens accepted")
        if verdict := self.verdict:
            figures.append(verdict.sentence)
        text = f'<div style="white-space: pre-wrap">{tokens}</div>'
        return f"{text}<small>{', '.join(figures)}</small>"

    def figure(self) -> Any:
        """The wall-clock chart of the page as a figure of Plotly: tokens against seconds since the
        first token, of both runs, and of other races that count as thin lines."""
        import plotly.graph_objects as graphs

        titles = {"xaxis_title": "seconds since the first token", "yaxis_title": "tokens"}
        figure = graphs.Figure(layout={"template": "none", "height": 320, **titles})

        def add(name: str, times: Sequence[float], tokens: Iterable[int], thin: bool) -> None:
            line = {"color": COLOURS[name], "width": 1 if thin else 3, "shape": "hv"}
            x, y = [time - times[0] for time in times], [*islice(tokens, len(times))]
            figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, showlegend=not thin)

        for race in self.repeats:
            if not race.why:
                add("autoregressive", race.baseline_times, count(1), True)
                add("speculative", race.times, race.tokens, True)
        if self.baseline:
            shown = [token.shown_at for token in self.baseline.tokens]
            add("autoregressive", shown, count(1), False)
        counts = accumulate(len(round_.tokens) for round_ in self.rounds)
        add("speculative", [round_.shown_at for round_ in self.rounds], counts, False)
        return figure

    @property
    def logprobs(self) -> list[Logprobs]:
        """Those of each token, if the request wanted them."""
        return [logprobs for round_ in self.rounds for logprobs in round_.logprobs]

    @property
    def decoding_rounds(self) -> list[Round]:
        """The rounds after the first token, which comes from the prefill."""
        return [r for r in self.rounds if not (r.emitted and r.emitted.kind == "first")]

    @property
    def difference(self) -> int | None:
        """The first position (from 0) where answer and baseline differ; None if none does."""
        baseline = self.baseline.tokens if self.baseline else ()
        pairs = enumerate(zip(self.tokens, baseline, strict=False))
        return next((number for number, (token, other) in pairs if token.id != other.id), None)


def describe_difference(trace: Trace) -> str:
    """The first difference of answer and baseline in words: position, both tokens, and by how many
    logits the baseline preferred its own."""
    position, baseline = trace.difference, trace.baseline
    if position is None or baseline is None:
        return "one answer is shorter, or that of a repeated race differs"
    token, other = trace.tokens[position], baseline.tokens[position]
    margin = "" if other.margin is None else f", margin {other.margin:.3g} logits"
    return f"token {position + 1} is {token.text!r}, autoregressive {other.text!r}{margin}"


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run, or of several (`combined`). `decoded` counts the tokens after the
    first round, which comes from the prefill; they took `decode_rounds`. Seconds are those of
    decoding. `examined` counts the draft tokens that the target judged; those after a rejection are
    not judged. `accepted` / `examined` is the alpha of Leviathan et al. section 3.1."""

    tokens: int = 0
    rounds: int = 0
    decoded: int = 0
    decode_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    examined: int = 0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    outside_seconds: float = 0.0
    cpu_seconds: float = 0.0
    baseline_decoded: int | None = 0
    baseline_decode_seconds: float | None = 0.0
    baseline_cpu_seconds: float | None = 0.0
    joules: float | None = 0.0
    baseline_joules: float | None = 0.0

    @property
    def tokens_per_second(self) -> float:
        return over(self.decoded, self.decode_seconds) or 0.0

    @property
    def baseline_tokens_per_second(self) -> float | None:
        return over(self.baseline_decoded, self.baseline_decode_seconds)

    @property
    def speedup(self) -> float | None:
        """Baseline seconds over speculative seconds, per token after the first."""
        return over(over(self.decoded, self.decode_seconds), self.baseline_tokens_per_second)

    @property
    def acceptance_rate(self) -> float | None:
        return over(self.accepted, self.examined)

    @property
    def tokens_per_round(self) -> float:
        return over(self.decoded, self.decode_rounds) or 0.0


def summarize(trace: Trace) -> Summary:
    """The figures of one trace."""
    rounds, baseline, decoding = trace.rounds, trace.baseline, trace.decoding_rounds
    first, tokens = (rounds[0], len(trace.tokens)) if rounds else (None, 0)
    shown = baseline.tokens if baseline else ()
    return Summary(
        tokens=tokens,
        rounds=len(rounds),
        decoded=tokens - len(first.tokens) if first else 0,
        decode_rounds=len(decoding),
        drafted=sum(len(r.drafted) for r in rounds),
        accepted=sum(r.accepted for r in rounds),
        examined=sum(len(judged(r)) for r in rounds),
        time_to_first_token=first.shown_at if first else 0.0,
        decode_seconds=rounds[-1].shown_at - first.shown_at if first else 0.0,
        draft_seconds=sum(r.draft_seconds for r in rounds),
        verify_seconds=sum(r.verify_seconds for r in decoding),
        outside_seconds=trace.outside_seconds,
        cpu_seconds=trace.cpu_seconds,
        baseline_decoded=len(shown) - 1 if shown else None,
        baseline_decode_seconds=shown[-1].shown_at - shown[0].shown_at if shown else None,
        baseline_cpu_seconds=baseline.cpu_seconds if baseline else None,
        joules=trace.joules,
        baseline_joules=baseline.joules if baseline else None,
    )


def combined(items: Iterable[Summary], by: Callable[[Any], Any] = sum) -> Summary:
    """A Summary of `by` (sum, median_low) of each figure; None if one is None, 0 without items."""
    columns = zip(*map(dataclasses.astuple, items), strict=True)
    figures: list[Any] = [None if None in column else by(column) for column in columns]
    return Summary(*figures)


def judged(round_: Round) -> tuple[DraftToken, ...]:
    """The draft tokens of a round that the target examined: those up to the first rejected one."""
    corrected = round_.emitted is not None and round_.emitted.kind == "correction"
    return round_.drafted[: round_.accepted + corrected]


def acceptance_by_position(traces: Iterable[Trace]) -> list[tuple[int, int]]:
    """(accepted, examined) of the first, second, ... draft token of a round, over all traces."""
    accepted, examined = Counter[int](), Counter[int]()
    for round_ in (round_ for trace in traces for round_ in trace.rounds):
        accepted.update(range(round_.accepted))
        examined.update(range(len(judged(round_))))
    return [(accepted[position], examined[position]) for position in range(len(examined))]


def over(value: float | None, by: float | None) -> float | None:
    """`value` / `by`; None if either is unknown or `by` is 0."""
    return value / by if value is not None and by else None


def as_json(value: Any) -> str:
    """JSON of data and dataclasses. Raises ValueError for numbers that are not finite."""
    return json.dumps(value, default=_fields, ensure_ascii=False, allow_nan=False)


def _fields(value: Any) -> dict[str, Any]:
    data = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Settings) and value.draft_tokens is None:
        data["draft_tokens"] = "auto"
    if isinstance(value, Verdict):
        data |= {"result": value.result, "sentence": value.sentence}
    return data


_READER = TypeAdapter(Trace)


def from_json(text: str | bytes) -> Trace:
    """Read the JSON of a trace, of this version or an earlier one; unknown fields are ignored.
    Raises BadInput, naming the field, for anything else, and for what no run can be: a trace comes
    from strangers, and what it says is computed with and drawn."""
    try:
        trace = _READER.validate_json(text, strict=True)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise BadInput("The file is not JSON; choose a trace that this demo saved.") from None
        why = wrong_parameter(error.errors())
        raise BadInput(f"The file is not a trace of schema 1: {why}") from None
    stops = StopStrings(trace.settings.stop)
    for round_ in trace.rounds:
        round_.text = stops.push("".join(token.text for token in round_.tokens))
    if trace.rounds:
        trace.rounds[-1].text += stops.rest()
    summary, baseline = summarize(trace), trace.baseline
    tokens = tuple(token.id for token in baseline.tokens) if baseline else None
    rates = summary.tokens_per_second, summary.baseline_tokens_per_second or 0.0
    repeats = trace.repeats
    speedups = [
        summary.speedup,
        *(over(race.baseline_seconds, race.seconds) for race in repeats),
    ]
    if summary.tokens > MAX_NEW_TOKENS:
        problem = f"it has {summary.tokens} tokens, and a run has at most {MAX_NEW_TOKENS}"
    elif trace.identical and tokens != trace.token_ids:
        problem = "it calls two answers identical that differ"
    elif max(rates) > MAX_RATE:
        problem = f"it makes more than {MAX_RATE:,.0f} tokens a second"
    elif not all(1 / MAX_SPEEDUP < ratio < MAX_SPEEDUP for ratio in speedups if ratio):
        problem = f"one of its runs is more than {MAX_SPEEDUP:,.0f} times as fast as the other"
    else:
        counted = any(not race.why for race in repeats)
        # Earlier versions kept the watched run of a repeated race, which does not count.
        return replace(trace, repeats=()) if trace.watched and counted else trace
    raise BadInput(f"The file is not a trace: {problem}.")
