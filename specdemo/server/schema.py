"""The requests of the API, in the format of OpenAI's clients, and one extension: `speculative`.

A parameter that would change the answer but is not supported is refused by name, never ignored.
"""

import json
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import BeforeValidator, Field, create_model, model_validator

from specdemo.errors import BadInput
from specdemo.options import Whole, shown_json
from specdemo.runs.settings import (
    MAX_ANSWERS,
    MAX_LOGPROBS,
    MAX_NEW_TOKENS,
    Biases,
    Drafter,
    Factor,
    Penalty,
    Probability,
    Seed,
    Settings,
    StopTexts,
    Temperature,
    TopK,
)
from specdemo.text.chat import (
    ChatMessage,
    Content,
    Strict,
    ToolChoice,
    ToolList,
    answerable,
    callable_tools,
    content_text,
)
from specdemo.text.templates import Chat

SETTINGS = get_type_hints(Settings, include_extras=True)
Limit = Annotated[Whole, Field(ge=0, le=MAX_NEW_TOKENS)]
AnswerCount = Annotated[Whole, Field(ge=1, le=MAX_ANSWERS)]
Likeliest = Annotated[
    Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None,
    BeforeValidator(lambda value: None if value is False else value),
]

NOTHING: tuple[object, ...] = None, 0, "", [], {}, "none", "auto", {"type": "text"}, ["text"]

DEFAULTS: dict[str, tuple[object, ...]] = {
    name: values
    for values, names in (
        (NOTHING, "logprobs top_logprobs echo suffix tools tool_choice functions function_call"),
        (NOTHING, "response_format modalities audio"),
        ((True,), "skip_special_tokens spaces_between_special_tokens detokenize"),
        ((False,), "use_beam_search include_stop_str_in_output early_stopping return_token_ids"),
        ((False,), "return_tokens_as_token_ids"),
        ((False,), "add_special_tokens"),  # of a chat, whose template adds them
        ((1,), "length_penalty typical_p tfs_z repeat_penalty"),
        ((0,), "min_tokens mirostat n_probs n_keep dynatemp_range dry_multiplier xtc_probability"),
        (([],), "stop_token_ids bad_words documents"),
        ((None,), "truncate_prompt_tokens prompt_logprobs allowed_token_ids chat_template"),
        ((None,), "guided_json structured_outputs web_search_options"),
        (("",), "grammar"),
    )
    for name in names.split()
}
"""Parameters, of vLLM and llama.cpp too, that are accepted with these values only, or with null:
those that have no field."""

INSTEAD = {"functions": "tools", "function_call": "tool_choice"} | dict.fromkeys(
    ("guided_json", "structured_outputs", "grammar"), "response_format"
)

IGNORED = (
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "reasoning_effort verbosity parallel_tool_calls session_id request_id priority cache_salt "
    "cache_prompt id_slot timings_per_token return_progress include_reasoning keep_alive"
).split()
"""Parameters that do not change an answer here."""

UNSET = {"seed": -1, "top_k": -1}
"""Values with which clients ask for the default."""


class StreamOptions(Strict, extra="ignore"):
    include_usage: bool = False


class Extension(Strict):
    """The extension of a request: what else to run and to send, and any field of Settings."""

    trace: bool = False
    baseline: bool = False


if TYPE_CHECKING:  # the fields of Settings that it has are only read all together
    Speculative = Extension
else:
    Speculative = create_model(
        "Speculative",
        __base__=Extension,
        __doc__=Extension.__doc__,
        **{name: (kind, None) for name, kind in SETTINGS.items() if name != "stop"},
    )


