"""What a session is asked, the run that answers it, and the events of the answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from specdemo.engine.messages import Round
from specdemo.engine.scheduler import Handle, Waiting
from specdemo.errors import BadInput
from specdemo.host.hardware import EnergyMeter, processors, usual_share
from specdemo.options import shown
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.text.chat import read_messages
from specdemo.text.templates import Message
from specdemo.text.tokenizer import StopStrings, TextStream, Tokenizer
from specdemo.text.tools import CallReader, FunctionCall, Tools

if TYPE_CHECKING:
    from specdemo.engine.request import Request

SessionEvent = Waiting | Round | BaselineToken | Trace

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
    it is None; those of the first race have `candidates` if that is set. What the answer repeats
    of the tokens `prediction` is drafted from them. An answer that `continues` the text of the
    prompt keeps a space between both."""

    prompt: Prompt
    settings: Settings
    title: str = ""
    baseline: bool = False
    measured: bool = True
    stop: threading.Event = field(default_factory=threading.Event)
    repeat: float = 0.0
    loading: Callable[[], bool] = lambda: False
    tools: Tools | None = None
    logprobs: int | None = None
    candidates: bool = False
    prediction: tuple[int, ...] = ()
    continues: bool = False

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


class AnswerRun:
    """A submitted request, and the one place where its tokens become text. After its `events`: the
    `rounds` up to a stop string; the `joules` of the machine's processors during decoding, None
    where they cannot be read; `compiling`, whether models were loaded or compiled meanwhile."""

    def __init__(self, question: Question, request: Request, handle: Handle, tokenizer: Tokenizer):
        self.request, self.handle = request, handle
        self.rounds: list[Round] = []
        self.joules: float | None = None
        self._tokenizer = tokenizer
        self._tools = question.tools
        spelled = question.tools.markers(tokenizer) if question.tools else {}
        before = request.tokens if question.continues else ()
        self._stream = TextStream(tokenizer, before=before, spelled=spelled)
        self._stops = StopStrings(question.settings.stop)
        self._loading, self.compiling = question.loading, question.loading()

    def events(self) -> Generator[Waiting | Round]:
        """Yields the events as they come. Raises the request's error."""
        meter = None
        # Rounds after a stop string are not wanted, so it is looked for in each round at once.
        with closing(self.handle.events(at_once=self._stops.wanted)) as events:
            try:
                for event in events:
                    if isinstance(event, Round):
                        meter = meter or EnergyMeter()  # after the prefill, the first round
                        event = self._with_texts(event)
                        self.rounds.append(event)
                    yield event
                    if self._stops.ended:
                        return
                self._end_text()
            finally:
                self.joules = meter.joules if meter else None
                self.compiling = self.compiling or self.handle.compiling or self._loading()

    def result(self) -> Any:
        """What the request's `work` returned, after all its events."""
        deque(self.events(), maxlen=0)
        return self.handle.result

    def _with_texts(self, round_: Round) -> Round:
        """The round with texts, and without the tokens after a stop string. Rejected tokens are
        decoded by themselves."""
        for unused in (*round_.drafted[round_.accepted :], *round_.candidates):
            unused.text = self._tokenizer.decode([unused.id])
        for index, token in enumerate(round_.tokens):
            token.text = self._stream.push(token.id)
            round_.text += self._stops.push(token.text)
            if self._stops.ended and index < round_.accepted:
                drafted, logprobs = round_.drafted[: index + 1], round_.logprobs[: index + 1]
                return replace(round_, drafted=drafted, emitted=None, logprobs=logprobs)
        return round_

    def _end_text(self) -> None:
        """Add to the last round the text that later tokens could have changed."""
        if self.rounds:
            last, rest = self.rounds[-1], self._stream.rest()
            last.tokens[-1].text += rest
            last.text += self._stops.push(rest) + self._stops.rest()

    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "cancelled"]:
        if self._stops.ended:
            return "stop"
        reason: Literal["stop", "length", "context"] = self.handle.result
        return "cancelled" if self.handle.stopped else reason

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """Calls of tools, with ids of nine characters, as templates of Mistral want them."""
        text = "".join(round_.text for round_ in self.rounds)
        _, calls = CallReader(self._tools).read(text, last=True)
        return tuple(call._replace(id=f"call{number:05}") for number, call in enumerate(calls))

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for round_ in self.rounds for token in round_.tokens)

    @property
    def share(self) -> float:
        """The share of the processor time that its decoding could use and other programs left."""
        request = self.request
        # Threads of the plugin and of the kernels also wait for each other.
        usable = min(request.cpu + request.waited, processors() * request.decoding)
        return min(1.0, request.cpu / usable / usual_share()) if usable else 1.0

    @property
    def outside_seconds(self) -> float:
        """Seconds of decoding outside inference."""
        decoding = self.rounds[-1].shown_at - self.rounds[0].shown_at if self.rounds else 0.0
        return max(decoding - self.request.inference, 0.0)


def new_text(event: SessionEvent, sent: int) -> str:
    """The certain text that an event adds to the `sent` characters of an answer; the Trace has the
    last of it."""
    if isinstance(event, Trace):
        return event.text[sent:]
    return event.text if isinstance(event, Round) else ""


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


def read_prompt(prompt: object, name: str = "The prompt", continues: bool = False) -> Prompt:
    """A text, a list of messages (of Message or OpenAI's dicts), or a list of token ids. Raises
    BadInput for anything else."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple) and prompt:
        if all(isinstance(item, Message | Mapping) for item in prompt):
            return read_messages(prompt, continues=continues)
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in prompt):
            return tuple(map(int, prompt))
    choices = "a text, a list of messages (dicts with role and content) or a list of token ids"
    raise BadInput(f"{name} is {shown(prompt)}; it must be {choices}.", "prompt")
