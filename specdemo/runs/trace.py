"""The record of one run, its figures and its JSON, which `runs.saved_run` reads."""

import dataclasses
import json
import reprlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from specdemo.engine.rounds import DraftToken, EmittedToken, Logprobs, Round
from specdemo.machine.terminal import counted
from specdemo.pairs.registry import PairInfo
from specdemo.runs.display import Curve, notebook_html, wall_clock
from specdemo.runs.judge import PairedRuns, Verdict, judge, starved
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings
from specdemo.text.tools import FunctionCall

MAX_TEXT = 1000  # characters of a token; public vocabularies have up to 256
MAX_RACES = 64
MAX_COUNT = 2**31 - 1
MAX_SECONDS = 1e6  # eleven days

COMPILING = "models were loaded or compiled"
WATCHED = "showing it live slows the models"

Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Joules = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Times = Annotated[tuple[Seconds, ...], Field(max_length=MAX_NEW_TOKENS)]


@dataclass(frozen=True, slots=True)
class BaselineToken:
    """A token of autoregressive decoding."""

    id: Count
    shown_at: Seconds  # since the start
    text: Text = ""
    margin: float | None = None  # its logit minus the next best; None if sampled


@dataclass(frozen=True, slots=True)
class Baseline:
    """Autoregressive decoding of the same prompt, one token a forward, independent of the answer.
    Times include the prefill seconds of the speculative run; other fields are as in Trace."""

    tokens: Annotated[tuple[BaselineToken, ...], Field(max_length=MAX_NEW_TOKENS)]
    prefill_seconds: Seconds
    cpu_seconds: Seconds
    shared_with: Count = 0
    joules: Joules | None = None
    share: Share = 1.0


@dataclass(frozen=True, slots=True)
class Repeat:
    """Another race of the same question, with the same tokens; other fields are as in Trace. Both
    `times` and `tokens` may be left out."""

    seconds: Annotated[Seconds, Field(gt=0)]  # of decoding: first token to last
    baseline_seconds: Annotated[Seconds, Field(gt=0)]
    shared_with: Count = 0
    compiling: bool = False
    watched: bool = False
    times: Times = ()  # from the first token to each round of the speculative run
    tokens: Annotated[tuple[Count, ...], Field(max_length=MAX_NEW_TOKENS)] = ()  # by then
    baseline_times: Times = ()  # to each token of the baseline
    share: Share = 1.0  # the smaller one of both runs

    @property
    def why(self) -> str:
        return _disturbance(self.compiling, self.shared_with, self.share)


def _disturbance(compiling: bool, others: int, share: float) -> str:
    """Why a race does not count; "" if nothing disturbed it."""
    if compiling:
        return COMPILING
    if others:
        return f"{counted(others, 'other request')} ran beside it"
    return starved(share)


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """A whole run; `str(trace)` is the answer's text. Of several races it is the one on show
    (`race.on_show`). Times and energy are of decoding, without prefill."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="ignore")

    instruction: str
    prompt_tokens: Count
    prompt_reused: Count  # tokens of the prompt that were already in the KV cache
    pair: PairInfo
    settings: Settings
    prefill_seconds: Seconds
    rounds: Annotated[tuple[Round, ...], Field(max_length=MAX_NEW_TOKENS)]
    finish_reason: Literal["stop", "length", "context", "cancelled"]
    cpu_seconds: Seconds  # of all threads
    outside_seconds: Seconds  # wall time outside inference
    baseline: Baseline | None = None
    identical: bool | None = None  # answer, baseline and repeats, decoded independently
    created: Text = ""
    machine: Text = ""
    shared_with: Count = 0  # most requests beside it at once; seconds include their work
    share: Share = 1.0  # of the processor time that its threads could use, left by other programs
    compiling: bool = False  # models were loaded or compiled meanwhile
    watched: bool = True  # its tokens were shown while it ran, which takes time from the models
    repeats: Annotated[tuple[Repeat, ...], Field(max_length=MAX_RACES)] = ()  # the other races
    joules: Joules | None = None  # of the machine's processors; None where they cannot be read
    calls: Annotated[tuple[FunctionCall, ...], Field(max_length=MAX_NEW_TOKENS)] = ()  # of tools
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

    def _repr_html_(self) -> str:
        """The answer in a notebook: tokens coloured by kind, and the figures."""
        figures = [f"{len(self.tokens)} tokens", f"{self.tokens_per_second:.1f} tokens/s"]
        if self.acceptance_rate is not None:
            figures.append(f"{self.acceptance_rate:.0%} of the draft tokens accepted")
        if verdict := self.verdict:
            figures.append(verdict.sentence)
        return notebook_html(self.tokens, figures)

    @property
    def curves(self) -> dict[str, list[Curve]]:
        """Of each way, that of the race on show, then those of other races that count."""
        races = [race for race in self.repeats if race.times and not race.why]
        curves: dict[str, list[Curve]] = {}
        if self.rounds:
            times = [round_.shown_at - self.rounds[0].shown_at for round_ in self.rounds]
            tokens = [*accumulate(len(round_.tokens) for round_ in self.rounds)]
            others = [(race.times, race.tokens) for race in races]
            curves["speculative"] = [(times, tokens), *others]
        if self.baseline and (shown := self.baseline.tokens):
            seconds = [token.shown_at - shown[0].shown_at for token in shown]
            all_times = [seconds, *(race.baseline_times for race in races)]
            curves["autoregressive"] = [(times, range(1, len(times) + 1)) for times in all_times]
        return curves

    def figure(self) -> Any:
        """The wall-clock chart of the page as a figure of Plotly: tokens against seconds since the
        first token, of both runs, and the range of other races that count as bands."""
        import plotly.graph_objects as graphs

        return graphs.Figure(wall_clock(self.curves, bool(self.identical)))

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
    """The figures of one run, or of several (`combined`); seconds are those of decoding."""

    tokens: int = 0
    rounds: int = 0
    decoded: int = 0  # tokens after the first round, which comes from the prefill
    decode_rounds: int = 0  # which they took
    drafted: int = 0
    accepted: int = 0
    examined: int = 0  # draft tokens that the target judged: those up to the first rejected one
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
        """The alpha of Leviathan et al. section 3.1."""
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


def combined(items: Iterable[Summary]) -> Summary:
    """The sums of each figure; None if one is None, 0 without items."""
    columns = zip(*map(dataclasses.astuple, items), strict=True)
    figures: list[Any] = [None if None in column else sum(column) for column in columns]
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