class CommonRequest(Strict):
    model: str
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    logit_bias: Biases | None = None
    ignore_eos: bool | None = None
    stop: StopTexts | None = None
    n: AnswerCount | None = None
    best_of: AnswerCount | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    speculative: Speculative | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_supported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in DEFAULTS.keys() - cls.model_fields.keys():
            if value.get(name) not in (None, *DEFAULTS[name]):
                default, wrong = json.dumps(DEFAULTS[name][0]), shown_json(value[name])
                advice = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
                message = f"{name} is {wrong}; this server takes only {default}; {advice}."
                raise BadInput(message, name, "unsupported_parameter")
        dropped = {*DEFAULTS, *IGNORED} - cls.model_fields.keys()
        unset = {name for name, default in UNSET.items() if value.get(name) == default}
        return {name: value[name] for name in value.keys() - dropped - unset}

    def _require_few_answers(self) -> None:
        if self.best_of not in (None, self.n or 1):
            raise BadInput(f"best_of is {self.best_of}; it must be n, or left out.", "best_of")
        if self.answers > MAX_ANSWERS:
            message = f"n is {self.n}, so {self.answers} answers are wanted; this server gives"
            raise BadInput(f"{message} {MAX_ANSWERS} at most.", "n")
        if self.extension.baseline and self.answers > 1:
            raise BadInput("speculative.baseline needs n to be 1.", "speculative")

    @property
    def extension(self) -> Extension:
        return self.speculative or Speculative()

    @property
    def json_schema(self) -> str:
        """The JSON Schema that the answer must follow, as text; "" for none."""
        return ""

    @property
    def prompt_count(self) -> int:
        return 1

    @property
    def answers(self) -> int:
        return self.prompt_count * (self.n or 1)

    def settings(self, default_limit: int = 1, drafter: Drafter = "auto") -> Settings:
        """The settings of the first answer; without a seed, each call draws a new one. A limit of
        no tokens is 1 here: it has to be cut off."""
        limit = default_limit if self.max_tokens is None else max(self.max_tokens, 1)
        start: dict[str, Any] = {"max_new_tokens": limit, "temperature": 1.0, "drafter": drafter}
        start["seed"] = secrets.randbits(32)
        sampling = self.model_dump(include=set(SETTINGS), exclude_none=True)
        extension = self.extension.model_dump(include=set(SETTINGS), exclude_unset=True)
        return Settings(**start | sampling | {"json_schema": self.json_schema} | extension)


class Prediction(Strict):
    type: Literal["content"]
    content: Content


class NamedSchema(Strict):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class ChatRequest(CommonRequest):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Limit | None = None
    response_format: ResponseFormat | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest = None
    prediction: Prediction | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=100)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # no template reads it

    @cached_property
    def chat(self) -> Chat:
        """What is to be answered. Some templates, such as that of gpt-oss, read the effort."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        turns = [message.turn() for message in self.messages]
        several = self.parallel_tool_calls is not False
        tools = callable_tools(self.tools, self.tool_choice, several)
        variables = effort | (self.chat_template_kwargs or {})
        return answerable(Chat(turns, bool(self.continue_final_message), tools, variables))

    @property
    def top_count(self) -> int | None:
        """How many of the likeliest tokens the log-probabilities have; None without them."""
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def predicted(self) -> str:
        """A text that the answer may repeat."""
        return content_text(self.prediction.content) if self.prediction else ""

    @cached_property
    def json_schema(self) -> str:
        form = self.response_format or ResponseFormat(type="text")
        if (form.json_schema is None) == (form.type == "json_schema"):
            message = "response_format.json_schema is missing, or the type is not json_schema."
            raise BadInput(message, "response_format")
        if form.json_schema:
            return json.dumps(form.json_schema.schema_)
        return "" if form.type == "text" else '{"type": "object"}'

    @property
    def characters(self) -> int:
        """Of all texts that the model reads."""
        return self.chat.characters + len(self.predicted)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._require_few_answers()
        if None not in (self.max_tokens, self.max_completion_tokens):
            message = "max_tokens and max_completion_tokens name one limit; give one of them."
            raise BadInput(message, "max_tokens")
        if self.max_tokens is None:
            self.max_tokens = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise BadInput("top_logprobs needs logprobs to be true.", "top_logprobs")
        if self.add_generation_prompt is bool(self.continue_final_message):
            message = "add_generation_prompt must be the opposite of continue_final_message."
            raise BadInput(message, "add_generation_prompt")
        roles = [turn.role for turn in self.chat.turns]
        if self.extension.baseline and (self.settings().stop or self.tools or roles != ["user"]):
            message = "speculative.baseline needs one user message, no stop strings, no tools."
            raise BadInput(message, "speculative")
        return self


def _listed(prompt: Any) -> Any:
    """A list of prompts: a single one is a text, or a list of token ids."""
    tokens = isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)
    return [prompt] if isinstance(prompt, str) or tokens else prompt


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
Prompts = Annotated[
    list[str | TokenIds],
    Field(min_length=1, max_length=MAX_ANSWERS, fail_fast=True),
    BeforeValidator(_listed, json_schema_input_type=str | list[str] | TokenIds | list[TokenIds]),
]


class CompletionRequest(CommonRequest):
    prompt: Prompts
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Likeliest = None
    add_special_tokens: bool | None = None

    @property
    def prompt_count(self) -> int:
        return len(self.prompt)

    @property
    def characters(self) -> int:
        texts = [*self.prompt, self.suffix or ""]
        return sum(len(text) for text in texts if isinstance(text, str))

    @property
    def top_count(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._require_few_answers()
        if self.extension.baseline:
            raise BadInput("speculative.baseline needs a chat.", "speculative")
        if self.suffix and self.echo:
            raise BadInput("echo cannot be combined with suffix; leave out one.", "echo")
        if self.max_tokens is None:
            self.max_tokens = 16
        return self


AnswerRequest = ChatRequest | CompletionRequest
