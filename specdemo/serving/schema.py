"""The shapes of the API's requests and responses, as the public clients know them, and one extension: `speculative`.

A request becomes a `generation.Request` here; what cannot be honoured is refused rather than left out silently.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from specdemo.engine.policy import MAX_DRAFT
from specdemo.trace import Settings, Trace, summarize
from specdemo.serving.generation import Refused, Request
from specdemo.models.templates import Message

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000

_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention reasoning_effort "
    "verbosity parallel_tool_calls prediction".split()
)
"""Parameters that change nothing of an answer here."""

_ONLY_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Parameters that would change the answer in a way this server has not, with the values (besides null) that do not."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class SpeculativeOptions(BaseModel):
    """The extension's request side: how to draft, whether the finished answer is checked by one more forward, and
    whether the response holds the whole trace."""

    model_config = ConfigDict(extra="forbid", strict=True)

    trace: bool = False
    certify: bool = False
    drafter: Literal["auto", "model", "lookup", "none"] = "auto"
    draft_tokens: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_DRAFT)] = "auto"
    numerics: Literal["exact", "fast"] = "exact"
    coupling: Literal["shared", "maximal"] = "shared"


class CommonRequest(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow", strict=True)

    default_limit: ClassVar[int | None] = None
    """Tokens of an answer whose request names no limit; None: the server's setting."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    speculative: SpeculativeOptions | None = None

    @field_validator("stop")
    @classmethod
    def _short_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        strings = [value] if isinstance(value, str) else value or []
        if len(strings) > MAX_STOPS:
            raise ValueError(f"there may be at most {MAX_STOPS} stop strings, not {len(strings)}")
        if any(not 0 < len(one) <= MAX_STOP_CHARACTERS for one in strings):
            raise ValueError(f"a stop string must have from 1 to {MAX_STOP_CHARACTERS} characters")
        return value

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def with_trace(self) -> bool:
        return bool(self.speculative and self.speculative.trace)

    @property
    def certify(self) -> bool:
        return bool(self.speculative and self.speculative.certify)

    def limit(self) -> int | None:
        return self.max_tokens

    def settings(self, default_limit: int, longest: int) -> Settings:
        """The engine's settings. Raises Refused for more tokens than `longest`."""
        limit = self.limit() or self.default_limit or default_limit
        if limit > longest:
            raise Refused(f"max_tokens is too large: {limit}. This model answers with at most {longest} tokens.",
                          "max_tokens", "integer_above_max_value")  # fmt: skip
        speculative = self.speculative or SpeculativeOptions()
        return Settings(
            max_new_tokens=min(limit, longest),
            draft_tokens=None if speculative.draft_tokens == "auto" else speculative.draft_tokens,
            drafter=speculative.drafter,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=secrets.randbits(32) if self.seed is None else self.seed % 2**63,
            numerics=speculative.numerics,
            coupling=speculative.coupling,
        )

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def require_known(self) -> None:
        """Raises Refused for a parameter that nobody knows, or that would ask for what is not here."""
        for name, value in (self.model_extra or {}).items():
            if name in _IGNORED or (name in _ONLY_NEUTRAL and (value is None or value in _ONLY_NEUTRAL[name])):
                continue
            if name in _ONLY_NEUTRAL:
                raise Refused(f"Unsupported value: this server does not support {name!r} with this value.",
                              name, "unsupported_parameter")  # fmt: skip
            raise Refused(f"Unrecognized request argument supplied: {name[:60]}", name[:60], "unknown_parameter")


