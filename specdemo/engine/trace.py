"""What happened in one run: dataclasses, the figures they sum up to, and strict JSON both ways.

The engine fills in ids, probabilities and times; whoever holds the tokenizer adds the texts. Nothing here
measures or decides anything.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

SCHEMA = 1
"""Version of the JSON written by `to_json`."""

MAX_JSON_BYTES = 20_000_000
MAX_TOKENS = 200_000

EMITTED_KINDS = ("first", "correction", "bonus", "plain")
"""Why the target added a token: it was the `first` after the prompt, a `correction` of a rejected draft token,
a `bonus` after a wholly accepted draft, or `plain`: nothing had been drafted."""

FINISH_REASONS = ("stop", "length", "context", "cancelled")


class TraceError(ValueError):
    """A trace file that is not one; the message says what was expected and where."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A token the draft proposed, and what became of it.

    `target_probability` is None after the first rejection of a round (the target then saw another prefix), and
    `accepted` is false for tokens that were never reached as well as for the one that was rejected.
    """

    id: int
    draft_probability: float | None
    target_probability: float | None
    accepted: bool
    source: str = "model"
    text: str = ""


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """The token that the target itself added to end a round; `kind` is one of `EMITTED_KINDS`."""

    id: int
    kind: str
    target_probability: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-and-verify step. Times are seconds; `shown_at` counts from the start of the run.

    `emitted` is None when the answer ended inside the accepted draft tokens (a stop token or a limit).
    """

    drafted: tuple[DraftToken, ...]
    emitted: EmittedToken | None
    draft_seconds: float
    verify_seconds: float
    shown_at: float

    def at(self, seconds: float) -> Round:
        """The round, shown then."""
        return Round(self.drafted, self.emitted, self.draft_seconds, self.verify_seconds, seconds)

    @property
    def accepted(self) -> int:
        return sum(token.accepted for token in self.drafted)

    @property
    def tokens(self) -> tuple[DraftToken | EmittedToken, ...]:
        """The tokens that this round added to the answer, in order."""
        kept = tuple(token for token in self.drafted if token.accepted)
        return kept if self.emitted is None else (*kept, self.emitted)


