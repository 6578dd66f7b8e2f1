"""Runs an HTTP server in a process of its own."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from specdemo.errors import RequestFailed

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    process: subprocess.Popen[str]
    output: Callable[[], str]  # what it has printed so far


@contextmanager
def started(
    *arguments: str, program: str = sys.executable, **environment: str
) -> Iterator[ServerProcess]:
    """Run `PROGRAM ARGUMENTS --host 127.0.0.1 --port PORT` in the project's folder until the block
    ends, ours without a key. Yields once its /health says that it is ready. Raises RequestFailed if
    it ends or fails before."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    full = [program, *arguments, "--host", "127.0.0.1", "--port", port]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "SPECDEMO_API_KEY": "", **environment}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(full, stdout=log, stderr=log, cwd=ROOT, env=env, text=True) as process,
    ):

        def output() -> str:
            log.seek(0)
            return log.read()

        try:
            while not _ready(url):
                if process.poll() is not None:
                    last = output().splitlines()[-1:]
                    raise RequestFailed(f"The server ended before it was ready. {' '.join(last)}")
                time.sleep(0.25)
            yield ServerProcess(url, process, output)
        finally:
            process.terminate()


def _ready(url: str) -> bool:
    """Other servers than ours are ready once they answer with a status of success."""
    try:
        reply = httpx.get(f"{url}/health", timeout=5)
        health = reply.json()
    except (httpx.HTTPError, ValueError):
        return False
    status = health.get("status", "ok")
    if status == "failed":
        raise RequestFailed("The server could not load its models.")
    return reply.is_success and status in ("ok", "ready") and not health.get("preparing")