class TextPart(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message; `name` and the like are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None

    def turn(self) -> Message:
        parts = self.content if isinstance(self.content, list) else [TextPart(type="text", text=self.content or "")]
        return Message("system" if self.role == "developer" else self.role, "".join(part.text for part in parts))


class ChatRequest(CommonRequest):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def request(self, default_limit: int, longest: int) -> Request:
        messages = tuple(message.turn() for message in self.messages)
        settings = self.settings(default_limit, longest)
        return Request(settings, messages=messages, stop=self.stops(), certify=self.certify)


class CompletionRequest(CommonRequest):
    """POST /v1/completions"""

    default_limit: ClassVar[int | None] = 16

    prompt: str | list[str] | list[int] | list[list[int]]

    def request(self, default_limit: int, longest: int) -> Request:
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise Refused("This server answers one prompt a request; send them one by one.", "prompt",
                              "unsupported_parameter")  # fmt: skip
            [prompt] = prompt
        settings = self.settings(default_limit, longest)
        if isinstance(prompt, str):
            return Request(settings, text=prompt, stop=self.stops(), certify=self.certify)
        return Request(settings, tokens=tuple(prompt), stop=self.stops(), certify=self.certify)


def read(kind: type[BaseModel], body: bytes) -> Any:
    """The request in a body. Raises Refused, naming the parameter, for one that is not of this shape."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    if isinstance(request, CommonRequest):
        request.require_known()
    return request


def _refusal(error: ValidationError) -> Refused:
    """The first thing that is wrong, in one sentence; of the ways to read a union, the one that got furthest."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = max((one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]), key=lambda one: len(one["loc"]))
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return Refused("We could not parse the JSON body of your request: send a JSON object as UTF-8.")
    if not place:
        return Refused("The body of the request must be a JSON object.")
    param = _param(first["loc"])
    if first["type"] == "missing":
        return Refused(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return Refused(f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    said = first["msg"].removeprefix("Value error, ")
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return Refused(f"Invalid value for '{param}': {said[:1].lower()}{said[1:]}.", param, code)


def _param(place: tuple[int | str, ...]) -> str:
    """`messages[0].content`; the names that pydantic gives the members of a union are left out."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not ("[" in part or part in ("str", "int", "constrained-int") or part.startswith("literal")):
            text += f".{part}" if text else part
    return text[:100]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, trace: Trace) -> Usage:
        made = len(trace.token_ids)
        return cls(prompt_tokens=trace.prompt_tokens, completion_tokens=made, total_tokens=trace.prompt_tokens + made)


class Speculative(BaseModel):
    """The extension's response side: what speculation did for this answer. Times in seconds, rates in tokens a second.

    `certified` says that one parallel forward over the finished answer chose the same tokens (null: not checked).
    """

    acceptance_rate: float | None
    rounds: int
    tokens: int
    tokens_per_round: float
    draft_tokens: int
    accepted_tokens: int
    time_to_first_token_s: float
    prefill_s: float
    decode_s: float
    draft_s: float
    verify_s: float
    tokens_per_second: float
    certified: bool | None
    trace: dict[str, Any] | None = None

    @classmethod
    def of(cls, trace: Trace, *, whole: bool) -> Speculative:
        """Of a finished trace, with all of it inside when it is asked for."""
        import json

        from specdemo.trace import to_json

        figures = summarize(trace)
        return cls(
            acceptance_rate=figures.acceptance_rate,
            rounds=figures.rounds,
            tokens=figures.tokens,
            tokens_per_round=figures.tokens_per_round,
            draft_tokens=figures.drafted,
            accepted_tokens=figures.accepted,
            time_to_first_token_s=figures.time_to_first_token,
            prefill_s=trace.prefill_seconds,
            decode_s=figures.decode_seconds,
            draft_s=figures.draft_seconds,
            verify_s=figures.verify_seconds,
            tokens_per_second=figures.tokens_per_second,
            certified=trace.certificate.certified if trace.certificate else None,
            trace=json.loads(to_json(trace)) if whole else None,
        )

    def json_object(self) -> dict[str, Any]:
        return self.model_dump(exclude={"trace"} if self.trace is None else None)


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The response of POST /v1/chat/completions without streaming."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    speculative: Speculative


class TextChoice(BaseModel):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    """The response of POST /v1/completions without streaming."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str | None = None
    speculative: Speculative


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class ChatChunk(BaseModel):
    """One event of a streamed chat completion; `speculative` is in the one that has a finish reason, and again in the
    one with the usage, there without the trace."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None = None
    usage: Usage | None = None
    speculative: Speculative | None = None


class TextChunkChoice(BaseModel):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class CompletionChunk(BaseModel):
    """One event of a streamed completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChunkChoice]
    system_fingerprint: str | None = None
    usage: Usage | None = None
    speculative: Speculative | None = None


class Model(BaseModel):
    """One entry of GET /v1/models; beyond the usual fields, the pair behind it and its context in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "specdemo"
    pair: str
    draft: str | None
    target_revision: str
    draft_revision: str
    context_length: int
    max_answer_tokens: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Every error, also in the middle of a stream."""

    error: ErrorDetail
