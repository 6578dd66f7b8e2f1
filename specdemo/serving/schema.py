"""Requests of the API as OpenAI's clients know them, and one extension: `speculative`.

A request becomes a `Job` here. What cannot be honoured is refused by name, never ignored.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput
from specdemo.models.templates import Message
from specdemo.settings import Settings, number, real, whole

TokenId = Annotated[int, BeforeValidator(number)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
SETTINGS = get_type_hints(Settings, include_extras=True)
TopP, TopK, Seed = (SETTINGS[name] for name in ("top_p", "top_k", "seed"))
_drafts = SETTINGS["draft_tokens"]
_lengths = WithJsonSchema({"enum": [None, "auto", *range(1, MAX_DRAFT + 1)]})
SETTINGS["draft_tokens"] = Annotated[_drafts, _lengths]


@dataclass(frozen=True, slots=True)
class Job:
    """What to answer: a conversation, or a text or tokens to continue (one of the three).

    The answer ends before the first of the `stop` strings. `baseline` asks for an autoregressive
    run after the answer (to a single user message only)."""

    settings: Settings
    messages: tuple[Message, ...] = ()
    text: str | None = None
    tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    certify: bool = False
    baseline: bool = False


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class TextFormat(Strict, extra="forbid"):
    type: Literal["text"]


def _off(value: bool) -> bool:
    if value:
        raise ValueError("it must be false")
    return value


# Literal[False] would take 0 as well.
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})]
Nothing = Annotated[list, Field(max_length=0)]
UNSUPPORTED: dict[str, Any] = {
    "n": whole(1, 1),
    "best_of": whole(1, 1),
    "presence_penalty": real(0, 0),
    "frequency_penalty": real(0, 0),
    "logit_bias": Annotated[dict, Field(max_length=0)],
    "logprobs": Off,
    "top_logprobs": whole(0, 0),
    "echo": Off,
    "suffix": Literal[""],
    "tools": Nothing,
    "tool_choice": Literal["none", "auto"],
    "functions": Nothing,
    "function_call": Literal["none", "auto"],
    "response_format": TextFormat,
    "modalities": Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)],
    "audio": None,
    "web_search_options": None,
}
"""Parameters that are not supported, with the values (besides null) that ask for nothing."""

IGNORED = (
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "reasoning_effort verbosity parallel_tool_calls prediction"
).split()
"""Parameters that change nothing of an answer here."""

OpenAIParameters = create_model(
    "OpenAIParameters",
    __base__=Strict,
    **{name: (kind | None if kind else None, None) for name, kind in UNSUPPORTED.items()},
    **dict.fromkeys(IGNORED, (Any, None)),
)


class StreamOptions(Strict):
    include_usage: bool = False


class Extras(Strict, extra="forbid"):
    """What else to run and to send."""

    trace: bool = False
    certify: bool = False
    rounds: bool = False
    baseline: bool = False


SpeculativeOptions = create_model(
    "SpeculativeOptions",
    __base__=Extras,
    __doc__="The extension of a request: what else to run and to send, and any field of Settings.",
    **{name: (kind, Field(default_factory=lambda: None)) for name, kind in SETTINGS.items()},
)


class CommonRequest(OpenAIParameters, extra="forbid"):
    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: whole(1) | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    speculative: SpeculativeOptions | None = None

    @property
    def extension(self) -> Extras:
        return self.speculative or SpeculativeOptions()

    def _job(self, limit: int, longest: int, **what: Any) -> Job:
        """The job; `longest` is how many tokens an answer of this server may have."""
        wanted = self.extension
        settings = {
            "max_new_tokens": limit,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_k": self.top_k or 0,
            "seed": secrets.randbits(32) if self.seed is None else self.seed,
            **wanted.model_dump(include=wanted.model_fields_set & SETTINGS.keys()),
        }
        limit = settings["max_new_tokens"]
        if limit > longest:
            message = f"max_tokens is too large: {limit}. This model answers with at most {longest}"
            raise BadInput(f"{message} tokens.", "max_tokens", "integer_above_max_value")
        roles = [message.role for message in what.get("messages", ())]
        if wanted.baseline and (self.stop or roles != ["user"]):
            message = "speculative.baseline needs a single user message and no stop strings."
            raise BadInput(message, "speculative.baseline", "invalid_value")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        extras = {"certify": wanted.certify, "baseline": wanted.baseline}
        return Job(Settings(**settings), stop=stop, **extras, **what)


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None

    def turn(self, position: int) -> Message:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        if self.role == "user" and not text.strip():
            place = f"messages[{position}].content"
            raise BadInput(f"{place} is empty; write a question or a task.", place, "invalid_value")
        return Message("system" if self.role == "developer" else self.role, text)


class ChatRequest(CommonRequest):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: whole(1) | None = None

    def job(self, default_limit: int, longest: int) -> Job:
        limits = [one for one in (self.max_completion_tokens, self.max_tokens) if one is not None]
        if len(limits) > 1:
            message = "max_tokens and max_completion_tokens name one limit; give one of them."
            raise BadInput(message, "max_tokens", "invalid_value")
        turns = tuple(message.turn(at) for at, message in enumerate(self.messages))
        return self._job(*limits or [default_limit], longest, messages=turns)


class CompletionRequest(CommonRequest):
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]

    def job(self, default_limit: int, longest: int) -> Job:
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                message = "This server answers one prompt a request; send them one by one."
                raise BadInput(message, "prompt", "unsupported_parameter")
            [prompt] = prompt
        what = {"text": prompt} if isinstance(prompt, str) else {"tokens": tuple(prompt)}
        return self._job(16 if self.max_tokens is None else self.max_tokens, longest, **what)


def read(
    kind: type[ChatRequest | CompletionRequest], body: bytes
) -> ChatRequest | CompletionRequest:
    """The request in a body. Raises BadInput naming a parameter that is unknown, not supported or
    of another type."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> BadInput:
    """The first finding in one sentence; of a union's members, the one that got furthest."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    same = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    if first["type"] == "json_invalid":
        message = "We could not parse the JSON body of your request: send a JSON object as UTF-8."
        return BadInput(message)
    if not first["loc"]:
        return BadInput("The body of the request must be a JSON object.")
    param = _param(first["loc"])
    if (name := first["loc"][0]) in UNSUPPORTED:
        message = f"Unsupported value: {name!r} is not supported with this value."
        return BadInput(message, name, "unsupported_parameter")
    if first["type"] == "missing":
        message = f"Missing required parameter: '{param}'."
        return BadInput(message, param, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        message = f"Unrecognized request argument supplied: {param[:60]}"
        return BadInput(message, param[:60], "unknown_parameter")
    said = first["msg"].removeprefix("Value error, ")
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return BadInput(f"Invalid value for '{param}': {said[:1].lower()}{said[1:]}.", param, code)


def _param(place: tuple[int | str, ...]) -> str:
    """`messages[0].content`, without the names that pydantic gives the members of a union."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not ("[" in part or part in ("str", "int", "constrained-str")):
            text += f".{part}"
    return text.lstrip(".")[:100]
