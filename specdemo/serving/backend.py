"""Answers requests with a session in this process: prompts, stop strings, events for asyncio.

Knows nothing of HTTP. Events are plain data that can be sent to another process (see `replicas`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from specdemo.answering import Question
from specdemo.engine.handle import Waiting
from specdemo.engine.rounds import Round
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
    """What happens to a request: the tokens of its prompt, and what its session yields, the Trace
    last. `text` is certain to be part of the answer."""

    what: int | Waiting | Round | BaselineToken | Trace
    text: str = ""


def certain(text: str, stops: tuple[str, ...]) -> tuple[int, bool]:
    """How much of an answer so far is certain, in characters, and whether a stop string ends it:
    what may be the start of one is held back."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    if places:
        return min(places), True
    starts = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return len(text) - max(starts, default=0), False


def open_pair(options: ServeOptions, report: Callable[[str], None]) -> tuple[Session, LoadedPair]:
    """Fetch what is missing of the pair, compile it, and return its session, ready for full speed.

    Takes from seconds to as long as a download. Raises SpecdemoError with one sentence.
    """
    from specdemo.models.load import load_pair
    from specdemo.models.registry import chosen_pair
    from specdemo.session import Session

    loaded = load_pair(
        chosen_pair(options), choice=options, progress=lambda progress: report(progress.line)
    )
    report("Compiling the models for this processor")
    session = Session(
        loaded,
        threads=options.cpus_per_replica,
        active=options.ongoing,
        waiting=options.waiting,
        cache_mb=options.cache_mb,
        learn=not options.strangers if options.learn_ngrams is None else options.learn_ngrams,
    )
    session.prepare()
    return session, loaded


class LocalBackend:
    """One pair in this process. Until `load` has opened it every request raises NotReady.

    A request that the session cannot take on raises Busy: its queue is the only limit.
    """

    def __init__(self, options: ServeOptions, opener: Callable = open_pair):
        self._options, self._opener = options, opener
        self._session: Session | None = None
        self._line = "The model is being loaded"
        self._stops: set[threading.Event] = set()  # of requests in threads that may be ending
        self._metrics = Metrics(lambda: self._session, lambda: len(self._stops))
        self.failed: str | None = None

    def load(self) -> None:
        """Load now. A failure is what every request gets from then on; it is not raised here."""
        try:
            session, self._loaded = self._opener(self._options, partial(setattr, self, "_line"))
        except Exception as error:
            log.error("The model cannot be loaded.", exc_info=error)
            self.failed = f"The model could not be loaded: {error}"
            return
        info, context = session.info, session.context_limit
        self._model = {
            "id": info.target,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "specdemo",
            "pair": info.name,
            "draft": info.draft,
            "target_revision": info.target_revision,
            "draft_revision": info.draft_revision,
            "context_length": context,
            "max_answer_tokens": min(MAX_NEW_TOKENS, context - 1),
            "vocabulary_size": self._loaded.tokenizer.vocabulary_size,
            "numerics_found": info.numerics_found,
        }
        self._session = session

    def close(self) -> None:
        """Stop every answer and release the models."""
        for stop in list(self._stops):
            stop.set()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def model(self) -> dict[str, Any]:
        """The model's entry in /v1/models. Raises NotReady."""
        if self.failed is None and self._session:
            return self._model
        raise NotReady(self.failed or f"The model is not ready yet: {self._line.rstrip('.')}.")

    async def health(self) -> dict[str, Any]:
        """`status` ("ready", "loading" or "failed"), `replicas` and `in_flight`, for JSON."""
        status = "failed" if self.failed else "ready" if self._session else "loading"
        found = {"status": status, "replicas": int(status == "ready")}
        told = {} if status == "ready" else {"detail": self.failed or self._line}
        return {**found, "in_flight": len(self._stops), **told}

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self._metrics.text().decode()

    async def answer(self, asked: CommonRequest) -> AsyncIterator[Event | None]:
        """The events of an answer, and None where none came for PING seconds. Closing it ends the
        answer within a round.

        Raises BadInput or Busy before the first event, RequestFailed later. The session runs in a
        thread of its own.
        """
        await self.model()
        loop = asyncio.get_running_loop()
        stop, arrived = threading.Event(), asyncio.Queue()

        def put(item: Event | BaseException) -> None:
            with suppress(RuntimeError):  # the loop has closed: nobody reads
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        def run() -> None:
            try:
                with Record(self._metrics) as record:
                    for event in self._events(asked, stop, put):
                        record.saw(event.what)
                        put(event)
            except BaseException as error:
                if isinstance(error, DamagedModel):
                    self.failed = str(error)
                put(error)
            finally:
                self._stops.discard(stop)

        self._stops.add(stop)
        threading.Thread(target=run, name="specdemo-answer", daemon=True).start()
        try:
            while True:
                try:
                    async with asyncio.timeout(PING):
                        event = await arrived.get()
                except TimeoutError:
                    yield None
                    continue
                if isinstance(event, BaseException):
                    raise event
                ended = isinstance(event.what, Trace)
                if ended and event.what.finish_reason == "cancelled":
                    raise RequestFailed("The answer was cut off: the server is being stopped.")
                yield event
                if ended:
                    return
        finally:
            stop.set()

    def _events(
        self, asked: CommonRequest, stop: threading.Event, emit: Callable[[Event], None]
    ) -> Iterator[Event]:
        """Asks the session; while it waits, that is emitted. Setting `stop` ends it within a
        round. Raises BadInput or Busy before the first event."""
        longest, extras = self._model["max_answer_tokens"], asked.extension
        settings = asked.settings(min(self._options.max_new_tokens, longest))
        numerics = ("exact",) if self._options.strangers else ("exact", "fast")
        require_loaded(settings, numerics, "speculative.numerics")
        if settings.max_new_tokens > longest:
            raise BadInput(f"This model answers with at most {longest} tokens.", "max_tokens")
        prompt, title = self._prompt(asked)
        question = Question(
            title,
            settings,
            None if extras.baseline else prompt,  # a race answers its instruction
            extras.certify,
            extras.baseline,
            stop,
            on_wait=lambda waiting: emit(Event(waiting)),
        )
        text, sent, found = "", 0, False
        with closing(self._session.ask(question)) as events:
            first = next(events)
            yield Event(len(prompt))
            for event in chain([first], events):
                new = ""
                if isinstance(event, Round) and not found:
                    text += "".join(token.text for token in event.tokens)
                    end, found = certain(text, asked.stops)
                    new, sent = text[sent:end], end
                    if found:
                        stop.set()
                elif isinstance(event, Trace) and found:
                    event = replace(event, finish_reason="stop")
                elif isinstance(event, Trace):
                    new = text[sent:]
                yield Event(event, new)

    def _prompt(self, asked: CommonRequest) -> tuple[tuple[int, ...], str]:
        """The prompt's ids, and the `instruction` of its trace: the last message."""
        tokenizer = self._loaded.tokenizer
        if isinstance(asked, ChatRequest):
            roles = {"developer": "system"}
            turns = [Message(roles.get(one.role, one.role), one.text) for one in asked.messages]
            ids = self._loaded.template.render_chat(turns, tokenizer)
            return tuple(ids), turns[-1].content
        if isinstance(asked.prompt, str):
            return tuple(tokenizer.encode(asked.prompt, special=False, bos=True)), asked.prompt
        last = tokenizer.vocabulary_size - 1
        if not all(0 <= id <= last for id in asked.prompt):
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        return tuple(asked.prompt), tokenizer.decode(asked.prompt)
