"""Servers in processes of their own, and questions to the page's endpoint /generate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from specdemo.errors import RequestFailed

ROOT = Path(__file__).resolve().parents[1]

DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The other inputs of the endpoint, from the draft length to the numerics."""


def ask(
    client: httpx.Client, url: str, instruction: str, max_new_tokens: int
) -> Iterator[dict[str, Any]]:
    """Ask /generate in a session of its own. Yields its pieces. Raises RequestFailed."""
    call = f"{url}/gradio_api/call/generate"
    body = {"data": [instruction, max_new_tokens, *DEFAULTS], "session_hash": uuid.uuid4().hex}
    event = ""
    try:
        reply = client.post(call, json=body).raise_for_status()
        with client.stream("GET", f"{call}/{reply.json()['event_id']}") as stream:
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "error":
                    raise RequestFailed(value[:300])
                elif name == "data" and event == "generating" and (data := json.loads(value)):
                    yield data[0]
        if event != "complete":
            raise RequestFailed("The answer did not end.")
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}"[:200]) from error


@contextmanager
def started(*command: str, **environment: str) -> Iterator[SimpleNamespace]:
    """Runs `python COMMAND --port PORT` in a process of its own on 127.0.0.1. Yields, once it is
    ready, its `url`, its `process`, and `output`, which returns its output."""
    from specdemo.serving.request_guard import bound_socket

    with bound_socket("127.0.0.1", 0) as probe:
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    full = [sys.executable, *command, "--host", "127.0.0.1", "--port", port]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(full, stdout=log, stderr=log, cwd=ROOT, env=env) as process,
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
            yield SimpleNamespace(url=url, process=process, output=output)
        finally:
            process.terminate()


def _ready(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/health", timeout=5).json()
    except (httpx.HTTPError, ValueError):
        return False
    if health["status"] == "failed":
        raise RequestFailed("The server could not load its models.")
    return health["status"] == "ready" and not health.get("preparing")
