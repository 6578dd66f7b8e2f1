"""One request to a model, and the events of its answer: turns text into a prompt, rounds into text up to a stop string.

Knows nothing of HTTP; everything here is plain data that can be sent to another process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specdemo.trace import BaselineToken, PairInfo, Round, Settings, Trace
from specdemo.metrics import Gauges
from specdemo.models.templates import Message, TemplateError

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Load, Waiting
    from specdemo.session import CacheUse
    from specdemo.models.load import LoadedPair

TITLE_CHARACTERS = 2000
"""How much of a prompt is kept as the `instruction` of a trace that did not begin with one."""


class Refused(ValueError):
    """A request that cannot be answered as it is: one sentence, and the parameter and the code that clients look at."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message, self.param, self.code = message, param, code

    def __reduce__(self):
        return type(self), (self.message, self.param, self.code)


@dataclass(frozen=True, slots=True)
class Request:
    """What to answer: an `instruction` in the pair's own template, or a conversation, or a text or tokens to go on from.

    Exactly one of the four is given. The answer ends before the first of the `stop` strings in it. `certify` says that
    the finished answer is checked by one more forward.
    """

    settings: Settings
    instruction: str | None = None
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    certify: bool = False


class Interrupted(RuntimeError):
    """An answer that cannot be begun after all, or not be finished; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request can be answered; it waits for its turn, or is being read."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The request's place among those that wait, 1 being next, and the seconds that may take (None: not known)."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Rounds that were made, and the text that is certain to be part of the answer since the last one."""

    rounds: tuple[Round, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end: the text still held back, why ("stop", "length" or "cancelled"), and all that happened."""

    text: str
    reason: str
    trace: Trace


Event = Started | Waits | Progress | Done


@dataclass(frozen=True, slots=True)
class Description:
    """The model that answers. `context_limit` and `longest` (the most tokens of one answer) are in tokens."""

    pair: PairInfo
    context_limit: int
    longest: int
    created: int
    machine: str = ""

    @property
    def model(self) -> str:
        """The name that clients ask for: the target's."""
        return self.pair.target

    def answers_to(self, name: str) -> bool:
        return name in (self.pair.target, self.pair.name)


class Answers(Protocol):
    """What of a Session is needed here."""

    info: PairInfo
    context_limit: int

    @property
    def load(self) -> Load: ...

    def cache_blocks(self) -> Mapping[str, CacheUse]: ...

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        prompt: tuple[int, ...] | None = None,
        certify: bool = True,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[Round | Trace]: ...

    def baseline(
        self,
        trace: Trace,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[BaselineToken | Trace]: ...

    def close(self) -> None: ...


@dataclass
class StopText:
    """Lets text through up to the first of some strings, and holds back what may be the beginning of one."""

    strings: tuple[str, ...]
    found: bool = False
    _held: str = field(default="", repr=False)

    def push(self, text: str) -> str:
        """What of the text so far is certain and has not been given out; "" once a string was `found`."""
        if self.found or not self.strings:
            return "" if self.found else text
        self._held += text
        at = min((at for string in self.strings if (at := self._held.find(string)) >= 0), default=-1)
        if at >= 0:
            self.found = True
            return self._held[:at]
        keep = max(_overlap(self._held, string) for string in self.strings)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def finish(self) -> str:
        """What was held back, once nothing more comes."""
        return "" if self.found else self._held


def _overlap(text: str, string: str) -> int:
    """The length of the longest end of `text` with which `string` begins, the whole string left out."""
    return next((size for size in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:size])), 0)


