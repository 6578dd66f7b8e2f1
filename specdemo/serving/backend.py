"""Answers jobs with a session in this process: prompts, stop strings, events for the event loop.

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
from specdemo.engine.handle import Waiting
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, Busy, CacheFull, DamagedModel, RequestFailed
from specdemo.metrics import Metrics, Record
from specdemo.serving.schema import Job
from specdemo.settings import MAX_NEW_TOKENS, require_loaded
from specdemo.trace import BaselineToken, Trace

if TYPE_CHECKING:
    from specdemo.models.load import LoadedPair
    from specdemo.session import Session

log = logging.getLogger(__name__)

LOADING_FAILED = "The model could not be loaded:"
STALLED = 120.0  # seconds without an event after which an answer counts as stalled

TITLE_CHARACTERS = 2000
"""How much of a conversation's last message or of a text becomes its trace's `instruction`."""


class NotReady(Busy):
    """No model is loaded yet, or none any more."""

    http_status = 503


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a job: the tokens of its prompt once it is accepted, then what its session
    yields, the Trace last. `text` is certain to be part of the answer; `reason` is why it ended:
    "stop", "length" or "cancelled"."""

    what: int | Waiting | Round | BaselineToken | Trace
    text: str = ""
    reason: str = ""


class StopText:
    """Lets text through up to the first stop string; holds back what may be the start of one."""

    def __init__(self, strings: tuple[str, ...]):
        self._strings = strings
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
        sizes = [
            size
            for string in self._strings
            for size in range(1, len(string))
            if text.endswith(string[:size])
        ]
        certain = len(text) - max(sizes, default=0)
        self.held = text[certain:]
        return text[:certain]


class Engine:
    """A session with its tokenizer and template, for requests in these `numerics`; `model` is its
    entry in /v1/models. Thread safe as the session is."""

    def __init__(
        self, session: Session, loaded: LoadedPair, numerics: tuple[str, ...] = ("exact", "fast")
    ):
        self.session, self._numerics = session, numerics
        self._template, self._tokenizer = loaded.template, loaded.tokenizer
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

    def answer(self, job: Job, stop: threading.Event, emit: Callable[[Event], None]) -> None:
        """Run a job and `emit` its events. Setting `stop` ends it within a round.

        Raises BadInput or Busy before the first event, RequestFailed when the models fail.
        """
        require_loaded(job.settings, self._numerics, "speculative.numerics")
        prompt, title = self._prompt(job)
        limit = self.session.context_limit
        if len(prompt) >= limit:
            raise BadInput(
                f"This model's maximum context length is {limit} tokens. However, your prompt has "
                f"{len(prompt)} tokens. Please reduce its length.",
                "messages" if job.messages else "prompt",
                "context_length_exceeded",
            )
        # A race answers its instruction, which is all of the prompt.
        ids = None if job.baseline else prompt
        waits = lambda waiting: emit(Event(waiting))  # noqa: E731
        question = Question(title, job.settings, ids, job.certify, job.baseline, stop, waits)
        text = StopText(job.stop)
        try:
            with closing(self.session.ask(question)) as events:
                emit(Event(len(prompt)))
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
        except CacheFull as error:
            raise RequestFailed(str(error)) from error

    def _prompt(self, job: Job) -> tuple[tuple[int, ...], str]:
        """The prompt's ids, and the `instruction` of its trace: all of a single user message."""
        tokenizer = self._tokenizer
        if job.messages:
            try:
                ids = self._template.render_chat(job.messages, tokenizer)
            except BadInput as error:
                raise BadInput(str(error), "messages") from error
            last = job.messages[-1].content
            return tuple(ids), last if len(job.messages) == 1 else last[:TITLE_CHARACTERS]
        if job.text is not None:
            ids = tokenizer.encode(job.text, special=False, bos=True)
            if not ids:
                raise BadInput("The prompt is empty; it needs at least one token.", "prompt")
            return tuple(ids), job.text[:TITLE_CHARACTERS]
        last = tokenizer.vocabulary_size - 1
        if not job.tokens or min(job.tokens) < 0 or max(job.tokens) > last:
            message = f"The prompt's tokens must be from 0 to {last}, one at least."
            raise BadInput(message, "prompt")
        return job.tokens, tokenizer.decode(job.tokens)[:TITLE_CHARACTERS]


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
        self._progress = time.monotonic()
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

    def stalled(self) -> bool:
        """Whether something is being answered and had no event for STALLED seconds."""
        return bool(self._stops) and time.monotonic() - self._progress > STALLED

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
        """`status` ("ready", "loading" or "failed") and `replicas`, for JSON."""
        detail = self.failed or ("An answer makes no progress." if self.stalled() else None)
        if detail:
            return {"status": "failed", "replicas": 0, "detail": detail}
        if self._engine is None:
            return {"status": "loading", "replicas": 0, "detail": self._line}
        return {"status": "ready", "replicas": 1, "in_flight": self.in_flight}

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self._metrics.text().decode()

    async def answer(self, job: Job) -> AsyncIterator[Event]:
        """The events of an answer. Closing it ends the answer within a round.

        Raises BadInput or Busy before the first event, RequestFailed later. The session runs in a
        thread of its own.
        """
        engine = self.ready_engine()
        loop = asyncio.get_running_loop()
        stop, arrived = threading.Event(), asyncio.Queue()

        def put(item: Event | BaseException | None) -> None:
            self._progress = time.monotonic()
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, item)
            except RuntimeError:  # the loop has closed: nobody reads
                stop.set()

        def run() -> None:
            end = None
            try:
                engine.answer(job, stop, put)
            except BaseException as error:
                end = error
                if isinstance(error, DamagedModel):
                    self.failed = str(error)
            self._stops.discard(stop)
            put(end)

        if not self._stops:
            self._progress = time.monotonic()
        self._stops.add(stop)
        threading.Thread(target=run, name="specdemo-answer", daemon=True).start()
        try:
            with Record(self._metrics) as record:
                while (item := await arrived.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    if item.reason:
                        record.end(item.reason, item.what)
                    record.saw(item.what)
                    yield item
        finally:
            stop.set()
