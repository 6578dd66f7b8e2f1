"""The public face: `specdemo.load` gives a Pipeline, and a Pipeline gives Answers."""

import json
import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypedDict, Unpack, overload

from pydantic import BaseModel, Field, ValidationError

from specdemo.errors import BadInput
from specdemo.machine.terminal import progress_bar
from specdemo.machine.threads import merged
from specdemo.options import Whole, parse, shown, unusable, wrong_parameter
from specdemo.pairs.loading import LoadedPair
from specdemo.pairs.registry import ModelChoice, WeightFormat, chosen_pair
from specdemo.runs.question import (
    Question,
    as_lists,
    is_batch,
    question_of,
    read_prompt,
    trace_of,
    with_text,
)
from specdemo.runs.session import ACTIVE_REQUESTS, Session, open_session
from specdemo.runs.settings import MAX_ANSWERS, MAX_LOGPROBS, Coupling, Drafter, Settings
from specdemo.runs.trace import Trace
from specdemo.text.chat import (
    Strict,
    ToolChoice,
    ToolList,
    answerable,
    callable_tools,
    read_messages,
)
from specdemo.text.templates import Chat
from specdemo.text.templates import Message as Message
from specdemo.text.tools import Tools

Answer = Trace
"""An answer and how it was made. `str(answer)` is its text."""

Conversation = Sequence[Message | Mapping[str, Any]]
PromptLike = str | Conversation | Sequence[int]
"""A text or messages, for which the chat template is used, or token ids, used as they are."""

Batch = list[str] | tuple[str, ...] | Sequence[Conversation] | Sequence[Sequence[int]]

NUMBERS = {field.name for field in fields(Settings) if type(field.default) in (int, float)}


class Options(TypedDict, total=False):
    """How to answer: the fields of `runs.settings.Settings`, which has their limits, and more."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]  # the answer ends before such a text
    json_schema: str | Mapping[str, Any] | type[BaseModel]
    """Makes it JSON: a JSON Schema as text or a dict, or a pydantic model."""

    draft_tokens: int | Literal["auto"] | None
    drafter: Drafter
    coupling: Coupling
    numerics: Literal["exact", "fast"]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    prediction: str  # a text that the answer may repeat, as a source of drafts
    num_assistant_tokens: int  # transformers' name of `draft_tokens`
    do_sample: bool  # transformers': False is temperature 0; with True it is 1 unless given
    tools: Sequence[Mapping[str, Any]]  # OpenAI's; the answer has its `calls`
    tool_choice: Literal["none", "auto", "required"] | Mapping[str, Any]
    logprobs: int  # the answer's have so many of the likeliest tokens
    continue_final_message: bool  # the answer continues the last message, the assistant's


class Extras(Strict):
    """The options that are no Settings."""

    prediction: str = ""
    tools: ToolList = []
    tool_choice: ToolChoice = "auto"
    logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    continue_final_message: bool = False


@dataclass(frozen=True)
class OtherNumbers:
    """Numbers that are no options of a question."""

    threads: Annotated[Whole, Field(ge=1)] | None = None  # of an inference
    repeat: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # seconds


class ChatTokenizer:
    """The tokenizer of the target model, with its chat template."""

    def __init__(self, loaded: LoadedPair):
        self._tokenizer, self._template = loaded.tokenizer, loaded.template

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special`, texts such as `<|im_start|>` become special
        tokens. Raises BadInput."""
        if not isinstance(text, str):
            raise unusable("text", text, "it must be text")
        return self._tokenizer.encode(text, special=special, limited=False)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, without special tokens unless `special`. Raises BadInput."""
        try:
            return self._tokenizer.decode(ids, special=special)
        except (TypeError, ValueError, OverflowError):
            raise unusable("ids", ids, "it must be a list of token ids") from None

    def apply_chat_template(
        self,
        conversation: str | Conversation,
        *,
        tools: Sequence[dict[str, Any]] = (),
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The token ids of the prompt that asks for the next message, which `generate` takes too:
        those of transformers' method of this name, but no text of a message becomes a special
        token. `tools` are OpenAI's definitions. With `continue_final_message` the answer continues
        the last message, the assistant's. `variables` are those of the template, such as
        `enable_thinking`. Raises BadInput."""
        if isinstance(conversation, str):
            conversation = [Message("user", conversation)]
        listed = Tools("[]", listed=tools) if tools else None
        turns = read_messages(conversation)
        chat = answerable(Chat(turns, continue_final_message, listed, variables))
        return self._template.render_chat(chat, self._tokenizer)