class Engine:
    """A session that answers requests. Thread safe as its session is."""

    def __init__(self, session: Answers, loaded: LoadedPair, *, longest: int, created: int, machine: str = ""):
        self._session = session
        self._loaded = loaded
        self.description = Description(session.info, session.context_limit, longest, created, machine)

    def close(self) -> None:
        """Releases the models."""
        self._session.close()

    def gauges(self, present: int) -> Gauges:
        """What holds right now, `present` requests having been let in."""
        load = self._session.load
        uses = self._session.cache_blocks().items()
        blocks = tuple((name, use.used, use.kept, use.limit) for name, use in uses)
        return Gauges(present, load.active, load.waiting, load.restarts, blocks)

    def generate(self, request: Request, stop: threading.Event, note: Callable[[Waits], None]) -> Iterator[Event]:
        """The answer's events; the last is Done. While it waits for its turn, `note` is told its place.

        Raises Refused, before the first, for what cannot be answered, Interrupted when the models fail. Setting `stop`
        ends it within one round.
        """
        prompt, title = self._prompt(request)
        if prompt is not None and len(prompt) >= self.description.context_limit:
            raise Refused(
                f"This model's maximum context length is {self.description.context_limit} tokens. However, your prompt "
                f"has {len(prompt)} tokens. Please reduce its length.",
                "messages" if request.messages else "prompt",
                "context_length_exceeded",
            )
        try:
            answer = self._session.answer(title, request.settings, stop=stop, prompt=prompt, certify=request.certify,
                                          on_wait=_noted(note))  # fmt: skip
        except ValueError as error:  # RequestError: a sentence for the user
            raise Refused(str(error)) from error
        yield Started(len(prompt) if prompt is not None else self._count(request))
        text = StopText(request.stop)
        with closing(answer), _engine_errors():
            for event in answer:
                if isinstance(event, Trace):
                    reason = "stop" if text.found else _REASONS[event.finish_reason]
                    yield Done(text.finish(), reason, event)
                    return
                certain = text.push("".join(token.text for token in event.tokens))
                if text.found:
                    stop.set()
                yield Progress((event,), certain)

    def baseline(
        self, trace: Trace, stop: threading.Event, note: Callable[[Waits], None]
    ) -> Iterator[BaselineToken | Waits | Trace]:
        """The same prompt by the target alone. Raises Refused for a trace that this model cannot have made."""
        size = self._loaded.tokenizer.vocabulary_size
        if any(not 0 <= token < size for token in trace.token_ids):
            raise Refused(f"The trace holds token ids that this model has not; they are from 0 to {size - 1}.", "trace")
        try:
            prompt = self._loaded.template.render(trace.instruction, self._loaded.tokenizer)
            if len(prompt) + len(trace.token_ids) > self.description.context_limit:
                raise Refused("The trace is longer than this model's context.", "trace", "context_length_exceeded")
            with _engine_errors():
                yield from self._session.baseline(trace, stop=stop, on_wait=_noted(note))
        except Refused:
            raise
        except ValueError as error:
            raise Refused(str(error), "trace") from error

    def _prompt(self, request: Request) -> tuple[tuple[int, ...] | None, str]:
        """The prompt's ids (None: the session renders the instruction), and what the trace is called."""
        template, tokenizer = self._loaded.template, self._loaded.tokenizer
        if request.instruction is not None:
            return None, request.instruction
        if request.messages is not None:
            try:
                ids = template.render_chat(request.messages, tokenizer)
            except TemplateError as error:
                raise Refused(str(error), "messages") from error
            return tuple(ids), request.messages[-1].content[:TITLE_CHARACTERS]
        if request.text is not None:
            ids = tokenizer.encode(request.text, special=False, bos=True)
            if not ids:
                raise Refused("The prompt is empty; this model needs at least one token to go on from.", "prompt")
            return tuple(ids), request.text[:TITLE_CHARACTERS]
        ids = request.tokens or ()
        if not ids or any(not 0 <= id < tokenizer.vocabulary_size for id in ids):
            raise Refused(
                f"The prompt's tokens must be from 0 to {tokenizer.vocabulary_size - 1}, one at least.", "prompt"
            )
        return ids, tokenizer.decode(ids)[:TITLE_CHARACTERS]

    def _count(self, request: Request) -> int:
        return len(self._loaded.template.render(request.instruction or "", self._loaded.tokenizer))


def _noted(note: Callable[[Waits], None]) -> Callable[[Waiting], None]:
    return lambda waiting: note(Waits(waiting.place, waiting.seconds))


@contextmanager
def _engine_errors() -> Iterator[None]:
    """What the session says of an answer that has been taken on, as what a client may be told."""
    from specdemo.engine.scheduler import EngineError

    try:
        yield
    except EngineError as error:
        raise Interrupted(str(error)) from error
    except ValueError as error:  # RequestError: it does not fit into this server after all
        raise Refused(str(error)) from error


_REASONS = {"stop": "stop", "length": "length", "context": "length", "cancelled": "cancelled"}
