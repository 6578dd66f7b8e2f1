"""Answers requests: with a session in this process (prompts, stop strings, events for asyncio), or
with replicas; if a replica dies, another one is asked. Independent of HTTP, and of Ray."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdemo.engine.rounds import Logprobs, Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, DamagedModel, RequestFailed, SpecdemoError
from specdemo.host.turns import Turns
from specdemo.runs.question import Question
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings, require_exact
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.serving.metrics import Metrics, Record
from specdemo.serving.schema import ChatRequest, CommonRequest
from specdemo.text.stops import certain
from specdemo.text.tools import CallReader, FunctionCall, Tools

if TYPE_CHECKING:
    from specdemo.runs.session import Session
    from specdemo.serving.server_options import ServeOptions

log = logging.getLogger(__name__)

ATTEMPTS = 5  # replicas to try, one after another, while an answer has not begun
START_SECONDS = 60.0  # how long a request may wait for a replica to begin
PING = 0.25  # seconds
LONG_TEXT = 20_000  # characters of a prompt
STOPPED = "The answer was cut off: the server is being stopped."


class NotReady(Busy):
    """No model is loaded yet, or none any more."""

    http_status = 503


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The text of a token, its log-probability and the likeliest tokens with theirs; None and none
    for the first token of a prompt."""

    text: str
    logprob: float | None = None
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What the session yields for one of the answers of a request, or None after PING seconds
    without it. `text` is the next certain piece of text, `tokens` are its tokens if they are
    scored, and `calls` those that it completes, whose text it leaves out."""

    what: Waiting | Round | BaselineToken | Trace | None
    text: str = ""
    answer: int = 0
    tokens: tuple[ScoredToken, ...] = ()
    calls: tuple[FunctionCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as token ids, the trace's `instruction` (the last message, or the prompt), and the
    token ids that the answer may repeat."""

    ids: tuple[int, ...]
    title: str
    prediction: tuple[int, ...] = ()


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

    def __init__(
        self,
        options: ServeOptions,
        opener: Callable[[ServeOptions, Callable[[str], None]], Session] = open_pair,
    ):
        self._options, self._opener = options, opener
        self._session: Session | None = None
        self._model: dict[str, Any] = {}
        self._line = "The model is being loaded"
        self._stops: set[threading.Event] = set()  # stop signals of requests that have a thread
        self._metrics = Metrics(lambda: self._session, lambda: len(self._stops))
        self._long_texts = Turns(rest=1.0)
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

    @property
    def _open_session(self) -> Session:
        """The session of a request that runs, which may be closed meanwhile."""
        if self._session is None:
            raise RequestFailed(STOPPED)
        return self._session

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

    async def answer(self, asked: CommonRequest) -> AsyncGenerator[Piece, None]:
        """The events of the answers, a Trace the last of each, from threads; closing the iterator
        ends them. Raises BadInput or Busy before the first event, RequestFailed later."""
        await self.model()
        stops = [threading.Event() for _ in range(asked.answers)]
        if len(self._stops) + len(stops) > self._options.max_ongoing + self._options.max_waiting:
            raise Busy("Too many requests wait already; try again in a moment.")
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Piece | BaseException]()

        def put(item: Piece | BaseException) -> None:
            with suppress(RuntimeError):  # the loop has closed, so no events are read
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        self._stops.update(stops)
        self._begin(asked, stops, put)
        unfinished = len(stops)
        try:
            while unfinished:
                try:
                    async with asyncio.timeout(PING):
                        event = await arrived.get()
                except TimeoutError:
                    event = Piece(None)
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event.what, Trace):
                    if event.what.finish_reason == "cancelled":
                        raise RequestFailed(STOPPED)
                    unfinished -= 1
                yield event
        finally:
            for stop in stops:
                stop.set()

    def _begin(
        self,
        asked: CommonRequest,
        stops: list[threading.Event],
        put: Callable[[Piece | BaseException], None],
    ) -> None:
        """Begin the answers, in threads. They take half the places of the models at most, so that
        other requests go on beside them. The first answer to a prompt reads it for the others."""
        places = max(self._options.max_ongoing // 2, 1)
        pool = ThreadPoolExecutor(min(places, len(stops)), "specdemo-answer")
        reading = pool.submit(self._read, asked)
        begun = [threading.Event() for _ in asked.prompts]

        def run(answer: int, stop: threading.Event) -> None:
            number, repeated = divmod(answer, asked.n or 1)
            try:
                with Record(self._metrics) as record:
                    prompt = reading.result()[number]
                    if repeated:
                        begun[number].wait()
                    for event in self._events(asked, prompt, answer, stop):
                        record.count(event.what)
                        if isinstance(event.what, Round):
                            begun[number].set()
                        put(event)
            except BaseException as error:
                if isinstance(error, DamagedModel):
                    self.failed = str(error)
                if isinstance(error, BadInput):
                    if error.param == "json_schema" and asked.json_schema:
                        error.param = "response_format"
                    if error.code == "context_length_exceeded":
                        error.param = "messages" if isinstance(asked, ChatRequest) else "prompt"
                put(RequestFailed(STOPPED) if self._session is None else error)
            finally:
                begun[number].set()
                self._stops.discard(stop)

        for answer, stop in enumerate(stops):
            pool.submit(run, answer, stop)
        pool.shutdown(wait=False)

    def _events(
        self, asked: CommonRequest, prompt: ReadPrompt, answer: int, stop: threading.Event
    ) -> Iterator[Piece]:
        """The session's events until `stop` is set. Raises BadInput or Busy before the first."""
        longest, baseline = self._model["max_answer_tokens"], asked.extension.baseline
        settings = asked.settings(min(self._options.max_new_tokens, longest), answer)
        if self._options.strangers:
            require_exact(settings, "speculative.numerics")
        if settings.max_new_tokens > longest:
            raise BadInput(f"This model answers with at most {longest} tokens.", "max_tokens")
        tools = self._tools(asked)
        reader = CallReader(tools, self._open_session.loaded.tokenizer)
        question = Question(
            prompt.ids,
            settings,
            prompt.title,
            baseline=baseline,
            stop=stop,
            tools=tools,
            logprobs=asked.likeliest,
            prediction=prompt.prediction,
        )
        head, scored = self._echo(asked, prompt, settings, stop)
        # What is not certain yet: a text, and its tokens with the places where they begin.
        text, tokens = "", deque[tuple[int, ScoredToken]]()
        certain_to = made = 0
        found = asked.max_tokens == 0
        with closing(self._open_session.ask(question)) as events:
            for event in events:
                new = ""
                if isinstance(event, Trace):
                    new, certain_to = "" if found else text, sys.maxsize
                    if asked.max_tokens == 0:
                        event = replace(event, rounds=(), finish_reason="length")
                    elif found:  # also in the text of a call, which the session does not spell
                        event = replace(event, finish_reason="stop")
                elif isinstance(event, Round) and not found:
                    for token, logprobs in zip_longest(event.tokens, event.logprobs):
                        if logprobs:
                            tokens.append((made, self._scored(token.id, logprobs)))
                        piece = reader.spelled(token)
                        made += len(piece)
                        text += piece
                    end, found = certain(text, asked.stops)
                    new, text, certain_to = text[:end], text[end:], certain_to + end
                    if found:
                        stop.set()
                        tokens = deque(one for one in tokens if one[0] < certain_to)
                while tokens and (tokens[0][0] < certain_to or not text):
                    scored.append(tokens.popleft()[1])
                content, calls = reader.read(new, last=isinstance(event, Trace))
                yield Piece(event, head + content, answer, tuple(scored), calls)
                head, scored = "", []

    def _tools(self, asked: CommonRequest) -> Tools | None:
        """What the answer may call, in the form of this model. Raises BadInput if it has none."""
        tools, form = asked.callable_tools, self._open_session.loaded.template.call_form
        if tools and form is None:
            message = "This model's chat template has no tool calls that this server reads"
            raise BadInput(f"{message}; leave out tools.", "tools", "unsupported_parameter")
        return replace(tools, form=form) if tools and form else None

    def _echo(
        self, asked: CommonRequest, prompt: ReadPrompt, settings: Settings, stop: threading.Event
    ) -> tuple[str, list[ScoredToken]]:
        """The text of the prompt and its tokens with their log-probabilities, where asked for."""
        if not asked.echoes:
            return "", []
        if asked.likeliest is None:
            return prompt.title, []
        from specdemo.engine.request import PromptLogprobs  # imports OpenVINO

        scores = self._open_session.result_of(
            PromptLogprobs, prompt.ids, settings, logprobs=asked.likeliest, stop=stop
        )
        first, *others = prompt.ids
        scored = map(self._scored, others, scores or ())
        return prompt.title, [ScoredToken(self._token_text(first)), *scored]

    def _scored(self, token: int, logprobs: Logprobs) -> ScoredToken:
        likeliest = tuple((self._token_text(id), logprob) for id, logprob in logprobs.top)
        return ScoredToken(self._token_text(token), logprobs.token, likeliest)

    def _token_text(self, token: int) -> str:
        return self._open_session.loaded.tokenizer.decode([token], special=True)

    def _read(self, asked: CommonRequest) -> list[ReadPrompt]:
        """The prompts. A text that cannot fit is refused by its length. Long ones are read one at a
        time, with as long a rest after each, so that other requests have the processor."""
        characters, session = asked.characters, self._open_session
        most = session.context_limit * session.loaded.tokenizer.longest_token * len(asked.prompts)
        if characters > most:
            message = (
                f"The texts have {characters:,} characters; this model reads fewer than {most:,}."
            )
            raise BadInput(message, code="context_length_exceeded")
        if characters <= LONG_TEXT:
            return [self._read_prompt(asked, prompt) for prompt in asked.prompts]
        with self._long_texts.turn(characters):
            return [self._read_prompt(asked, prompt) for prompt in asked.prompts]

    def _read_prompt(self, asked: CommonRequest, prompt: Any) -> ReadPrompt:
        loaded = self._open_session.loaded
        tokenizer = loaded.tokenizer
        if isinstance(asked, ChatRequest):
            turns = [message.turn() for message in asked.messages]
            tools = []
            if self._tools(asked):
                tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
            ids = loaded.template.render_chat(
                turns,
                tokenizer,
                tools,
                continue_final_message=bool(asked.continue_final_message),
                chat_template_kwargs=asked.chat_template_kwargs,
            )
            predicted = tokenizer.encode(asked.predicted, special=False)
            return ReadPrompt(tuple(ids), turns[-1].content, tuple(predicted))
        if isinstance(prompt, str):
            return ReadPrompt(tuple(tokenizer.encode(prompt, special=False, bos=True)), prompt)
        last = tokenizer.vocabulary_size - 1
        if max(prompt) > last:
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        return ReadPrompt(tuple(prompt), tokenizer.decode(prompt))


class ReplicaBackend:
    """Asks replicas through `engine`, a handle of Ray Serve, which raises `died` if a replica dies,
    `full` if the queue is full, `none` without a replica."""

    def __init__(
        self,
        engine: Any,
        died: type[Exception],
        full: type[Exception],
        none: tuple[type[Exception], ...],
    ):
        self._engine, self._stream = engine, engine.options(stream=True)
        self._died, self._full = died, full
        self._none: tuple[type[Exception], ...] = (TimeoutError, *none)
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

    async def answer(self, asked: CommonRequest) -> AsyncGenerator[Piece, None]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun, unfinished = False, asked.answers
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(asked)
            try:
                event = await asyncio.wait_for(anext(response), START_SECONDS)
                while True:
                    if isinstance(event, Exception):
                        raise event
                    begun = begun or not isinstance(event.what, Waiting | None)
                    yield event
                    unfinished -= isinstance(event.what, Trace)
                    if not unfinished:
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
