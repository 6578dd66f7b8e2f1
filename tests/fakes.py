"""A session that answers from a script, like `specdemo.runs.session.Session`: no model."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace

from traces import at_pace

from specdemo.engine.messages import DraftToken, EmittedToken, Logprobs, Round
from specdemo.engine.scheduler import Activity, Waiting
from specdemo.errors import BadInput, Busy
from specdemo.pairs.registry import PairInfo
from specdemo.runs.question import Event, Prompt, Question
from specdemo.runs.race import on_show
from specdemo.runs.session import CacheUse
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Baseline, BaselineToken, Trace
from specdemo.text.stops import StopStrings
from specdemo.text.templates import Template

PIECES = ("One ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ")


class FakeSession:
    """Answers with the words of the instruction, a round each, or with `text` over and over.

    The ids of the answer's tokens are 1, 2, 3, ... Rounds: the first token, then in turn an
    accepted draft token and a correction. A round takes `delay` seconds. Everything may be set
    between requests: `errors` are raised by the next answers, one each, after two rounds; `refusal`
    by every answer before anything runs, as is Busy where `limit` requests are at work; `waits`
    come before the first round; the baseline has another token at the position `differs_at`. With
    `repeat` the trace comes again with one more race each time, of the `repeats`: seconds of
    decoding of both runs. While `held` is set a Waiting comes again and again. `questions` are
    recorded. The log-probability of the token with id n is -n / 8.
    """

    def __init__(
        self,
        text: Sequence[str] | None = None,
        *,
        delay: float = 0.0,
        context_limit: int = 1000,
        info: PairInfo | None = None,
    ):
        self.info = info or PairInfo("fake", "fake target", None, "abc123")
        self.context_limit = context_limit
        self.text, self.delay = text, delay
        self.errors: list[BaseException] = []
        self.refusal: BaseException | None = None
        self.waits: list[Waiting] = []
        self.limit: int | None = None
        self.differs_at: int | None = None
        self.repeats: list[tuple[float, float]] = []
        self.held = threading.Event()
        self.questions: list[Question] = []
        self.active = self.rounds_made = 0
        self.closed = False

    @property
    def prompts(self) -> list[Prompt]:
        return [question.prompt for question in self.questions]

    @property
    def settings(self) -> list[Settings]:
        return [question.settings for question in self.questions]

    @property
    def activity(self) -> Activity:
        return Activity(self.active)

    def cache_blocks(self) -> dict[str, CacheUse]:
        return {"target": CacheUse(3, 3, 10)}

    def close(self) -> None:
        self.closed = True

    def answer(self, prompt: Prompt, settings: Settings, **options) -> Iterator[Event]:
        return self.ask(Question(prompt, settings, **options))

    def race(self, prompt: Prompt, settings: Settings, **options) -> Iterator[Event]:
        return self.ask(Question(prompt, settings, baseline=True, **options))

    def ask(self, question: Question) -> Iterator[Event]:
        if self.refusal is not None:
            raise self.refusal
        text = question.prompt if isinstance(question.prompt, str) else "of token ids"
        if not question.prompt or not text.strip():
            raise BadInput("The prompt is empty; write a question or a task.")
        self.questions.append(question)
        return self._answer(question, question.stop or threading.Event())

    def submit(self, question, kind, *, logprobs):
        scores = [scored(id, logprobs) for id in question.prompt[1:]]
        return SimpleNamespace(result=lambda: scores)

    def _answer(self, question: Question, stop: threading.Event) -> Iterator[Event]:
        settings, rounds = question.settings, []
        stops = StopStrings(settings.stop)
        if self.limit is not None and self.active >= self.limit:
            raise Busy(f"{self.active} requests are waiting already; try again in a moment.")
        error = self.errors.pop(0) if self.errors else None
        pieces = self.text or [word + " " for word in question.instruction.split()]
        count = settings.max_new_tokens if self.text else min(len(pieces), settings.max_new_tokens)
        self.active += 1
        try:
            yield from self.waits
            for position in range(count):
                while self.held.is_set() and not stop.is_set():
                    yield Waiting(0, None)
                    time.sleep(0.005)
                if stop.wait(self.delay):
                    break
                if error is not None and position == 2:
                    raise error
                rounds.append(_round(position, pieces[position % len(pieces)]))
                if question.logprobs is not None:
                    rounds[-1].logprobs = (scored(position + 1, question.logprobs),)
                self.rounds_made += 1
                text = "".join(token.text for token in rounds[-1].tokens)
                rounds[-1].text = stops.push(text)
                yield rounds[-1]
                if stops.found:
                    break
            if rounds and not stop.is_set():
                rounds[-1].text += stops.rest()
            trace = self._trace(question, rounds, stop)
            if stops.found:
                trace = dataclasses.replace(trace, finish_reason="stop")
            shown = []
            for position, token in enumerate(trace.tokens if question.baseline else ()):
                if stop.wait(self.delay):
                    break
                id, text = (98, "other ") if position == self.differs_at else (token.id, token.text)
                shown.append(BaselineToken(id, 0.02 * position + 0.02, text, 0.25))
                yield shown[-1]
            if shown:
                same = tuple(token.id for token in shown) == trace.token_ids
                same = None if stop.is_set() else same
                baseline = Baseline(tuple(shown), trace.prefill_seconds, 0.2)
                trace = dataclasses.replace(trace, baseline=baseline, identical=same)
            yield trace
            races = [trace]
            for seconds in self.repeats if question.repeat else ():
                if stop.wait(self.delay):
                    return
                races.append(at_pace(trace, *seconds))
                yield on_show(races)
        finally:
            self.active -= 1

    def _trace(self, question: Question, rounds: list[Round], stop: threading.Event) -> Trace:
        return Trace(
            instruction=question.instruction,
            prompt_tokens=5 if isinstance(question.prompt, str) else len(question.prompt),
            prompt_reused=0,
            pair=self.info,
            settings=question.settings,
            prefill_seconds=0.01,
            rounds=tuple(rounds),
            finish_reason="cancelled" if stop.is_set() else "length",
            cpu_seconds=0.1,
            outside_seconds=0.0,
        )


def scored(id: int, count: int) -> Logprobs:
    return Logprobs(-id / 8, tuple((id + offset, -(id + offset) / 8) for offset in range(count)))


def _round(number: int, text: str) -> Round:
    shown_at = 0.01 * number + 0.01
    if number == 0:
        return Round((), EmittedToken(1, "first", 0.5, text), 0.0, 0.01, shown_at)
    if number % 2:
        return Round(
            (DraftToken(number + 1, 0.5, 0.5, True, text=text),), None, 0.001, 0.01, shown_at
        )
    wrong = DraftToken(99, 0.5, 0.1, False, text=text)
    return Round((wrong,), EmittedToken(number + 1, "correction", 0.9, text), 0.001, 0.01, shown_at)


def next_token(session, prompt, settings, answer=()):
    """The target's distribution of the next token."""
    from specdemo.engine.request import NextToken

    return session.submit(Question(prompt, settings), NextToken, answer=list(answer)).result()


