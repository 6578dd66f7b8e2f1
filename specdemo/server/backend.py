"""Answers requests of the API with the session in this process. Independent of HTTP."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, cast

from specdemo.engine.request import prompt_logprobs
from specdemo.engine.rounds import Logprobs, Round
from specdemo.errors import BadInput, Busy, RequestFailed, SpecdemoError
from specdemo.machine.terminal import Report
from specdemo.machine.threads import ShortestFirst, merged
from specdemo.pairs.registry import chosen_pair
from specdemo.runs.question import Question, SessionEvent, question_of, with_text
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings, require_exact
from specdemo.runs.trace import Trace
from specdemo.server.host import Host
from specdemo.server.metrics import Record
from specdemo.server.schema import AnswerRequest, ChatRequest, CompletionRequest
from specdemo.server.server_options import ServeOptions
from specdemo.text.tokenizer import TextStream
from specdemo.text.tools import CallReader, FunctionCall

if TYPE_CHECKING:
    from specdemo.runs.session import Session

log = logging.getLogger(__name__)

PING = 0.25  # seconds
LONG_TEXT = 20_000  # characters of a prompt
SHARED_ANSWER_TOKENS = 4096  # of the longest answer to a stranger: it takes others' time
STOPPED = "The answer was cut off: the server is being stopped."


class NotReady(Busy):
    """No model is loaded yet, or none any more."""

    http_status = 503


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The bytes of a token and of the likeliest tokens in its place, each with its log-probability
    (a prompt's first token has none). It begins at the character `offset` of the text. An answer
    may have 131,072 of these: with 20 of the likeliest, half a kilobyte each."""

    contents: tuple[bytes, ...]
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """An event of one of the answers to a request."""

    event: SessionEvent
    text: str = ""  # the next certain text, without calls
    answer: int = 0
    tokens: tuple[ScoredToken, ...] = ()  # of the text, if they are scored
    calls: tuple[FunctionCall, ...] = ()  # that the event completes


def open_pair(options: ServeOptions, report: Report) -> Session:
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


