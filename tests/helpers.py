"""What several test files share: made-up races, servers that run within a test, waiting for other
threads."""

import contextlib
import faulthandler
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs.question import Question
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Baseline, BaselineToken, Trace
from specdemo.text.templates import Template


def next_token(session, prompt, settings, answer=()):
    """The target's distribution of the next token."""
    from specdemo.engine import request  # imports OpenVINO

    work = partial(request.next_token, answer=tuple(answer))
    return session.submit(Question(prompt, settings), work).result()


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
    from specdemo.server.web_server import bound_socket

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
    from specdemo.server.server_options import ServeOptions
    from specdemo.server.web_server import Server

    options = ServeOptions(**{"max_new_tokens": 8, **options})
    session.loaded = loaded or session.loaded
    backend = LocalBackend(options, load or (lambda *_: session))
    app = openai_application(backend, options, key)
    loading = backend.load(options)
    if load is None:
        loading.result()
    with running(Server(app, app.state.guard, 5)) as url:
        yield SimpleNamespace(url=url)


def service_of(session, *limits):
    """A page's service whose session is `session`, ready."""
    from specdemo.server.page.service import Service

    pair = ModelChoice("embedded")
    service = Service(pair, lambda pair, report: session, *limits)
    service.load(pair).result()
    return service


def page_application(service, menu=None, download=None, *, key: str | None = None):
    """The application of a page for a service, shared by strangers unless `menu` says otherwise;
    and its guard."""
    from specdemo.server.page import web_app
    from specdemo.server.page.model_menu import ModelMenu
    from specdemo.server.page.routes import PageGuard

    menu = menu or ModelMenu(service.state.pair, shared=True)
    guard = PageGuard(key=key)
    return web_app.page_app(service, menu, guard, 30, download), guard


@contextlib.contextmanager
def page_server(service, menu=None, download=None, *, application=None):
    """The URL of a running page for a service; `application` replaces its `page_application`."""
    from specdemo.server.page.web_app import finish
    from specdemo.server.web_server import Server

    app, guard = application or page_application(service, menu, download)
    ends = {"trusted_proxies": "127.0.0.1", "finish": partial(finish, app, service)}
    server = Server(app, guard, 1, **ends)
    server.config.timeout_graceful_shutdown = 1
    with running(server) as url:
        yield url


def fake_peer(
    loaded,
    method: str = "speculative",
    *,
    tokens: tuple[int, ...] = (1, 2, 3),
    seconds: float = 0.5,
    fails: Callable[[str, Settings], bool] = lambda text, settings: False,
    **fields,
):
    """A peer that answers with these tokens, unless it `fails` for a prompt and its settings."""
    from specdemo.audit.engines import Peer

    def generate(prompts, settings):
        if any(fails(loaded.tokenizer.decode(ids), settings) for ids in prompts):
            raise ValueError("no reason")
        return [(tokens, seconds) for _ in prompts]

    return Peer(
        loaded=loaded,
        method=method,
        load=cache(lambda: generate),
        logits=lambda *_: np.full(9, np.nan),
        offers=frozenset({"batch"}),
        **{"name": "fake", "variant": "kind", "properties": {}, **fields},
    )


def paths(node, path=()):
    """The keys to every value inside of dicts and lists."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield *path, key
        if isinstance(value, dict | list):
            yield from paths(value, (*path, key))


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


def race_trace(
    *texts: str,
    instruction: str = "What is it?",
    settings: Settings = Settings(),  # noqa: B008
    pair: PairInfo = PairInfo("toy", "toy target", None, "abc123"),  # noqa: B008
) -> Trace:
    """A watched race whose answer has these tokens, with ids 1, 2, 3, ...: the first token, then in
    turn an accepted draft token and a correction of the draft token 99. A token takes 0.01 s with
    drafts and 0.02 s without."""
    rounds, tokens = [], []
    for number, text in enumerate(texts):
        shown_at, id = 0.01 * number + 0.01, number + 1
        drafted, emitted = (), EmittedToken(id, "first", 0.5, text)
        if number % 2:
            drafted, emitted = (DraftToken(id, 0.5, 0.5, True, text=text),), None
        elif number:
            drafted = (DraftToken(99, 0.5, 0.1, False, text=text),)
            emitted = EmittedToken(id, "correction", 0.9, text)
        draft_seconds = 0.001 if number else 0.0
        rounds.append(Round(drafted, emitted, draft_seconds, 0.01, shown_at))
        tokens.append(BaselineToken(id, 2 * shown_at, text, 0.25))
    return Trace(
        instruction=instruction,
        prompt_tokens=5,
        prompt_reused=0,
        pair=pair,
        settings=settings,
        prefill_seconds=0.01,
        rounds=tuple(rounds),
        finish_reason="length",
        cpu_seconds=0.1,
        outside_seconds=0.0,
        baseline=Baseline(tuple(tokens), 0.01, 0.2),
        identical=True,
    )


def at_pace(trace: Trace, seconds: float, baseline_seconds: float, **changes) -> Trace:
    """An unwatched race with the same tokens, these seconds of decoding and `changes`."""

    def paced(events: Sequence, duration: float) -> tuple:
        begin, span = events[0].shown_at, events[-1].shown_at - events[0].shown_at
        times = (begin + duration * (event.shown_at - begin) / span for event in events)
        return tuple(map(lambda event, time: replace(event, shown_at=time), events, times))

    baseline = replace(trace.baseline, tokens=paced(trace.baseline.tokens, baseline_seconds))
    changes = {"baseline": baseline, "watched": False, **changes}
    return replace(trace, rounds=paced(trace.rounds, seconds), **changes)