def until(condition: Callable[[], object]) -> None:
    """Polls for what other threads bring about; the limit is far from what it takes."""
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never happened")


@contextlib.contextmanager
def running(server) -> Iterator[str]:
    """The URL of a server, while it runs."""
    from specdemo.server.request_guard import bound_socket

    listening = bound_socket("127.0.0.1", 0)
    serving = threading.Thread(target=server.run, args=([listening],), daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        serving.join(60)
        if serving.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            raise AssertionError("the server did not end")


@contextlib.contextmanager
def served(
    session, loaded=None, *, key: str | None = None, load: Callable | None = None, **options
):
    """A running API server over a session, with `options` of ServeOptions; `load` replaces how its
    engine is made."""
    from specdemo.server.backend import LocalBackend
    from specdemo.server.openai_api import openai_application
    from specdemo.server.request_guard import Server
    from specdemo.server.server_options import ServeOptions

    options = ServeOptions(**{"max_new_tokens": 8, **options})
    session.loaded = loaded or session.loaded
    backend = LocalBackend(options, load or (lambda *_: session))
    app = openai_application(backend, options, key)
    backend.start()
    if load is None:
        list(backend.states(options))
    with running(Server(app, app.state.guard, 5)) as url:
        yield SimpleNamespace(url=url)


def page_application(service, menu=None, download=None, *, key: str | None = None):
    """The application of a page for a service, shared by strangers unless `menu` says otherwise;
    and its guard."""
    from specdemo.server.page import layout, web_app
    from specdemo.server.page.model_menu import ModelMenu
    from specdemo.server.page.routes import PageGuard

    menu = menu or ModelMenu(service.state.pair, shared=True)
    page = layout.build(service, menu, 30, download)
    guard = PageGuard(key=key)
    return web_app.page_app(page, service, guard), guard


@contextlib.contextmanager
def page_server(service, menu=None, download=None, *, application=None):
    """The URL of a running page for a service; `application` replaces its `page_application`."""
    from specdemo.server.page.web_app import finish
    from specdemo.server.request_guard import Server

    app, guard = application or page_application(service, menu, download)
    ends = {"trusted_proxies": "127.0.0.1", "finish": partial(finish, app, service)}
    server = Server(app, guard, 1, **ends)
    server.config.timeout_graceful_shutdown = 1
    with running(server) as url:
        yield url


_CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML = Template("chatml", _CHATML)
"""The template in the embedded target's file."""
