"""Requests of the API as OpenAI's clients know them, and one extension: `speculative`.

A request becomes a `Job` here. What cannot be honoured is refused by name, never ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdemo.errors import BadInput
from specdemo.models.templates import Message
from specdemo.settings import Settings, parse

StopString = Annotated[str, Field(min_length=1, max_length=1000)]
SETTINGS = {field.name for field in dataclasses.fields(Settings)}

IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "reasoning_effort verbosity parallel_tool_calls prediction".split()
)
"""Parameters that change nothing of an answer here."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
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
"""Parameters that are not supported, with the values (besides null) that ask for nothing."""


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
    model_config = ConfigDict(strict=True)


class StreamOptions(Strict):
    include_usage: bool = False


class SpeculativeOptions(Strict, extra="allow"):
    """The extension of a request: what else to run and to send, and any field of `Settings`."""

    trace: bool = False
    certify: bool = False
    rounds: bool = False
    baseline: bool = False


class CommonRequest(Strict, extra="allow"):
    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    speculative: SpeculativeOptions | None = None

    @property
    def extension(self) -> SpeculativeOptions:
        return self.speculative or SpeculativeOptions()

    def _job(self, limit: int, longest: int, **what: Any) -> Job:
        """The job; `longest` is how many tokens an answer of this server may have."""
        wanted = self.extension
        given = wanted.model_extra
        settings = {
            "max_new_tokens": limit,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_k": self.top_k or 0,
            "seed": _seed(self.seed),
            **given,
        }
        limit = settings["max_new_tokens"]
        if isinstance(limit, int) and limit > longest:
            message = f"max_tokens is too large: {limit}. This model answers with at most {longest}"
            raise BadInput(f"{message} tokens.", "max_tokens", "integer_above_max_value")
        roles = [message.role for message in what.get("messages", ())]
        if wanted.baseline and (self.stop or roles != ["user"]):
            message = "speculative.baseline needs a single user message and no stop strings."
            raise BadInput(message, "speculative.baseline", "invalid_value")
        try:
            checked = parse(Settings, settings)
        except BadInput as error:
            name = str(error.param)
            plain = "max_tokens" if name == "max_new_tokens" else name
            param = f"speculative.{name}" if name in given else plain
            raise BadInput(param + str(error).removeprefix(name), param, "invalid_value") from None
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Job(checked, stop=stop, certify=wanted.certify, baseline=wanted.baseline, **what)


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
    max_completion_tokens: int | None = None

    def job(self, default_limit: int, longest: int) -> Job:
        limits = [one for one in (self.max_completion_tokens, self.max_tokens) if one is not None]
        if len(limits) > 1:
            message = "max_tokens and max_completion_tokens name one limit; give one of them."
            raise BadInput(message, "max_tokens", "invalid_value")
        turns = tuple(message.turn(at) for at, message in enumerate(self.messages))
        return self._job(*limits or [default_limit], longest, messages=turns)


class CompletionRequest(CommonRequest):
    prompt: str | list[str] | list[int] | list[list[int]]

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
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    unknown = [f"speculative.{name}" for name in request.extension.model_extra.keys() - SETTINGS]
    for name, value in request.model_extra.items():
        if name in NEUTRAL:
            asks = value is not None and not any(
                value == one and isinstance(value, bool) == isinstance(one, bool)
                for one in NEUTRAL[name]
            )
            if asks:
                message = f"Unsupported value: {name!r} is not supported with this value."
                raise BadInput(message, name, "unsupported_parameter")
        elif name not in IGNORED:
            unknown.append(name)
    for name in unknown:
        message = f"Unrecognized request argument supplied: {name[:60]}"
        raise BadInput(message, name[:60], "unknown_parameter")
    return request


def _seed(seed: int | None) -> int:
    """A seed from 0 to 2**63 - 1: a new one for None, a hash of one that is below 0."""
    if seed is None:
        return secrets.randbits(32)
    if seed >= 0:
        return seed
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8]) >> 1


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
    if first["type"] == "missing":
        message = f"Missing required parameter: '{param}'."
        return BadInput(message, param, "missing_required_parameter")
    said = first["msg"]
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
