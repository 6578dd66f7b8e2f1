"""`specdemo serve`: an OpenAI-compatible API, in this process or on replicas."""

import importlib.util
import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace

from specdemo.commands.shared import chosen_pair, options_of, sectioned
from specdemo.errors import BadInput, MissingPackage, install
from specdemo.server.backend import LocalBackend
from specdemo.server.metrics import announce, log_requests
from specdemo.server.openai_api import openai_application
from specdemo.server.server_options import ServeOptions, key_from_environment
from specdemo.server.web_server import Server, bound_socket, url_of


@sectioned()
@options_of(ServeOptions, "options")
def serve(options: ServeOptions) -> None:
    # Both raise BadInput here, not on a thread or a replica.
    pair, _ = chosen_pair(options), key_from_environment()
    if not options.model:
        options = replace(options, pair=pair.name)
    log_requests(options.log_format)
    if options.no_ray:
        serve_locally(options)
    elif importlib.util.find_spec("ray") is None:
        raise MissingPackage(
            "serve runs its replicas on Ray Serve, which is not installed: run "
            f"{install('serve')}, or use --no-ray for one engine in this process."
        )
    else:
        serve_on_ray(options)


def serve_locally(options: ServeOptions) -> None:
    """Serve with one engine in this process. Requests get 503 until the model is loaded."""
    if options.replicas > 1 or options.max_replicas:
        raise BadInput("--replicas and --max-replicas need Ray; leave out --no-ray.")
    listening = bound_socket(options.host, options.port)
    url = url_of(*listening.getsockname()[:2])
    backend = LocalBackend(options)
    app = openai_application(backend, options, key_from_environment())
    server = Server(app, app.state.guard, options.drain_seconds, finish=backend.close)

    failures: list[BaseException] = []

    def loaded(load: Future[None]) -> None:
        if not (error := load.exception()):
            announce(f"Ready: {url}/v1")
        elif not server.should_exit:
            failures.append(error)
            server.should_exit = True

    announce(f"Listening at {url}; loading the model.")
    backend.load(options).add_done_callback(loaded)
    server.run([listening])
    if failures:
        raise failures[0]
    announce("Stopped.", sys.stderr)


def serve_on_ray(options: ServeOptions) -> None:
    from specdemo.server.ray import on_ray

    for field in ("model", "assistant_model"):
        name = getattr(options, field)
        if os.path.exists(name):  # replicas run in other folders
            options = replace(options, **{field: os.path.abspath(name)})
    ended = threading.Event()
    announce("Starting Ray and the replicas.")
    with on_ray(options, ended) as url:
        announce(f"Ready: {url}/v1")
        ended.wait()
        announce("Finishing what has begun.", sys.stderr)
