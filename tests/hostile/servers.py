"""A server as its owner starts it, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx

ROOT = Path(__file__).parents[2]
SERVE = "-m", "specdemo", "serve", "--no-ray", "--pair", "embedded"


@contextmanager
def started(*command: str, **environment: str):
    """`python COMMAND --port PORT` until it is ready: its url, process and what it `said`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    where = {"cwd": ROOT, "env": {**os.environ, "PYTHONUNBUFFERED": "1", **environment}}
    with tempfile.TemporaryFile("w+") as log:

        def said() -> str:
            log.seek(0)
            return log.read()

        full = [sys.executable, *command, "--port", port]
        with subprocess.Popen(full, stdout=log, stderr=log, **where) as process:
            try:
                until = time.monotonic() + 180
                while not ready(url):
                    assert process.poll() is None and time.monotonic() < until, said()
                    time.sleep(0.2)
                yield SimpleNamespace(url=url, process=process, said=said)
            finally:
                process.kill()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
