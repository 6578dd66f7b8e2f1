"""Answers requests: with a session in this process (prompts, stop strings, events for asyncio), or
with replicas; if a replica dies, another one is asked. Independent of HTTP, and of Ray."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdemo.engine.rounds import Logprobs, Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, DamagedModel, RequestFailed, SpecdemoError
from specdemo.host.turns import ShortestFirst
from specdemo.runs.bridge import merged
from specdemo.runs.question import Question, with_text
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings, require_exact
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.server.metrics import Metrics, Record
from specdemo.server.schema import ChatRequest, CommonRequest, CompletionRequest
from specdemo.text.tools import CallReader, FunctionCall

if TYPE_CHECKING:
    from specdemo.runs.session import Session
    from specdemo.server.server_options import ServeOptions

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


def open_pair(options: ServeOptions, report: Callable[[str], None]) -> Session:
    from specdemo.pairs.registry import chosen_pair
    from specdemo.runs.session import open_session

    session = open_session(
        chosen_pair(options),
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
        self._metrics = Metrics()
        self._long_texts = ShortestFirst(rest=1.0)
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
        details = {"replicas": 1} if status == "ready" else {"detail": self.failed or self._line}
        return {"status": status, "replicas": 0, "in_flight": len(self._stops), **details}

    async def metrics(self) -> str:
        """In the Prometheus text format."""
        return self._metrics.text(self._session, len(self._stops))

    async def answer(self, request: CommonRequest) -> AsyncGenerator[Piece, None]:
        """The events of the answers, a Trace the last of each, from threads; closing the iterator
        ends them. Raises BadInput or Busy before the first event, RequestFailed later."""
        await self.model()
        stops = [threading.Event() for _ in range(request.answers)]
        if len(self._stops) + len(stops) > self._options.max_ongoing + self._options.max_waiting:
            raise Busy("Too many requests wait already; try again in a moment.")
        self._stops.update(stops)
        answers = Answers(self, request)
        begins = {stop: partial(answers.run, number, stop) for number, stop in enumerate(stops)}
        self._stops.update(stops)
        # They take half the places of the models at most: other requests go on beside them.
        places = max(self._options.max_ongoing // 2, 1)
        async with aclosing(merged(begins, threads=places, ping=PING)) as pieces:
            async for piece in pieces:
                ended = piece.what if piece and isinstance(piece.what, Trace) else None
                if ended and ended.finish_reason == "cancelled":
                    raise RequestFailed(STOPPED)
                yield piece or Piece(None)

    @contextmanager
    def recorded(self, request: CommonRequest, stop: threading.Event) -> Iterator[Record]:
        """Counts an answer, which ends when `stop` is set, and names the parameters of its errors.
        A damaged model answers no further request."""
        try:
            with Record(self._metrics) as record:
                yield record
        except Exception as error:
            if isinstance(error, DamagedModel):
                self.failed = str(error)
            if isinstance(error, BadInput):
                if error.param == "json_schema" and request.json_schema:
                    error.param = "response_format"
                if error.code == "context_length_exceeded":
                    error.param = "messages" if isinstance(request, ChatRequest) else "prompt"
            if self._session is None:
                raise RequestFailed(STOPPED) from error
            raise
        finally:
            self._stops.discard(stop)

    def pieces(self, request: CommonRequest, question: Question, answer: int) -> Iterator[Piece]:
        """The session's events until the question's `stop` is set. Raises BadInput or Busy before
        the first."""
        reader = CallReader(question.tools)
        content, scored = self._echo(request, question)
        spelled = sent = 0  # characters of the answer
        unsent = deque[tuple[int, ScoredToken]]()  # each with the place where it begins
        with closing(self._open_session.ask(question)) as events:
            for event, text in with_text(events):
                last = isinstance(event, Trace)
                if request.max_tokens == 0:
                    text = ""
                    if isinstance(event, Trace):
                        event = replace(event, rounds=(), finish_reason="length")
                elif isinstance(event, Round):
                    for token, logprobs in zip_longest(event.tokens, event.logprobs):
                        if logprobs:
                            unsent.append((spelled, self._scored(token.id, logprobs)))
                        spelled += len(token.text)
                sent += len(text)
                while unsent and (unsent[0][0] < sent or spelled == sent):
                    scored.append(unsent.popleft()[1])
                more, calls = reader.read(text, last=last)
                yield Piece(event, content + more, answer, tuple(scored), calls)
                content, scored = "", []

    def _echo(self, request: CommonRequest, question: Question) -> tuple[str, list[ScoredToken]]:
        """The text of the prompt and its tokens with their log-probabilities, where asked for."""
        if not isinstance(request, CompletionRequest) or not request.echo:
            return "", []
        if request.likeliest is None:
            return question.title, []
        from specdemo.engine.request import PromptLogprobs  # imports OpenVINO

        prompt = cast(tuple[int, ...], question.prompt)
        run = self._open_session.submit(question, PromptLogprobs, logprobs=request.likeliest)
        scores = run.result()
        first, *others = prompt
        scored = map(self._scored, others, scores or ())
        return question.title, [ScoredToken(self._token_text(first)), *scored]

    def _scored(self, token: int, logprobs: Logprobs) -> ScoredToken:
        likeliest = tuple((self._token_text(id), logprob) for id, logprob in logprobs.top)
        return ScoredToken(self._token_text(token), logprobs.token, likeliest)

    def _token_text(self, token: int) -> str:
        return self._open_session.loaded.tokenizer.decode([token], special=True)

    def questions(self, request: CommonRequest) -> list[Question]:
        """A question of token ids for each prompt. A text that cannot fit is refused by its length.
        Long ones are read one at a time, with as long a rest after each, so that other requests
        have the processor. Raises BadInput."""
        session, longest = self._open_session, self._model["max_answer_tokens"]
        settings = request.settings(min(self._options.max_new_tokens, longest))
        if self._options.strangers:
            require_exact(settings, "speculative.numerics")
        if settings.max_new_tokens > longest:
            raise BadInput(f"This model answers with at most {longest} tokens.", "max_tokens")
        characters = request.characters
        most = session.context_limit * session.loaded.tokenizer.longest_token * len(request.prompts)
        if characters > most:
            message = (
                f"The texts have {characters:,} characters; this model reads fewer than {most:,}."
            )
            raise BadInput(message, code="context_length_exceeded")
        with self._long_texts.turn(characters) if characters > LONG_TEXT else nullcontext():
            if isinstance(request, ChatRequest):
                return [self._chat_question(request, settings)]
            return [self._question(request, prompt, settings) for prompt in request.prompts]

    def _chat_question(self, request: ChatRequest, settings: Settings) -> Question:
        loaded, callable_tools, definitions = self._open_session.loaded, request.callable_tools, []
        if callable_tools:
            if (form := loaded.template.call_form) is None:
                message = "This model's chat template has no tool calls that this server reads"
                raise BadInput(f"{message}; leave out tools.", "tools", "unsupported_parameter")
            callable_tools = replace(callable_tools, form=form)
            definitions = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        ids = loaded.template.render_chat(
            request.turns,
            loaded.tokenizer,
            definitions,
            continue_final_message=bool(request.continue_final_message),
            chat_template_kwargs=request.chat_template_kwargs,
        )
        return Question(
            tuple(ids),
            settings,
            request.turns[-1].content,
            baseline=request.extension.baseline,
            tools=callable_tools,
            logprobs=request.likeliest,
            prediction=tuple(loaded.tokenizer.encode(request.predicted, special=False)),
        )

    def _question(self, request: CommonRequest, prompt: Any, settings: Settings) -> Question:
        tokenizer, logprobs = self._open_session.loaded.tokenizer, request.likeliest
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, special=False, bos=True)
            return Question(tuple(ids), settings, prompt, logprobs=logprobs)
        last = tokenizer.vocabulary_size - 1
        if max(prompt) > last:
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        return Question(tuple(prompt), settings, tokenizer.decode(prompt), logprobs=logprobs)


class Answers:
    """The answers to one request of a LocalBackend. The first answer to a prompt reads it for the
    others."""

    def __init__(self, backend: LocalBackend, request: CommonRequest):
        self._backend, self._request = backend, request
        self._lock = threading.Lock()
        self._questions: list[Question] = []
        self._read = [threading.Event() for _ in request.prompts]

    def run(self, answer: int, stop: threading.Event) -> Generator[Piece]:
        """The pieces of one answer."""
        number, repeated = divmod(answer, self._request.n or 1)
        read = self._read[number]
        try:
            with self._backend.recorded(self._request, stop) as record:
                question = self._question(number)
                seed = (question.settings.seed + repeated) % 2**63
                settings = replace(question.settings, seed=seed)
                if repeated:
                    read.wait()
                question = replace(question, settings=settings, stop=stop)
                for piece in self._backend.pieces(self._request, question, answer):
                    record.count(piece.what)
                    if isinstance(piece.what, Round):
                        read.set()
                    yield piece
        finally:
            read.set()

    def _question(self, number: int) -> Question:
        with self._lock:
            self._questions = self._questions or self._backend.questions(self._request)
        return self._questions[number]


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
        merged: dict[str, Metric] = {}
        for report in await self._reports():
            for family in text_string_to_metric_families(report["metrics"]):
                new = Metric(family.name, family.documentation, family.type)
                metric = merged.setdefault(family.name, new)
                for sample in family.samples:
                    labels = {**sample.labels, "replica": report["replica"]}
                    metric.add_sample(sample.name, labels, sample.value)
        return generate_latest(SimpleNamespace(collect=merged.values)).decode()

    async def _reports(self) -> list[dict[str, Any]]:
        """The reports of all running replicas (`ray.EngineReplica.report`)."""
        try:  # a call to one would wait if that replica is full
            responses = self._engine.broadcast("report")
            reports = await responses.results_async(timeout_s=5.0, return_exceptions=True)
        except self._none:
            return []
        return [report for report in reports if isinstance(report, dict)]

    async def answer(self, request: CommonRequest) -> AsyncGenerator[Piece, None]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun, unfinished = False, request.answers
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(request)
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
