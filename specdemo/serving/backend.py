"""Answers requests with a session in this process: prompts, stop strings, events for asyncio.

Knows nothing of HTTP. Events are plain data that can be sent to another process (see `replicas`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from specdemo.answering import Question
from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, DamagedModel, RequestFailed
from specdemo.metrics import Metrics, Record
from specdemo.models.templates import Message
from specdemo.serving.schema import ChatRequest, CommonRequest
from specdemo.settings import MAX_NEW_TOKENS, require_loaded
from specdemo.trace import BaselineToken, Trace

if TYPE_CHECKING:
    from specdemo.models.load import LoadedPair
    from specdemo.serving.options import ServeOptions
    from specdemo.session import Session

log = logging.getLogger(__name__)

LOADING_FAILED = "The model could not be loaded:"
PING = 0.25  # seconds without an event after which None is yielded in its place

EVENT_KINDS = {
    "prompt_tokens": int,
    "waiting": Waiting,
    "round": Round,
    "baseline_token": BaselineToken,
}
"""What the API calls the events of a stream."""


class NotReady(Busy):
    """No model is loaded yet, or none any more."""

    http_status = 503


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a request: the tokens of its prompt once it is accepted, then what its
    session yields, the Trace last. `text` is certain to be part of the answer; `reason` is why it
    ended: "stop", "length" or "cancelled"."""

    what: int | Waiting | Round | BaselineToken | Trace
    text: str = ""
    reason: str = ""


class StopText:
    """Lets text through up to the first stop string; holds back what may be the start of one."""

    def __init__(self, strings: tuple[str, ...]):
        self._strings = strings
        self._starts = {string[:size] for string in strings for size in range(1, len(string))}
        self.held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What of the text so far is certain and new; "" once a string was `found`."""
        if self.found:
            return ""
        text = self.held + text
        places = [at for string in self._strings if (at := text.find(string)) >= 0]
        if places:
            self.found, self.held = True, ""
            return text[: min(places)]
        ends = (text[at:] for at in range(len(text)))
        self.held = next((end for end in ends if end in self._starts), "")
        return text[: len(text) - len(self.held)]


class Engine:
    """A session with its tokenizer and template. `model` is its entry in /v1/models."""

    def __init__(self, session: Session, loaded: LoadedPair, options: ServeOptions):
        self.session = session
        self._template, self._tokenizer = loaded.template, loaded.tokenizer
        self._numerics = ("exact",) if options.strangers else ("exact", "fast")
        info, limit = session.info, session.context_limit
        self.model = {
            "id": info.target,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "specdemo",
            "pair": info.name,
            "draft": info.draft,
            "target_revision": info.target_revision,
            "draft_revision": info.draft_revision,
            "context_length": limit,
            "max_answer_tokens": min(MAX_NEW_TOKENS, limit - 1),
            "vocabulary_size": loaded.tokenizer.vocabulary_size,
            "numerics_found": info.numerics_found,
        }
        self._default_limit = min(options.max_new_tokens, self.model["max_answer_tokens"])

    def answer(
        self, asked: CommonRequest, stop: threading.Event, emit: Callable[[Event], None]
    ) -> None:
        """Ask the session and `emit` the events. Setting `stop` ends it within a round. Raises
        BadInput or Busy before the first event."""
        size, question = self._question(asked, stop, lambda waiting: emit(Event(waiting)))
        text = StopText(asked.stops)
        with closing(self.session.ask(question)) as events:
            emit(Event(size))
            for event in events:
                if isinstance(event, Round):
                    certain = text.push("".join(token.text for token in event.tokens))
                    if text.found:
                        stop.set()
                    emit(Event(event, certain))
                elif isinstance(event, Trace):
                    reason = "stop" if text.found else event.finish_reason
                    reason = "length" if reason == "context" else reason
                    emit(Event(event, text.held, reason))
                else:
                    emit(Event(event))

    def _question(
        self, asked: CommonRequest, stop: threading.Event, on_wait: Callable[[Waiting], None]
    ) -> tuple[int, Question]:
        """The prompt's length in tokens, and what to ask the session."""
        settings = asked.settings(self._default_limit)
        require_loaded(settings, self._numerics, "speculative.numerics")
        longest, context = self.model["max_answer_tokens"], self.model["context_length"]
        if settings.max_new_tokens > longest:
            raise BadInput(f"This model answers with at most {longest} tokens.", "max_tokens")
        prompt, title = self._prompt(asked)
        if len(prompt) >= context:
            raise BadInput(
                f"This model's maximum context length is {context} tokens. However, your prompt "
                f"has {len(prompt)} tokens. Please reduce its length.",
                "messages" if isinstance(asked, ChatRequest) else "prompt",
                "context_length_exceeded",
            )
        extras = asked.extension
        # A race answers its instruction, which is all of the prompt.
        ids = None if extras.baseline else prompt
        asks = Question(title, settings, ids, extras.certify, extras.baseline, stop, on_wait)
        return len(prompt), asks

    def _prompt(self, asked: CommonRequest) -> tuple[tuple[int, ...], str]:
        """The prompt's ids, and the `instruction` of its trace: the last message."""
        tokenizer = self._tokenizer
        if isinstance(asked, ChatRequest):
            roles = {"developer": "system"}
            turns = [Message(roles.get(one.role, one.role), one.text) for one in asked.messages]
            return tuple(self._template.render_chat(turns, tokenizer)), turns[-1].content
        if isinstance(asked.prompt, str):
            ids, text = tokenizer.encode(asked.prompt, special=False, bos=True), asked.prompt
        else:
            ids, last = asked.prompt, tokenizer.vocabulary_size - 1
            if not all(0 <= id <= last for id in ids):
                raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
            text = tokenizer.decode(ids)
        if not ids:
            raise BadInput("The prompt is empty; it needs at least one token.", "prompt")
        return tuple(ids), text


