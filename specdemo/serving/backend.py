"""Answers requests: with a session in this process (prompts, stop strings, events for asyncio), or
with replicas; if a replica dies, another one is asked. Independent of HTTP, and of Ray."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, DamagedModel, RequestFailed, SpecdemoError
from specdemo.runs.answering import Question
from specdemo.runs.settings import MAX_NEW_TOKENS, require_exact
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.serving.metrics import Metrics, Record
from specdemo.serving.schema import ChatRequest, CommonRequest
from specdemo.text.grammar import CALL

if TYPE_CHECKING:
    from specdemo.runs.session import Session
    from specdemo.serving.server_options import ServeOptions

log = logging.getLogger(__name__)

ATTEMPTS = 5  # replicas to try, one after another, while an answer has not begun
START_SECONDS = 60.0  # how long a request may wait for a replica to begin
PING = 0.25  # seconds
LONG_TEXT = 20_000  # characters of a prompt


class NotReady(Busy):
    """No model is loaded yet, or none any more."""

    http_status = 503


@dataclass(frozen=True, slots=True)
class Piece:
    """What the session yields, or None after PING seconds without it. `text` is the next certain
    piece of text."""

    what: Waiting | Round | BaselineToken | Trace | None
    text: str = ""


def certain(text: str, stops: tuple[str, ...]) -> tuple[int, bool]:
    """Length of the prefix of a text that cannot be part of a stop string, and whether a stop
    string follows it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    if places:
        return min(places), True
    starts = (
        size
        for stop in stops
        for size in range(1, min(len(stop), len(text) + 1))
        if text.endswith(stop[:size])
    )
    return len(text) - max(starts, default=0), False


def open_pair(options: ServeOptions, report: Callable[[str], None]) -> Session:
    from specdemo.pairs.registry import chosen_pair
    from specdemo.runs.session import open_session

    session = open_session(
        chosen_pair(options),
        options,
        report,
        threads=options.cpus_per_replica,
        active=options.max_ongoing,
        waiting=options.max_waiting,
        cache_mb=options.cache_mb,
    )
    session.prepare()
    with suppress(SpecdemoError):
        _ = session.grammars  # now: making it stops all threads for a moment
    return session


class LocalBackend:
    """One pair in this process. Requests raise NotReady until `load` has opened it."""

    def __init__(self, options: ServeOptions, opener: Callable = open_pair):
        self._options, self._opener = options, opener
        self._session: Session | None = None
        self._line = "The model is being loaded"
        self._stops: set[threading.Event] = set()  # stop signals of requests that have a thread
        self._metrics = Metrics(lambda: self._session, lambda: len(self._stops))
        self._long_texts = threading.Lock()
        self.failed: str | None = None

    def load(self) -> None:
        """Load now. A failure is not raised here, but by every request, as NotReady."""
        try:
            session = self._opener(self._options, partial(setattr, self, "_line"))
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
            "vocabulary_size": session.loaded.tokenizer.vocabulary_size,
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
        found = {"replicas": 1} if status == "ready" else {"detail": self.failed or self._line}
        return {"status": status, "replicas": 0, "in_flight": len(self._stops), **found}

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self._metrics.text().decode()

    async def answer(self, asked: CommonRequest) -> AsyncIterator[Piece]:
        """The events of an answer, which runs in its own thread; closing the iterator ends it.
        Raises BadInput or Busy before the first event, RequestFailed later."""
        await self.model()
        if len(self._stops) >= self._options.max_ongoing + self._options.max_waiting:
            raise Busy("Too many requests wait already; try again in a moment.")
        loop = asyncio.get_running_loop()
        stop, arrived = threading.Event(), asyncio.Queue()

        def put(item: Piece | BaseException) -> None:
            with suppress(RuntimeError):  # the loop has closed, so no events are read
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        def run() -> None:
            try:
                with Record(self._metrics) as record:
                    for event in self._events(asked, stop):
                        record.count(event.what)
                        put(event)
            except BaseException as error:
                if isinstance(error, DamagedModel):
                    self.failed = str(error)
                if getattr(error, "param", None) == "json_schema" and asked.json_schema:
                    error.param = "response_format"
                if getattr(error, "code", None) == "context_length_exceeded":
                    error.param = "messages" if isinstance(asked, ChatRequest) else "prompt"
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
                    event = Piece(None)
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

    def _events(self, asked: CommonRequest, stop: threading.Event) -> Iterator[Piece]:
        """The session's events until `stop` is set. Raises BadInput or Busy before the first."""
        longest, baseline = self._model["max_answer_tokens"], asked.extension.baseline
        settings = asked.settings(min(self._options.max_new_tokens, longest))
        if self._options.strangers:
            require_exact(settings, "speculative.numerics")
        if settings.max_new_tokens > longest:
            raise BadInput(f"This model answers with at most {longest} tokens.", "max_tokens")
        prompt, title = self._prompt(asked, stop)
        how = {"baseline": baseline, "stop": stop, "tools": asked.callable_tools}
        # A baseline decodes the instruction.
        question = Question(title, settings, None if baseline else prompt, **how)
        text, found = "", False  # that is not certain yet
        with closing(self._session.ask(question)) as events:
            for event in events:
                new = ""
                if isinstance(event, Trace):
                    new = "" if found else text
                    event = replace(event, finish_reason="stop") if found else event
                elif isinstance(event, Round) and not found:
                    text += "".join(token.text for token in event.tokens)
                    end, found = certain(text, asked.stops)
                    new, text = text[:end], text[end:]
                    if found:
                        stop.set()
                yield Piece(event, new)

    def _prompt(self, asked: CommonRequest, stop: threading.Event) -> tuple[tuple[int, ...], str]:
        """The prompt's ids, and the trace's `instruction`: the last message, or the prompt. A text
        that cannot fit is refused by its length. Long ones are read one at a time, with as long a
        rest after each, so that other requests have the processor."""
        characters, session = asked.characters, self._session
        most = session.context_limit * session.loaded.tokenizer.longest_token
        if characters > most:
            message = (
                f"The texts have {characters:,} characters; this model reads fewer than {most:,}."
            )
            raise BadInput(message, code="context_length_exceeded")
        if characters <= LONG_TEXT:
            return self._read_prompt(asked)
        with self._long_texts:
            begun = time.perf_counter()
            try:
                return self._read_prompt(asked)
            finally:
                stop.wait(time.perf_counter() - begun)

    def _read_prompt(self, asked: CommonRequest) -> tuple[tuple[int, ...], str]:
        loaded = self._session.loaded
        tokenizer = loaded.tokenizer
        if isinstance(asked, ChatRequest):
            turns = [message.turn() for message in asked.messages]
            tools = []
            if asked.callable_tools:
                if CALL not in loaded.template.jinja.replace("\\n", "\n"):
                    message = "This model's chat template has no tool calls that this server reads"
                    raise BadInput(f"{message}; leave out tools.", "tools", "unsupported_parameter")
                tools = [one.model_dump(exclude_none=True) for one in asked.tools]
            ids = loaded.template.render_chat(turns, tokenizer, tools)
            return tuple(ids), turns[-1].content
        if isinstance(asked.prompt, str):
            return tuple(tokenizer.encode(asked.prompt, special=False, bos=True)), asked.prompt
        last = tokenizer.vocabulary_size - 1
        if not all(0 <= id <= last for id in asked.prompt):
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        return tuple(asked.prompt), tokenizer.decode(asked.prompt)


