"""What a session is asked, and the events of its answer."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Self

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.options import shown
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.text.chat import answerable, read_messages
from specdemo.text.templates import Chat, Message
from specdemo.text.tools import Tools

SessionEvent = Waiting | Round | BaselineToken | Trace

Prompt = str | Sequence[Message] | Sequence[int]
"""An instruction or a conversation, for which the model's chat template is used, or token ids."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to answer, and how."""

    prompt: Prompt
    settings: Settings
    title: str = ""  # the `instruction` of a prompt of token ids in the trace
    baseline: bool = False  # decode it autoregressively too
    measured: bool = True  # a race waits for missing measurements: up to half a minute
    stop: threading.Event = field(default_factory=threading.Event)  # ends it within one round
    repeat: float = 0.0  # seconds to repeat a short race until `race.enough`; 0: never
    loading: Callable[[], bool] = lambda: False  # whether models are being loaded
    tools: Tools | None = None  # that the answer may call; the prompt must tell of them
    logprobs: int | None = None  # how many of the likeliest tokens each token has; None: no scores
    candidates: bool = False  # other tokens of a rejected one's place, in the first race
    prediction: tuple[int, ...] = ()  # token ids that the answer may repeat: a source of drafts
    continues: bool = False  # the text of the prompt, after which a space is kept

    @property
    def ignores_end(self) -> bool:
        """Whether the answer goes on after a token that ends it; JSON and calls do not."""
        return self.settings.ignore_eos and not (self.settings.json_schema or self.tools)

    @property
    def instruction(self) -> str:
        """The prompt in words: the text, the last message, or the title."""
        if self.title or isinstance(self.prompt, str) or not self.prompt:
            return self.title or str(self.prompt or "")
        last = self.prompt[-1]
        return last.content if isinstance(last, Message) else ""

    def repeated(self, number: int) -> Self:
        """The question with the seed that is `number` after its own."""
        return replace(self, settings=self.settings.later(number))


def with_text(events: Iterable[SessionEvent]) -> Generator[tuple[SessionEvent, str]]:
    """The events of an answer, each with the certain text that it adds; the Trace has the last of
    it."""
    sent = 0
    for event in events:
        text = event.text if isinstance(event, Round) else ""
        if isinstance(event, Trace):
            text = event.text[sent:]
        sent += len(text)
        yield event, text


def trace_of(events: Iterable[SessionEvent]) -> Trace:
    """The trace at the end of a session's events."""
    [trace] = deque(events, maxlen=1)
    assert isinstance(trace, Trace)
    return trace


def as_lists(prompt: Any) -> Any:
    """A prompt or several, with lists in place of arrays."""
    if isinstance(prompt, list | tuple) and not isinstance(prompt, Message):
        return [as_lists(item) if hasattr(item, "tolist") else item for item in prompt]
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt


def is_batch(prompt: object) -> bool:
    """Whether `prompt` is a list of prompts: of texts or of lists."""
    if not isinstance(prompt, list | tuple):
        return False
    return len(prompt) > 0 and all(isinstance(item, str | list | tuple) for item in prompt)


def read_prompt(prompt: object, name: str = "The prompt", **fields: Any) -> Chat | tuple[int, ...]:
    """The conversation of a text or of messages (Message or OpenAI's dicts) with other `fields` of
    Chat, or the token ids of a list of them. Raises BadInput for anything else."""
    if prompt == () or (isinstance(prompt, str) and not prompt.strip()):
        raise BadInput("The prompt is empty; write a question or a task.", "prompt")
    if isinstance(prompt, str):
        return answerable(Chat([Message("user", prompt)], **fields))
    if isinstance(prompt, list | tuple) and prompt:
        if all(isinstance(item, Message | Mapping) for item in prompt):
            return answerable(Chat(read_messages(prompt), **fields))
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in prompt):
            return tuple(map(int, prompt))
    choices = "a text, a list of messages (dicts with role and content) or a list of token ids"
    raise BadInput(f"{name} is {shown(prompt)}; it must be {choices}.", "prompt")


def question_of(
    loaded: LoadedPair,
    prompt: Chat | tuple[int, ...],
    settings: Settings,
    prediction: str = "",
    tools: Tools | None = None,
    **fields: Any,
) -> Question:
    """The question whose answer is the next message of a chat, or continues token ids. `prediction`
    is a text; `fields` are others of Question. Raises BadInput."""
    title, continues, tools = "", True, tools and loaded.template.written(tools)
    if isinstance(prompt, Chat):
        title, continues = prompt.turns[-1].content, prompt.continues
        prompt = tuple(loaded.template.render_chat(prompt, loaded.tokenizer))
    return Question(
        prompt,
        settings,
        title,
        tools=tools,
        prediction=tuple(loaded.tokenizer.encode_beginning(prediction)),
        continues=continues,
        **fields,
    )
