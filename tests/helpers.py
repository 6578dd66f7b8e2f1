"""What several test files share: servers that run within a test, waiting for other threads."""

from __future__ import annotations

import contextlib
import faulthandler
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

from specdemo.runs.question import Question
from specdemo.text.templates import Template


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
    from specdemo.server.web_server import Server

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