class ReplicaBackend:
    """Asks replicas through `engine`, a handle of Ray Serve, which raises `died` if a replica dies,
    `full` if the queue is full, `none` without a replica."""

    def __init__(self, engine: Any, died: type, full: type, none: tuple[type, ...]):
        self._engine, self._stream = engine, engine.options(stream=True)
        self._died, self._full, self._none = died, full, (TimeoutError, *none)
        self._model: dict[str, Any] | None = None

    async def model(self) -> dict[str, Any]:
        if self._model is None:
            reports = await self._reports()
            if not reports:
                raise NotReady("No replica is ready yet; the model is being loaded.")
            self._model = reports[0]["model"]
        return self._model

    async def health(self) -> dict[str, Any]:
        reports = await self._reports()
        in_flight = sum(report["in_flight"] for report in reports)
        status = "ready" if reports else "loading"
        return {"status": status, "replicas": len(reports), "in_flight": in_flight}

    async def metrics(self) -> str:
        """The metrics of all replicas; each sample has the label `replica`."""
        found: dict[str, Metric] = {}
        for report in await self._reports():
            for family in text_string_to_metric_families(report["metrics"]):
                new = Metric(family.name, family.documentation, family.type)
                one = found.setdefault(family.name, new)
                for sample in family.samples:
                    labels = {**sample.labels, "replica": report["replica"]}
                    one.add_sample(sample.name, labels, sample.value)
        return generate_latest(SimpleNamespace(collect=found.values)).decode()

    async def _reports(self) -> list[dict[str, Any]]:
        """The reports of all running replicas (`deployment.EngineReplica.report`)."""
        try:  # a call to one would wait if that replica is full
            asked = self._engine.broadcast("report")
            reports = await asked.results_async(timeout_s=5.0, return_exceptions=True)
        except self._none:
            return []
        return [report for report in reports if isinstance(report, dict)]

    async def answer(self, asked: CommonRequest) -> AsyncIterator[Piece]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun = False
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(asked)
            try:
                event = await asyncio.wait_for(anext(response), START_SECONDS)
                while True:
                    if isinstance(event, Exception):
                        raise event
                    begun = begun or not isinstance(event.what, Waiting | None)
                    yield event
                    if isinstance(event.what, Trace):
                        return
                    event = await anext(response)
            except StopAsyncIteration:
                raise RequestFailed("The replica ended without an answer.") from None
            except self._died as error:
                if begun:
                    raise RequestFailed(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
            except self._full as error:
                raise Busy("The queue is full; try again in a moment.") from error
            except self._none as error:
                raise NotReady("No replica could begin this answer; try again later.") from error
            finally:
                with suppress(Exception):  # a failed call raises its failure again
                    response.cancel()
        raise NotReady(f"{ATTEMPTS} replicas died before they could begin this answer.")
