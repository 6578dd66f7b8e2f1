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
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.text.chat import Chat, read_messages
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

    def repeated(self, number: int) -> Question:
        """The question with the seed that is `number` after its own."""
        seed = (self.settings.seed + number) % 2**63
        return replace(self, settings=replace(self.settings, seed=seed))


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


def read_prompt(prompt: object, name: str = "The prompt", **fields: Any) -> Chat | tuple[int, ...]:
    """The conversation of a text or of messages (Message or OpenAI's dicts) with other `fields` of
    Chat, or the token ids of a list of them. Raises BadInput for anything else."""
    if prompt == () or (isinstance(prompt, str) and not prompt.strip()):
        raise BadInput("The prompt is empty; write a question or a task.", "prompt")
    if isinstance(prompt, str):
        return Chat([Message("user", prompt)], **fields)
    if isinstance(prompt, list | tuple) and prompt:
        if all(isinstance(item, Message | Mapping) for item in prompt):
            return Chat(read_messages(prompt), **fields)
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
        prompt = prompt.prompt(loaded.template, loaded.tokenizer)
    return Question(
        prompt,
        settings,
        title,
        tools=tools,
        prediction=tuple(loaded.tokenizer.encode_beginning(prediction)),
        continues=continues,
        **fields,
    )