class LocalBackend:
    """One engine in this process. `load` makes it; until then every request raises NotReady.

    A request that the session cannot take on raises Busy: its queue is the only limit.
    """

    def __init__(self, load: Callable[[Callable[[str], None]], Engine]):
        self._load = load
        self._engine: Engine | None = None
        self.failed: str | None = None
        self._line = "The model is being loaded"
        self._stops: set[threading.Event] = set()
        self._metrics = Metrics(
            lambda: self._engine and self._engine.session, lambda: len(self._stops)
        )

    def load(self) -> None:
        """Load now. A failure is what every request gets from then on; it is not raised here."""
        try:
            self._engine = self._load(partial(setattr, self, "_line"))
        except Exception as error:
            log.error("The model cannot be loaded.", exc_info=error)
            self.failed = str(error)

    def close(self) -> None:
        """Stop every answer and release the models."""
        for stop in list(self._stops):
            stop.set()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.session.close()

    @property
    def in_flight(self) -> int:
        """Requests at work or waiting, in threads that may be ending."""
        return len(self._stops)

    def ready_engine(self) -> Engine:
        """The engine. Raises NotReady."""
        if self.failed is not None:
            raise NotReady(f"{LOADING_FAILED} {self.failed}")
        if self._engine is None:
            raise NotReady(f"The model is not ready yet: {self._line.rstrip('.')}.")
        return self._engine

    async def model(self) -> dict[str, Any]:
        return self.ready_engine().model

    async def health(self) -> dict[str, Any]:
        """`status` ("ready", "loading" or "failed"), `replicas` and `in_flight`, for JSON."""
        status = "failed" if self.failed else "ready" if self._engine else "loading"
        found = {"status": status, "replicas": int(status == "ready"), "in_flight": self.in_flight}
        return found if status == "ready" else {**found, "detail": self.failed or self._line}

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self._metrics.text().decode()

    async def answer(self, asked: CommonRequest) -> AsyncIterator[Event | None]:
        """The events of an answer, and None where none came for PING seconds. Closing it ends the
        answer within a round.

        Raises BadInput or Busy before the first event, RequestFailed later. The session runs in a
        thread of its own.
        """
        engine = self.ready_engine()
        loop = asyncio.get_running_loop()
        stop, arrived = threading.Event(), asyncio.Queue()

        def put(item: Event | BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, item)
            except RuntimeError:  # the loop has closed: nobody reads
                stop.set()

        def run() -> None:
            end = None
            try:
                engine.answer(asked, stop, put)
            except BaseException as error:
                end = error
                if isinstance(error, DamagedModel):
                    self.failed = str(error)
            self._stops.discard(stop)
            put(end)

        self._stops.add(stop)
        threading.Thread(target=run, name="specdemo-answer", daemon=True).start()
        try:
            with Record(self._metrics) as record:
                while True:
                    try:
                        async with asyncio.timeout(PING):
                            event = await arrived.get()
                    except TimeoutError:
                        yield None
                        continue
                    if event is None:
                        return
                    if isinstance(event, BaseException):
                        raise event
                    if event.reason:
                        record.end(event.reason, event.what)
                    if event.reason == "cancelled":
                        raise RequestFailed("The answer was cut off: the server is being stopped.")
                    record.saw(event.what)
                    yield event
        finally:
            stop.set()
