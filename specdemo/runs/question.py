"""What a session is asked, and the events of its answer."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.options import shown
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.text.chat import read_messages
from specdemo.text.templates import Message
from specdemo.text.tools import Tools

Event = Waiting | Round | BaselineToken | Trace

Prompt = str | Sequence[Message] | Sequence[int]
"""An instruction or a conversation, for which the model's chat template is used, or token ids."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to answer; the trace has its text as `instruction`, or the `title` of token ids.
    With `baseline` it is decoded autoregressively too, and a short race is repeated until
    `race.enough` for `repeat` seconds (0: never). Unless `measured` is set, a race does not wait
    for missing measurements, which can take half a minute. Setting `stop` ends the answer within
    one round. `loading` tells whether models are being loaded. The answer may call `tools`, of
    which the prompt must tell. Rounds have `logprobs` with so many of the likeliest tokens, unless
    it is None. What the answer repeats of the tokens `prediction` is drafted from them."""

    prompt: Prompt
    settings: Settings
    title: str = ""
    baseline: bool = False
    measured: bool = True
    stop: threading.Event | None = None
    repeat: float = 0.0
    loading: Callable[[], bool] = lambda: False
    tools: Tools | None = None
    logprobs: int | None = None
    prediction: tuple[int, ...] = ()

    @property
    def instruction(self) -> str:
        """The prompt in words: the text, the last message, or the title."""
        if self.title or isinstance(self.prompt, str) or not self.prompt:
            return self.title or str(self.prompt or "")
        last = self.prompt[-1]
        return last.content if isinstance(last, Message) else ""


def trace_of(events: Iterable[Event]) -> Trace:
    """The trace at the end of a session's events."""
    [trace] = deque(events, maxlen=1)
    assert isinstance(trace, Trace)
    return trace


def is_batch(prompt: object) -> bool:
    """Whether `prompt` is a list of prompts: of texts or of lists."""
    if not isinstance(prompt, list | tuple):
        return False
    return len(prompt) > 0 and all(isinstance(item, str | list | tuple) for item in prompt)


def read_prompt(prompt: object, name: str = "The prompt") -> Prompt:
    """A text, a list of messages (of Message or OpenAI's dicts), or a list of token ids. Raises
    BadInput for anything else."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple) and prompt:
        if all(isinstance(item, Message | Mapping) for item in prompt):
            return read_messages(prompt)
        if all(type(item) is int for item in prompt):
            return tuple(prompt)
    choices = "a text, a list of messages (dicts with role and content) or a list of token ids"
    raise BadInput(f"{name} is {shown(prompt)}; it must be {choices}.", "prompt")