class LocalBackend(Host):
    """The API's host of one pair. Requests raise NotReady until it is loaded."""

    def __init__(
        self, options: ServeOptions, opener: Callable[[ServeOptions, Report], Session] = open_pair
    ):
        super().__init__(options, opener, fetch=lambda *_: False)  # one pair has room in memory
        self.options, self._created = options, int(time.time())
        self.stops: set[threading.Event] = set()  # stop signals of answers in progress
        self.long_texts = ShortestFirst(rest=1.0)

    @property
    def visitors(self) -> int:
        return len(self.stops)

    def failure_line(self, error: Exception) -> str:
        if not isinstance(error, SpecdemoError):  # whose line says it all
            log.error("The model cannot be loaded.", exc_info=error)
        return super().failure_line(error)

    async def model(self) -> dict[str, Any]:
        """The model's entry in /v1/models. Raises NotReady."""
        session = self._ready_session()
        info, context = session.info, session.context_limit
        return {
            "id": info.target,
            "object": "model",
            "created": self._created,
            "owned_by": "specdemo",
            "pair": info.name,
            "draft": info.draft,
            "target_revision": info.target_revision,
            "draft_revision": info.draft_revision,
            "context_length": context,
            "max_answer_tokens": longest_answer(session, self.options),
            "vocabulary_size": session.loaded.tokenizer.vocabulary_size,
            "numerics_found": info.numerics_found,
        }

    def _ready_session(self) -> Session:
        state = self.answering
        if state.kind == "loading":
            raise NotReady(f"The model is not ready yet: {state.line.rstrip('.')}.")
        if state.kind == "failed" or not state.session:
            if not self.closed:
                self.load(self.options)
            raise NotReady(state.line)
        return state.session

    def answer(self, request: AnswerRequest) -> AsyncGenerator[Piece | None, None]:
        """The events of the answers, a Trace the last of each, from threads; None after PING
        seconds without one. Closing the iterator ends the answers. Raises BadInput or Busy before
        the first event, RequestFailed later."""
        answers = Answers(self, self._ready_session(), request)
        stops = [threading.Event() for _ in range(request.answers)]
        places = self.options.max_ongoing + self.options.max_waiting
        if len(stops) > places:
            message = f"{len(stops)} answers are wanted; this server has room for {places} at once."
            raise BadInput(message, "n" if (request.n or 1) > 1 else "prompt")
        if len(self.stops) + len(stops) > places:
            self.counters.requests.labels("answer", "refused").inc()
            raise Busy("Too many requests wait already; try again in a moment.")
        self.stops.update(stops)
        works = {stop: answers.run(number, stop) for number, stop in enumerate(stops)}
        # They take half the places of the models at most: other requests go on beside them.
        places = max(self.options.max_ongoing // 2, 1)
        return merged(works, threads=places, ping=PING)


def longest_answer(session: Session, options: ServeOptions) -> int:
    """The most tokens of an answer."""
    limit = SHARED_ANSWER_TOKENS if options.strangers else MAX_NEW_TOKENS
    return min(limit, session.context_limit - 1)


class Answers:
    """The answers to one request. The first answer to a prompt fills the prefix cache."""

    def __init__(self, backend: LocalBackend, session: Session, request: AnswerRequest):
        self._backend, self._session, self._request = backend, session, request
        self._loaded, self._tokenizer = session.loaded, session.loaded.tokenizer
        self._bytes_of = cache(self._tokenizer.token_bytes)
        self._lock = threading.Lock()
        self._questions: list[Question] = []
        self._read = [threading.Event() for _ in range(request.prompt_count)]

    def run(self, answer: int, stop: threading.Event) -> Generator[Piece]:
        """The pieces of one answer, which ends when `stop` is set."""
        backend = self._backend
        number, repeated = divmod(answer, self._request.n or 1)
        read = self._read[number]
        try:
            with Record(backend.counters) as record, backend.lent_session(backend.options):
                with self._lock:
                    self._questions = self._questions or self._read_questions()
                question = replace(self._questions[number].repeated(repeated), stop=stop)
                if repeated:
                    read.wait()
                cancelled = yield from self._pieces(question, answer, record, read)
            if cancelled:
                raise RequestFailed(STOPPED)
        except Exception as error:
            if backend.closed:
                raise RequestFailed(STOPPED) from error
            if isinstance(error, BadInput):
                self._name_parameter(error)
            raise
        finally:
            read.set()
            backend.stops.discard(stop)

    def _name_parameter(self, error: BadInput) -> None:
        if error.param == "json_schema" and self._request.json_schema:
            error.param = "response_format"
        if error.code == "context_length_exceeded":
            error.param = "messages" if isinstance(self._request, ChatRequest) else "prompt"

    def _pieces(
        self, question: Question, answer: int, record: Record, read: threading.Event
    ) -> Generator[Piece, None, bool]:
        """Returns whether the answer was cancelled. Sets `read` once the prompt is read. Raises
        BadInput or Busy before the first piece."""
        reader = CallReader(question.tools)
        content, scored = self._echo(question)
        ends = () if question.ignores_end else self._loaded.stop_ids
        echoed, spelled, sent = len(content), 0, 0  # characters of the prompt and of the answer
        unsent = deque[tuple[int, ScoredToken]]()  # each with the place where it begins
        with closing(self._session.ask(question)) as events:
            for event, text in with_text(events):
                last = isinstance(event, Trace)
                if self._request.max_tokens == 0:
                    text = ""
                    if isinstance(event, Trace):
                        event = replace(event, rounds=(), finish_reason="length")
                elif isinstance(event, Round):
                    for token, logprobs in zip_longest(event.tokens, event.logprobs):
                        if logprobs and token.id not in ends:
                            scored_token = self._scored(token.id, logprobs, echoed + spelled)
                            unsent.append((spelled, scored_token))
                        spelled += len(token.text)
                    if not self._request.extension.trace:
                        event.logprobs = ()  # in `scored` they are smaller
                if isinstance(event, Round):
                    read.set()
                record.count(event)
                if isinstance(event, Trace) and event.finish_reason == "cancelled":
                    return True
                sent += len(text)
                while unsent and (unsent[0][0] < sent or spelled == sent):
                    scored.append(unsent.popleft()[1])
                more, calls = reader.read(text, last=last)
                yield Piece(event, content + more, answer, tuple(scored), calls)
                content, scored = "", []
        return False

    def _echo(self, question: Question) -> tuple[str, list[ScoredToken]]:
        """The text of the prompt and its tokens with their log-probabilities, where asked for."""
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return "", []
        if request.top_count is None:
            return question.title, []
        prompt, title = cast(tuple[int, ...], question.prompt), question.title
        # Special tokens that the caller has spelled have a text; one before the text has none.
        stream = TextStream(self._tokenizer, special=self._tokenizer.decode(prompt) != title)
        pieces = [*map(stream.push, prompt), stream.rest()]
        text = "".join(pieces)
        surplus = len(text) - len(title)
        if not text.endswith(title):  # a tokenizer that composes characters reads another text
            added = prompt[0] in self._tokenizer.special_ids and not title.startswith(pieces[0])
            surplus = len(pieces[0]) if added else 0
            title = text[surplus:]
        begins = accumulate(map(len, pieces[:-1]), initial=0)
        offsets = [max(begin - surplus, 0) for begin in begins]
        undrafted = replace(question, settings=replace(question.settings, drafter="none"))
        run = self._session.submit(undrafted, prompt_logprobs, logprobs=request.top_count)
        scored = map(self._scored, prompt[1:], run.result() or (), offsets[1:])
        return title, [ScoredToken((self._bytes_of(prompt[0]),)), *scored]

    def _scored(self, token: int, logprobs: Logprobs, offset: int) -> ScoredToken:
        contents = tuple(map(self._bytes_of, (token, *(id for id, _ in logprobs.top))))
        numbers = array("d", (logprobs.token, *(logprob for _, logprob in logprobs.top)))
        return ScoredToken(contents, numbers, offset)

    def _read_questions(self) -> list[Question]:
        """A question of token ids for each prompt. A text that cannot fit is refused by its length.
        Long ones are read one at a time, with as long a rest after each, so that other requests
        have the processor. Raises BadInput."""
        request, options = self._request, self._backend.options
        limit = longest_answer(self._session, options)
        settings = request.settings(min(options.max_new_tokens, limit), options.drafter)
        if options.strangers:
            require_exact(settings, "speculative.numerics")
        if settings.max_new_tokens > limit:
            wanted = f"max_tokens is {settings.max_new_tokens}"
            raise BadInput(f"{wanted}; this model answers with at most {limit}.", "max_tokens")
        characters = request.characters
        readable = self._session.context_limit * self._tokenizer.longest_token
        readable *= request.prompt_count
        if characters > readable:
            message = f"The prompt is too long: {characters:,} characters; this model reads fewer"
            raise BadInput(f"{message} than {readable:,}.", code="context_length_exceeded")
        long_texts = self._backend.long_texts
        turn = long_texts.turn(characters) if characters > LONG_TEXT else nullcontext()
        with turn:
            if isinstance(request, ChatRequest):
                question = question_of(
                    self._loaded, request.chat, settings, request.predicted, request.chat.tools
                )
                baseline = request.extension.baseline
                return [replace(question, baseline=baseline, logprobs=request.top_count)]
            return [self._text_question(prompt, settings) for prompt in request.prompt]

    def _text_question(self, prompt: Any, settings: Settings) -> Question:
        """Special tokens that a text spells are parsed: the caller writes the whole prompt."""
        tokenizer, suffix = self._tokenizer, getattr(self._request, "suffix", None)
        if isinstance(prompt, str):
            title, begins = prompt, getattr(self._request, "add_special_tokens", None) is not False
            prompt = tokenizer.encode(prompt, bos=begins and not suffix)
        elif max(prompt) > (last := tokenizer.vocabulary_size - 1):
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        else:
            title = tokenizer.decode(prompt)
        if suffix:
            if (markers := tokenizer.fill_in_markers) is None:
                message = "This model's vocabulary has no tokens to fill in text; leave out suffix."
                raise BadInput(message, "suffix", "unsupported_parameter")
            begin, middle, end = markers
            prompt = [begin, *prompt, middle, *tokenizer.encode(suffix), end]
        logprobs = self._request.top_count
        return Question(tuple(prompt), settings, title, logprobs=logprobs, continues=not suffix)
