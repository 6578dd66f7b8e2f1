"""The requests of the API, in the format of OpenAI's clients, and one extension: `speculative`.

A parameter that would change the answer but is not supported is refused by name, never ignored.
"""

from __future__ import annotations

import json
import secrets
from functools import cached_property
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from specdemo.errors import BadInput
from specdemo.options import Whole
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings
from specdemo.text.grammar import Tools
from specdemo.text.templates import Call, Message

SETTINGS = get_type_hints(Settings, include_extras=True)
SAMPLING = "temperature", "top_p", "top_k", "seed"
Limit = Annotated[Whole, Field(ge=1, le=MAX_NEW_TOKENS)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]

UNSUPPORTED = (
    "presence_penalty frequency_penalty logit_bias logprobs top_logprobs echo suffix tools "
    "tool_choice functions function_call response_format modalities audio web_search_options"
).split()

NOTHING = (None, 0, "", [], {}, "none", "auto", {"type": "text"}, ["text"])
"""The default values of unsupported parameters; others are refused."""

IGNORED = (
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "reasoning_effort verbosity parallel_tool_calls prediction"
).split()
"""Parameters that do not change an answer here."""


class Strict(BaseModel):
    """Has few errors, because each takes ten times as long as a value: lists that may be long end
    at their first one."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > 100:
            raise ValueError(f"it has {len(value)} fields")
        return value


class StreamOptions(Strict):
    include_usage: bool = False


Speculative = create_model(
    "Speculative",
    __base__=Strict,
    __doc__="The extension of a request: what else to run and to send, and any field of Settings.",
    **dict.fromkeys(("trace", "baseline"), (bool, False)),
    **{name: (kind, None) for name, kind in SETTINGS.items()},
)

Sampling = create_model(
    "Sampling", __base__=Strict, **{name: (SETTINGS[name] | None, None) for name in SAMPLING}
)


class CommonRequest(Sampling):
    model: str
    n: Annotated[Whole, Field(ge=1, le=1)] | None = None
    best_of: Annotated[Whole, Field(ge=1, le=1)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    speculative: Speculative | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_supported(cls, asked: Any) -> Any:
        if not isinstance(asked, dict):
            return asked
        for name in {*UNSUPPORTED} - cls.model_fields.keys():
            if asked.get(name) not in NOTHING:
                message = f"{name} is not supported with this value; leave it out."
                raise BadInput(message, name, "unsupported_parameter")
        dropped = {*UNSUPPORTED, *IGNORED} - cls.model_fields.keys()
        return {name: asked[name] for name in asked.keys() - dropped}

    @property
    def extension(self) -> BaseModel:
        return self.speculative or Speculative()

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def json_schema(self) -> str:
        """The JSON Schema that the answer must follow, as text; "" for none."""
        return ""

    @property
    def callable_tools(self) -> Tools | None:
        return None

    @property
    def characters(self) -> int:
        """Of all texts that the model reads."""
        return 0

    def settings(self, default_limit: int) -> Settings:
        """The settings of the request; without a seed, each call draws a new one."""
        limit = self.max_tokens or default_limit
        start = {"max_new_tokens": limit, "temperature": 1.0, "seed": secrets.randbits(32)}
        start["json_schema"] = self.json_schema
        given = self.model_dump(include=set(SAMPLING), exclude_none=True)
        extension = self.extension.model_dump(include=set(SETTINGS), exclude_unset=True)
        return Settings(**start | given | extension)


class TextPart(Strict):
    type: Literal["text"]
    text: str


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class CalledFunction(Strict, extra="ignore"):
    name: FunctionName
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _json_object(cls, text: str) -> str:
        if not isinstance(from_json(text or "{}"), dict):
            raise ValueError("it must be the JSON text of an object")
        return text or "{}"


class ToolCall(Strict, extra="ignore"):
    id: str = ""
    function: CalledFunction


class ChatMessage(Strict, extra="ignore"):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(max_length=1000, fail_fast=True)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=100)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def turn(self) -> Message:
        """The message in the form that a chat template takes."""
        content = self.content or ""
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        calls = [
            Call(call.function.name, call.function.arguments, call.id)
            for call in self.tool_calls or ()
        ]
        role = "system" if self.role == "developer" else self.role
        name = self.name if role == "tool" else ""  # others' names would change their text
        return Message(role, "".join(parts), tuple(calls), self.tool_call_id or "", name or "")


class Function(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    name: FunctionName


class ToolChoice(Strict):
    type: Literal["function"]
    function: ChosenFunction


class NamedSchema(Strict):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class ChatRequest(CommonRequest):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Limit | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @cached_property
    def json_schema(self) -> str:
        wanted = self.response_format
        if wanted is None:
            return ""
        if (wanted.json_schema is None) == (wanted.type == "json_schema"):
            message = "response_format.json_schema is missing, or the type is not json_schema."
            raise BadInput(message, "response_format")
        if wanted.json_schema:
            return json.dumps(wanted.json_schema.schema_)
        return "" if wanted.type == "text" else '{"type": "object"}'

    @cached_property
    def callable_tools(self) -> Tools | None:
        if not self.tools or self.tool_choice == "none":
            return None
        functions = [one.function.model_dump(exclude_none=True) for one in self.tools]
        named = isinstance(self.tool_choice, ToolChoice)
        if named:
            functions = [f for f in functions if f["name"] == self.tool_choice.function.name]
        if not functions:
            raise BadInput("tool_choice names none of the tools.", "tool_choice")
        required = named or self.tool_choice == "required"
        return Tools(
            json.dumps(functions), required, not named and self.parallel_tool_calls is not False
        )

    @property
    def characters(self) -> int:
        turns = [message.turn() for message in self.messages]
        calls = sum(len(call.arguments) for turn in turns for call in turn.calls)
        tools = len(self.callable_tools.functions) if self.callable_tools else 0
        return sum(len(turn.content) for turn in turns) + calls + tools

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.max_tokens and self.max_completion_tokens:
            message = "max_tokens and max_completion_tokens name one limit; give one of them."
            raise BadInput(message, "max_tokens")
        self.max_tokens = self.max_tokens or self.max_completion_tokens
        if not all(one.turn().content.strip() for one in self.messages if one.role == "user"):
            raise BadInput("A user message is empty; write a question or a task.", "messages")
        roles = [message.role for message in self.messages]
        if self.extension.baseline and (self.stop or self.tools or roles != ["user"]):
            message = "speculative.baseline needs one user message, no stop strings, no tools."
            raise BadInput(message, "speculative")
        if self.json_schema and self.callable_tools:
            raise BadInput("response_format and tools exclude each other.", "response_format")
        return self


class CompletionRequest(CommonRequest):
    prompt: str | Annotated[list[int], Field(fail_fast=True)]

    @property
    def characters(self) -> int:
        return len(self.prompt) if isinstance(self.prompt, str) else 0

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.extension.baseline:
            raise BadInput("speculative.baseline needs a chat.", "speculative")
        self.max_tokens = self.max_tokens or 16
        return self