class Pipeline(AbstractContextManager["Pipeline"]):
    """A loaded pair (thread safe).

    A list of strings or of lists is a batch of prompts; any other list is one prompt: a list of
    dicts (or Messages) one conversation, a list of ints its token ids. All methods raise BadInput
    for prompts and options that cannot be used, before anything runs."""

    def __init__(self, session: Session):
        self.session = session

    @property
    def tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(self.session.loaded)

    @overload
    def generate(self, prompt: PromptLike, **options: Unpack[Options]) -> Answer: ...
    @overload
    def generate(
        self, prompt: PromptLike | Batch, *, n: int, **options: Unpack[Options]
    ) -> list[Answer]: ...
    @overload
    def generate(self, prompt: Batch, **options: Unpack[Options]) -> list[Answer]: ...
    def generate(
        self, prompt: PromptLike | Batch, *, n: int | None = None, **options: Unpack[Options]
    ) -> Answer | list[Answer]:
        """The answer, complete. Those to a batch are made together; each is the same as alone.
        With `n` a list of so many to each prompt, from the seeds s, s + 1, ..."""
        prompt, stop = as_lists(prompt), threading.Event()
        if not is_batch(prompt):
            if n is None:
                return trace_of(self.session.ask(self._question(prompt, options)))
            prompt = [prompt]  # type: ignore[assignment]
        if n is not None and not (type(n) is int and 1 <= n <= MAX_ANSWERS):
            raise unusable("n", n, f"it must be from 1 to {MAX_ANSWERS}")
        questions = [
            self._question(item, options, f"Prompt {number} of the list", stop=stop)
            for number, item in enumerate(prompt)
        ]
        runs = [
            self.session.ask(question.repeated(number))
            for question in questions
            for number in range(n or 1)
        ]
        with ThreadPoolExecutor(min(len(runs), ACTIVE_REQUESTS), "specdemo-batch") as pool:
            try:
                return list(pool.map(trace_of, runs))
            except BaseException:
                stop.set()
                raise

    def stream(self, prompt: PromptLike, **options: Unpack[Options]) -> Generator[str, None, None]:
        """The answer's text in pieces, one a round. Closing the iterator ends the answer."""
        events = self.session.ask(self._question(prompt, options))
        return (text for _, text in with_text(events) if text)

    async def astream(
        self, prompt: PromptLike, **options: Unpack[Options]
    ) -> AsyncGenerator[str, None]:
        """`stream` for `async for`. Cancelling the task, or closing the iterator, ends the answer
        within one round."""
        stop = threading.Event()
        events = with_text(self.session.ask(self._question(prompt, options, stop=stop)))
        async with aclosing(merged({stop: (text for _, text in events if text)})) as pieces:
            async for piece in pieces:
                yield piece or ""

    def race(
        self, prompt: PromptLike, *, repeat: float = 0.0, **options: Unpack[Options]
    ) -> Answer:
        """Answers, then decodes autoregressively too: the answer has `identical`, `speedup` and a
        `verdict`. The first race waits until all is compiled. One race decides nothing: it is
        repeated until enough count, and decode for `repeat` seconds, or until that takes long."""
        seconds = parse(OtherNumbers, {"repeat": repeat}).repeat
        question = self._question(prompt, options, baseline=True, repeat=seconds)
        return trace_of(self.session.ask(question))

    def _question(
        self, prompt: object, options: Options, name: str = "The prompt", **fields: Any
    ) -> Question:
        prompt, settings = as_lists(prompt), dict[str, Any](options)
        if is_batch(prompt):
            raise BadInput(f"{name} is a list of prompts; only generate takes several.", "prompt")
        others = {name: settings.pop(name) for name in Extras.model_fields if name in settings}
        try:
            extras = Extras.model_validate(others)
        except ValidationError as error:
            raise wrong_parameter(error.errors(), others, words=shown) from None
        if "num_assistant_tokens" in settings:
            settings["draft_tokens"] = settings.pop("num_assistant_tokens")
        if (sampled := settings.pop("do_sample", None)) is not None:
            if not isinstance(sampled, bool):
                raise unusable("do_sample", sampled, "it must be True or False")
            settings["temperature"] = settings.get("temperature", 1.0) if sampled else 0.0
        if (schema := settings.get("json_schema")) is not None:
            if hasattr(schema, "model_json_schema"):
                schema = closed(schema.model_json_schema())
            try:
                settings["json_schema"] = schema if isinstance(schema, str) else json.dumps(schema)
            except (TypeError, ValueError, RecursionError) as error:
                expected = f"it must be a JSON Schema ({error})"
                raise unusable("json_schema", schema, expected) from None
        for option, value in settings.items():
            if isinstance(value, str) and option in NUMBERS:
                raise unusable(option, value, "it must be a number")
        parsed = parse(Settings, settings)
        tools = callable_tools(extras.tools, extras.tool_choice)
        return question_of(
            self.session.loaded,
            read_prompt(prompt, name, continues=extras.continue_final_message, tools=tools),
            parsed,
            extras.prediction,
            tools,
            logprobs=extras.logprobs,
            **fields,
        )

    def __repr__(self) -> str:
        info = self.session.info
        return f"<Pipeline of {info.target}, draft by {info.draft or 'n-gram lookup'}>"

    def close(self) -> None:
        """End running answers and release the models."""
        self.session.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def closed(schema: Any) -> Any:
    """A JSON Schema of a Pydantic model whose objects have no other properties than the model's: a
    small target model would add some up to the longest answer."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {name: closed(value) for name, value in schema.items()}
    return {"additionalProperties": False} | shut if "properties" in shut else shut


def load(
    pair: str = "",
    *,
    model: str = "",
    assistant_model: str = "",
    device: str = "CPU",
    draft_device: str = "CPU",
    weight_format: WeightFormat = "auto",
    kv_cache: Literal["auto", "f32", "f16", "u8"] = "auto",
    thinking: bool = False,
    threads: int | None = None,
) -> Pipeline:
    """Load a pair by name (`specdemo pairs` lists them), or any `model` with or without an
    `assistant_model`: a folder, a GGUF file or a Hub repository each. Without any, the largest
    Dolly pair that is here and fits, else the embedded pair. Missing files are fetched, with a
    progress bar.

    The other options are those of `specdemo run`; `threads` bounds the processor threads of an
    inference. Raises BadInput for an unusable choice, FetchError, ModelError or MissingPackage.
    """
    values = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in locals().items()
    }
    numbers = parse(OtherNumbers, {"threads": values.pop("threads")})
    choice = parse(ModelChoice, values)
    if os.sep in choice.pair or choice.pair.lower().endswith(".gguf"):
        message = f"{choice.pair!r} names no pair; pass files and folders as model=..."
        raise BadInput(message, "pair")
    chosen = chosen_pair(choice)
    with progress_bar() as report:
        return Pipeline(open_session(chosen, report, threads=numbers.threads))