@dataclass(frozen=True, slots=True)
class BaselineToken:
    id: int
    shown_at: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class NearTie:
    """A place where the timed one-token baseline would have chosen another token than the exact numerics do.

    `position` counts answer tokens from 0; `margin` is in logits, as the one-token forward saw it.
    """

    position: int
    margin: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plain autoregressive decoding of the same prompt by the target alone, one token a forward. Seconds, counted from
    the same prefill as the speculative run's; `cpu_seconds` are those of decoding; `shared_with` is how many others'
    requests were at work on the machine at most meanwhile."""

    tokens: tuple[BaselineToken, ...]
    prefill_seconds: float
    cpu_seconds: float
    near_ties: tuple[NearTie, ...] = ()
    shared_with: int = 0


@dataclass(frozen=True, slots=True)
class Certificate:
    """One parallel forward over the finished answer: each token must be what its row of logits chooses.

    `first_difference` is the first answer position where it is not, None when the answer is certified.
    """

    certified: bool
    checked: int
    first_difference: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run was asked for. `draft_tokens` None means adaptive ("auto" in JSON and on the page)."""

    max_new_tokens: int = 100
    draft_tokens: int | None = None
    drafter: str = "auto"
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    numerics: str = "exact"
    coupling: str = "shared"


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which models ran: names and the revisions that were loaded, and the numerics that held on this machine."""

    name: str
    target: str
    draft: str | None
    target_revision: str = ""
    draft_revision: str = ""
    numerics_found: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run. `prompt_reused` counts the prompt tokens that were already in the KV cache; `prefill_seconds` what
    running it took. `cpu_seconds` (of all threads) and `outside_seconds` (wall time that was
    not inference) are those of decoding, prefill and certificate left out; where `shared_with` others' requests at
    most were at work meanwhile, seconds are those of the machine for all of them."""

    instruction: str
    prompt_tokens: int
    prompt_reused: int
    pair: PairInfo
    settings: Settings
    prefill_seconds: float
    rounds: tuple[Round, ...]
    finish_reason: str
    cpu_seconds: float
    outside_seconds: float
    certificate: Certificate | None = None
    baseline: Baseline | None = None
    identical: bool | None = None
    created: str = ""
    machine: str = ""
    shared_with: int = 0
    schema: int = field(default=SCHEMA)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for round_ in self.rounds for token in round_.tokens)

    @property
    def text(self) -> str:
        return "".join(token.text for round_ in self.rounds for token in round_.tokens)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a trace. Seconds and rates of decoding leave the prefill out; rates are tokens a second."""

    tokens: int
    rounds: int
    time_to_first_token: float
    decode_seconds: float
    tokens_per_second: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_round: float
    draft_seconds: float
    verify_seconds: float
    outside_seconds: float
    outside_fraction: float
    cpu_seconds_per_token: float
    baseline_decode_seconds: float | None
    baseline_tokens_per_second: float | None
    baseline_cpu_seconds_per_token: float | None
    speedup: float | None


def summarize(trace: Trace) -> Summary:
    """Sum a trace up.

    The acceptance rate is accepted over *examined* draft tokens: those after a rejection were never put to the
    target, so they count neither way (the alpha of Leviathan et al. section 3.1). The speed-up compares seconds
    per token after the first token, so that both runs start from the same prefill.
    """
    rounds = trace.rounds
    tokens = sum(len(r.tokens) for r in rounds)
    speculative = [r for r in rounds if not (r.emitted and r.emitted.kind == "first")]
    accepted = sum(r.accepted for r in rounds)
    examined = accepted + sum(1 for r in rounds if r.emitted and r.emitted.kind == "correction")
    first_at = rounds[0].shown_at if rounds else 0.0
    decode_seconds = rounds[-1].shown_at - first_at if rounds else 0.0
    decoded = tokens - (len(rounds[0].tokens) if rounds else 0)
    baseline_seconds = baseline_rate = speedup = baseline_cpu = None
    if trace.baseline and len(trace.baseline.tokens) > 1:
        shown = trace.baseline.tokens
        baseline_seconds = shown[-1].shown_at - shown[0].shown_at
        baseline_rate = _rate(len(shown) - 1, baseline_seconds)
        baseline_cpu = trace.baseline.cpu_seconds / len(shown)
        if decoded and decode_seconds > 0:
            speedup = (baseline_seconds / (len(shown) - 1)) / (decode_seconds / decoded)
    return Summary(
        tokens=tokens,
        rounds=len(rounds),
        time_to_first_token=first_at,
        decode_seconds=decode_seconds,
        tokens_per_second=_rate(decoded, decode_seconds),
        drafted=sum(len(r.drafted) for r in rounds),
        accepted=accepted,
        acceptance_rate=accepted / examined if examined else None,
        tokens_per_round=decoded / len(speculative) if speculative else 0.0,
        draft_seconds=sum(r.draft_seconds for r in rounds),
        verify_seconds=sum(r.verify_seconds for r in speculative),
        outside_seconds=trace.outside_seconds,
        outside_fraction=trace.outside_seconds / decode_seconds if decode_seconds > 0 else 0.0,
        cpu_seconds_per_token=trace.cpu_seconds / tokens if tokens else 0.0,
        baseline_decode_seconds=baseline_seconds,
        baseline_tokens_per_second=baseline_rate,
        baseline_cpu_seconds_per_token=baseline_cpu,
        speedup=speedup,
    )


def acceptance_by_position(traces: list[Trace] | tuple[Trace, ...]) -> list[tuple[int, int]]:
    """(accepted, examined) for the first, second, ... draft token of a round, over all the traces."""
    counts: list[list[int]] = []
    for trace in traces:
        for round_ in trace.rounds:
            for position, token in enumerate(round_.drafted):
                if token.target_probability is None and not token.accepted:
                    break
                if position == len(counts):
                    counts.append([0, 0])
                counts[position][0] += token.accepted
                counts[position][1] += 1
                if not token.accepted:
                    break
    return [(accepted, examined) for accepted, examined in counts]


def to_json(trace: Trace, *, indent: int | None = None) -> str:
    """A trace as JSON (schema 1); `from_json` gives back an equal trace."""
    data = dataclasses.asdict(trace)
    if trace.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    data["seed"] = trace.settings.seed
    data["summary"] = dataclasses.asdict(summarize(trace))
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Trace:
    """Read a trace written by `to_json`.

    Strict and bounded: raises TraceError, naming the field, for a wrong type, a missing or non-finite value,
    a text over 20 MB or more than 200,000 tokens. Derived fields (`summary`) are ignored and made anew.
    """
    if len(text) > MAX_JSON_BYTES:
        raise TraceError(f"The trace is larger than {MAX_JSON_BYTES // 1_000_000} MB; a run never writes that much.")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TraceError("The file is not JSON; choose a trace that this demo saved.") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise TraceError(f"The file is not a trace of schema {SCHEMA}; choose a trace that this demo saved.")
    data = {key: value for key, value in data.items() if key not in ("summary", "seed")}
    if isinstance(data.get("settings"), dict) and data["settings"].get("draft_tokens") == "auto":
        data["settings"] = {**data["settings"], "draft_tokens": None}
    trace = _build(Trace, data, "trace")
    if len(trace.token_ids) > MAX_TOKENS:
        raise TraceError(f"The trace has more than {MAX_TOKENS} tokens.")
    for position, round_ in enumerate(trace.rounds):
        if round_.emitted and round_.emitted.kind not in EMITTED_KINDS:
            raise TraceError(f"trace.rounds[{position}].emitted.kind is not one of {', '.join(EMITTED_KINDS)}.")
    if trace.finish_reason not in FINISH_REASONS:
        raise TraceError(f"trace.finish_reason is not one of {', '.join(FINISH_REASONS)}.")
    return trace


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` (parsed JSON) as the annotated type `kind`, or TraceError naming `where`."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TraceError(f"{where} should be an object.")
        hints = get_type_hints(kind)
        unknown = value.keys() - hints.keys()
        if unknown:
            raise TraceError(f"{where} has an unknown field {sorted(unknown)[0]!r:.60}.")
        built = {}
        for spec in dataclasses.fields(kind):
            if spec.name in value:
                built[spec.name] = _build(hints[spec.name], value[spec.name], f"{where}.{spec.name}")
            elif spec.default is dataclasses.MISSING:
                raise TraceError(f"{where}.{spec.name} is missing.")
        return kind(**built)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > MAX_TOKENS:
            raise TraceError(f"{where} should be a list of at most {MAX_TOKENS} entries.")
        return tuple(_build(get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    options = get_args(kind) or (kind,)
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(options[0]):
        return _build(options[0], value, where)
    accepted = (int, float) if options == (float,) else options
    if isinstance(value, bool) and bool not in options or not isinstance(value, accepted):
        raise TraceError(f"{where} should be {' or '.join(option.__name__ for option in options)}.")
    if options == (float,):
        value = float(value)
        if not math.isfinite(value):
            raise TraceError(f"{where} is not a finite number.")
    return value
