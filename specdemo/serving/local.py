"""The API from this process alone: one engine, one uvicorn server, no Ray. Used by `serve --no-ray` and by tests."""

from __future__ import annotations

import signal
import socket
import sys
import threading

import uvicorn

from specdemo.metrics import log_requests
from specdemo.serving.backend import LocalBackend
from specdemo.serving.openai_api import create_app
from specdemo.serving.options import ServeOptions, open_engine
from specdemo.serving.web import key_from_environment
from specdemo.models.errors import BadChoice, ZooError


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. Raises BadChoice when it is taken, or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        if isinstance(error, socket.gaierror) or error.errno in (49, 99):  # cannot assign the address (macOS, Linux)
            raise BadChoice(f"--host {host!r} is not an address of this machine; try 127.0.0.1.") from error
        raise BadChoice(f"--port {port} cannot be used on {host} ({error.strerror}); choose another.") from error
    return listening


class LocalServer:
    """A backend behind uvicorn on a socket. `run` blocks; `start` and `stop` are for tests and drills."""

    def __init__(self, backend: LocalBackend, listening: socket.socket, *, key: str | None, default_limit: int,
                 drain_seconds: float):  # fmt: skip
        self.backend = backend
        host, port = listening.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._listening = listening
        app = create_app(backend, key=key, default_limit=default_limit)
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off",
                                timeout_graceful_shutdown=max(1, round(drain_seconds)))  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until interrupted; then finish what has begun, for `drain_seconds` at most."""
        try:
            self._server.run(sockets=[self._listening])
        finally:
            self.backend.close()

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="specdemo-serve", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout)


def serve(options: ServeOptions, host: str, port: int) -> int:
    """Serve until interrupted; returns the exit code. Requests get 503 until the model is loaded."""
    listening = bound_socket(host, port)
    log_requests()
    backend = LocalBackend(lambda report: open_engine(options, report, options.cpus_per_replica),
                           ongoing=options.ongoing, waiting=options.waiting)  # fmt: skip
    server = LocalServer(backend, listening, key=key_from_environment(), default_limit=options.max_new_tokens,
                         drain_seconds=options.drain_seconds)  # fmt: skip
    failure: list[str] = []

    def load() -> None:
        backend.load()
        try:
            description = backend.ready_engine().description
        except RuntimeError as error:
            failure.append(str(error))
            signal.raise_signal(signal.SIGTERM)
            return
        print(f"Ready: {description.model} at {server.url}/v1", flush=True)

    print(f"Listening at {server.url}; loading the model.", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises once more what it has been stopped by
    threading.Thread(target=load, daemon=True).start()
    server.run()
    if failure:
        raise ZooError(failure[0])
    print("Stopped.", file=sys.stderr)
    return 0
