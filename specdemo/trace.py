"""What happened in one run: dataclasses, the figures they sum up to, and JSON both ways.

The engine yields rounds; the session adds texts, settings and the baseline. Nothing here measures
or decides anything.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput
from specdemo.settings import Settings, sentence

SCHEMA = 1
"""Version of the JSON written by `to_json`."""

MAX_JSON_BYTES = 20_000_000
MAX_TOKENS = 200_000

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class BaselineToken:
    """A token of autoregressive decoding. `margin` (logits) is by how much it exceeds the next
    best, None where it was sampled."""

    id: int
    shown_at: float
    text: str = ""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Autoregressive decoding of the same prompt by the target model, one token a forward, each its
    own choice. Seconds, counted from the same prefill as the speculative run's; `cpu_seconds` are
    those of decoding; `shared_with` is how many others' requests were at work on the machine at
    most meanwhile."""

    tokens: tuple[BaselineToken, ...]
    prefill_seconds: float
    cpu_seconds: float
    shared_with: int = 0


@dataclass(frozen=True, slots=True)
class Certificate:
    """One parallel forward over the finished answer: each token must be what its row of logits
    chooses.

    `first_difference` is the first answer position where it is not, None when the answer is
    certified.
    """

    certified: bool
    checked: int
    first_difference: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer position (from 0) where the baseline has another token, both texts, and by
    how many logits the baseline's token exceeds the next best (None where it was sampled)."""

    position: int
    text: str
    baseline_text: str
    margin: float | None


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which models ran: names and the revisions that were loaded, and the numerics that held on
    this machine."""

    name: str
    target: str
    draft: str | None
    target_revision: str = ""
    draft_revision: str = ""
    numerics_found: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run. `prompt_reused` counts the prompt tokens that were already in the KV cache;
    `prefill_seconds` what running it took. `cpu_seconds` (of all threads) and `outside_seconds`
    (wall time that was not inference) are those of decoding, prefill and certificate left out;
    where `shared_with` others' requests at most were at work meanwhile, seconds are those of the
    machine for all of them.

    `identical` compares two runs that were decoded independently: the answer, and the baseline."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="ignore")

    instruction: str
    prompt_tokens: int
    prompt_reused: int
    pair: PairInfo
    settings: Settings
    prefill_seconds: float
    rounds: tuple[Round, ...]
    finish_reason: FinishReason
    cpu_seconds: float
    outside_seconds: float
    certificate: Certificate | None = None
    baseline: Baseline | None = None
    identical: bool | None = None
    created: str = ""
    machine: str = ""
    shared_with: int = 0
    schema: Literal[1] = SCHEMA

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for round_ in self.rounds for token in round_.tokens)

    @property
    def text(self) -> str:
        return "".join(token.text for round_ in self.rounds for token in round_.tokens)

    @property
    def difference(self) -> Difference | None:
        """Where answer and baseline part first; None where they agree or there is no baseline."""
        if self.baseline is None:
            return None
        answer = [token for round_ in self.rounds for token in round_.tokens]
        for position, (ours, theirs) in enumerate(zip(answer, self.baseline.tokens, strict=False)):
            if ours.id != theirs.id:
                return Difference(position, ours.text, theirs.text, theirs.margin)
        return None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a trace. Seconds and rates of decoding leave the prefill out; rates are tokens
    a second."""

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

    The acceptance rate is accepted over *examined* draft tokens: those after a rejection were never
    put to the target, so they count neither way (the alpha of Leviathan et al. section 3.1). The
    speed-up compares seconds per token after the first token, so that both runs start from the same
    prefill.
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
    """(accepted, examined) for the first, second, ... draft token of a round, over all the
    traces."""
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
    """Read a trace written by `to_json`, of this version or an earlier one.

    Bounded: raises BadInput, naming the field, for a wrong type, a missing or non-finite value, a
    text over 20 MB or more than 200,000 tokens. Unknown and derived fields are ignored.
    """
    if len(text) > MAX_JSON_BYTES:
        megabytes = MAX_JSON_BYTES // 1_000_000
        raise BadInput(f"The trace is larger than {megabytes} MB; a run never writes that much.")
    try:
        trace = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise BadInput("The file is not JSON; choose a trace that this demo saved.") from None
        raise BadInput(f"The file is not a trace of schema {SCHEMA}: {sentence(error)}") from None
    if len(trace.token_ids) > MAX_TOKENS:
        raise BadInput(f"The trace has more than {MAX_TOKENS} tokens.")
    return trace


@cache
def _adapter() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
