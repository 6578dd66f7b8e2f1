"""The public face: `specdemo.load` gives a Pipeline, and a Pipeline gives Answers."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, TypedDict, Unpack, overload

from pydantic import BaseModel

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.errors import BadInput
from specdemo.host.terminal import progress_bar
from specdemo.options import parse, unusable
from specdemo.pairs.loading import LoadedPair, load_pair
from specdemo.pairs.registry import ModelChoice, WeightFormat, chosen_pair
from specdemo.runs.question import Event, Question, is_batch, read_prompt, trace_of
from specdemo.runs.race import verdict
from specdemo.runs.session import ACTIVE_REQUESTS, Session, compiled_session
from specdemo.runs.settings import Coupling, Drafter, Settings
from specdemo.runs.trace import Trace, summarize
from specdemo.text.chat import read_messages
from specdemo.text.stops import StopStrings
from specdemo.text.templates import Message as Message

Conversation = Sequence[Message | Mapping[str, Any]]
PromptLike = str | Conversation | Sequence[int]
"""A text or messages, for which the chat template is used, or token ids, used as they are."""

Batch = list[str] | tuple[str, ...] | Sequence[Conversation] | Sequence[Sequence[int]]

STYLES = {
    "accepted": "background: #00785a33",
    "forced": "background: #8a3fa033",
    "correction": "background: #b04a0033; text-decoration: wavy underline",
    "bonus": "background: #0069a833; text-decoration: double underline",
}
"""CSS of a token in a notebook, by kind; others have none."""


class Options(TypedDict, total=False):
    """How to answer: the fields of `runs.settings.Settings`, which has their limits, and:
    `num_assistant_tokens`, transformers' name of `draft_tokens`; `do_sample`, also transformers'
    (False is temperature 0; with True it is 1 unless given); `prediction`, a text that the answer
    may repeat, as a source of drafts. The answer ends before a `stop` text. `json_schema` makes it
    JSON: a JSON Schema as text or a dict, or a pydantic model."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    json_schema: str | Mapping[str, Any] | type[BaseModel]
    draft_tokens: int | Literal["auto"] | None
    drafter: Drafter
    coupling: Coupling
    numerics: Literal["exact", "fast"]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    prediction: str
    num_assistant_tokens: int
    do_sample: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and how it was made. `str(answer)` is its text."""

    trace: Trace

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return self.trace.text

    @property
    def tokens(self) -> list[DraftToken | EmittedToken]:
        """Each has `id`, `text` and `kind`: "accepted" for a draft token, "forced" if the schema
        allows no other; otherwise the target added it: the "first" one, a "correction", a "bonus",
        or a "plain" one where nothing was drafted."""
        return self.trace.tokens

    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "cancelled"]:
        """ "stop": the model ended the answer, or a stop text did."""
        return self.trace.finish_reason

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token that the target judged; None without any."""
        return summarize(self.trace).acceptance_rate

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: without the first token, which comes from the prefill."""
        return summarize(self.trace).tokens_per_second

    @property
    def identical(self) -> bool | None:
        """Of a race: whether both runs, and all repeats, have the same tokens. Otherwise None."""
        return self.trace.identical

    @property
    def speedup(self) -> float | None:
        """Of a race: seconds of autoregressive decoding over those of speculative decoding, per
        token after the first. Otherwise None."""
        return summarize(self.trace).speedup

    @property
    def speedup_range(self) -> tuple[float, float] | None:
        """The least and the largest speed-up of a repeated race, of which `speedup` is the median;
        other work of this process disturbed none of them. None without such a race."""
        race = verdict(self.trace)
        return race.range if race else None

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
        if self.speedup is not None:
            figures.append(f"speed-up {self.speedup:.2f}")
        text = f'<div style="white-space: pre-wrap">{tokens}</div>'
        return f"{text}<small>{', '.join(figures)}</small>"


class ChatTokenizer:
    """The tokenizer of the target model, with its chat template."""

    def __init__(self, loaded: LoadedPair):
        self._tokenizer, self._template = loaded.tokenizer, loaded.template

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special`, texts such as `<|im_start|>` become special
        tokens."""
        return self._tokenizer.encode(text, special=special)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, without special tokens unless `special`."""
        return self._tokenizer.decode(ids, special=special)

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
        return self._template.render_chat(
            read_messages(conversation, continues=continue_final_message),
            self._tokenizer,
            tools,
            continue_final_message=continue_final_message,
            chat_template_kwargs=variables,
        )


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
    def generate(self, prompt: Batch, **options: Unpack[Options]) -> list[Answer]: ...
    def generate(
        self, prompt: PromptLike | Batch, **options: Unpack[Options]
    ) -> Answer | list[Answer]:
        """The whole answer. Those to a batch are made together; each is the same as alone."""
        if not is_batch(prompt):
            return Answer(trace_of(self.session.ask(_question(prompt, options))))
        stop = threading.Event()
        questions = [
            _question(item, options, name=f"Prompt {number} of the list", stop=stop)
            for number, item in enumerate(prompt)
        ]
        runs = [self.session.ask(question) for question in questions]
        with ThreadPoolExecutor(min(len(runs), ACTIVE_REQUESTS), "specdemo-batch") as pool:
            try:
                return [Answer(trace) for trace in pool.map(trace_of, runs)]
            except BaseException:
                stop.set()
                raise

    def stream(self, prompt: PromptLike, **options: Unpack[Options]) -> Generator[str, None, None]:
        """The answer's text in pieces, one a round. Closing the iterator ends the answer."""
        question = _question(prompt, options)
        return _pieces(self.session.ask(question), question.settings.stop)

    async def astream(
        self, prompt: PromptLike, **options: Unpack[Options]
    ) -> AsyncGenerator[str, None]:
        """`stream` for `async for`. Cancelling the task, or closing the iterator, ends the answer
        within one round."""
        loop, stop = asyncio.get_running_loop(), threading.Event()
        arrived = asyncio.Queue[str | BaseException | None]()
        question = _question(prompt, options, stop=stop)

        def put(item: str | BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has closed, so nothing is read
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        def answer() -> None:
            try:
                for piece in _pieces(self.session.ask(question), question.settings.stop):
                    put(piece)
                put(None)
            except BaseException as error:
                put(error)

        threading.Thread(target=answer, name="specdemo-astream", daemon=True).start()
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()

    def race(
        self, prompt: PromptLike, *, repeat: float = 0.0, **options: Unpack[Options]
    ) -> Answer:
        """Answers, then decodes autoregressively too: the answer has `identical` and `speedup`. The
        first race waits until all is compiled. A short one is repeated until both ways have decoded
        for `repeat` seconds, which gives a `speedup_range`."""
        question = _question(prompt, options, baseline=True, repeat=repeat)
        return Answer(trace_of(self.session.ask(question)))

    def close(self) -> None:
        """End running answers and release the models."""
        self.session.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _question(
    prompt: object, options: Options, *, name: str = "The prompt", **fields: Any
) -> Question:
    if is_batch(prompt):
        raise BadInput(f"{name} is a list of prompts; only generate takes several.", "prompt")
    settings: dict[str, Any] = {**options}
    if "num_assistant_tokens" in settings:
        settings["draft_tokens"] = settings.pop("num_assistant_tokens")
    if (sampled := settings.pop("do_sample", None)) is not None:
        settings["temperature"] = settings.get("temperature", 1.0) if sampled else 0.0
    if (schema := settings.get("json_schema")) is not None:
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        try:
            settings["json_schema"] = schema if isinstance(schema, str) else json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            expected = f"it must be a JSON Schema ({error})"
            raise unusable("json_schema", schema, expected) from None
    prediction = fields["prediction"] = settings.pop("prediction", "")
    if not isinstance(prediction, str):
        raise unusable("prediction", prediction, "it must be a text")
    return Question(read_prompt(prompt, name), parse(Settings, settings), **fields)


def _pieces(events: Iterable[Event], stop: Sequence[str]) -> Generator[str, None, None]:
    """The text of the answer as it becomes certain: it may go on as a stop text does."""
    stops = StopStrings(stop)
    for event in events:
        if isinstance(event, Round):
            piece = stops.push("".join(token.text for token in event.tokens))
        else:
            piece = stops.rest() if isinstance(event, Trace) else ""
        if piece:
            yield piece


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
    choice = parse(
        ModelChoice,
        {
            "pair": pair,
            "model": model,
            "assistant_model": assistant_model,
            "device": device,
            "draft_device": draft_device,
            "weight_format": weight_format,
            "kv_cache": kv_cache,
            "thinking": thinking,
        },
    )
    with progress_bar() as report:
        loaded = load_pair(chosen_pair(choice), report)
        return Pipeline(compiled_session(loaded, report, threads=threads))
