"""`specdemo load`: what visitors of a page get together, over its public endpoint."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import numpy as np
from pydantic.dataclasses import dataclass as checked

from specdemo.cli import json_option, options_of, write_json
from specdemo.errors import RequestFailed
from specdemo.settings import CONFIG, Line, option, real, whole
from specdemo.terminal import say, show, text

ROOT = Path(__file__).resolve().parents[2]

PATIENCE = 120.0  # seconds without a byte after which an answer counts as failed

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""

DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The endpoint's further inputs, from the draft length to the numerics."""


@checked(frozen=True, slots=True, config=CONFIG)
class LoadOptions:
    """What to measure."""

    visitors: whole(1, 64) = option(
        16, "most visitors at a time; levels are 1, 4, 8, 16, 32 up to that"
    )
    seconds: real(1, 600) = option(30.0, "how long each level lasts")
    url: str | None = option(None, "a server that is running", unset="one is started")
    pair: Line = option("embedded", "what a started server loads")
    max_new_tokens: whole(1, 2000) = option(100, "length of the answers")


@dataclass
class Asked:
    """One request as its visitor saw it, in monotonic seconds; `pieces` are (when, tokens so far).

    It ended with all of its `text`, with an `error`, or because the visitor left."""

    begun: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    error: str = ""

    def tokens_until(self, ended: float) -> int:
        return max((tokens for when, tokens in self.pieces if when <= ended), default=0)


def ask(
    client: httpx.Client,
    url: str,
    instruction: str,
    max_new_tokens: int,
    stop: threading.Event,
    leave_after: int = 0,
) -> Asked:
    """Ask once over the page's endpoint /generate, in a session of its own. Hangs up after
    `leave_after` pieces (0: never) or when `stop` is set. Visitors share the `client`: making one
    takes 30 ms of the processor, which the models would lack."""
    asked = Asked(time.monotonic())
    call = f"{url}/gradio_api/call/generate"
    values = [instruction, max_new_tokens, *DEFAULTS]
    body = {"data": values, "session_hash": uuid.uuid4().hex}
    event = ""
    try:
        reply = client.post(call, json=body).raise_for_status()
        with client.stream("GET", f"{call}/{reply.json()['event_id']}") as stream:
            for line in stream.iter_lines():
                if stop.is_set() or leave_after and len(asked.pieces) >= leave_after:
                    return asked
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "error":
                    asked.error = value[:300]
                elif name == "data" and event == "generating" and (data := json.loads(value)):
                    asked.pieces.append((time.monotonic(), data[0]["tokens"]))
                    asked.text = data[0]["text"]  # empty until it is done
        if not (asked.text or asked.error):
            asked.error = "the answer did not end"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        asked.error = f"{type(error).__name__}: {error}"[:200]
    return asked


class Crowd:
    """Visitors at `url` who each ask one question after the other."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int):
        self.url, self.prompts, self.max_new_tokens = url, prompts, max_new_tokens
        self._client = httpx.Client(timeout=PATIENCE, limits=httpx.Limits(max_connections=None))
        self._numbers = itertools.count()

    def level(self, visitors: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
        """What so many visitors got for so long, as the contract of `load` has it, and the messages
        of all errors. Times are in seconds.

        Tokens count that arrive within that time. No question is asked twice: a prompt that the
        server has in its prefix cache would cost no prefill.
        """
        stop, done = threading.Event(), []

        def visit(_: int) -> None:
            while not stop.is_set():
                number = next(self._numbers)
                prompt = f"{self.prompts[number % len(self.prompts)]} ({number})"
                done.append(ask(self._client, self.url, prompt, self.max_new_tokens, stop))
                stop.wait(0.5 if done[-1].error else 0)

        ended = time.monotonic() + seconds
        with ThreadPoolExecutor(visitors) as pool:
            visits = pool.map(visit, range(visitors))
            time.sleep(seconds)
            stop.set()
        list(visits)  # raises what a visitor raised
        settle(self.url)
        begun = [one for one in done if one.pieces and one.pieces[0][0] <= ended]
        firsts = [one.pieces[0][0] - one.begun for one in begun]
        errors = [one.error for one in done if one.error]
        level = {
            "visitors": visitors,
            "tokens_per_s": sum(one.tokens_until(ended) for one in done) / seconds,
            "ttft_p50_s": float(np.quantile(firsts, 0.5)) if firsts else None,
            "ttft_p95_s": float(np.quantile(firsts, 0.95)) if firsts else None,
            "errors": len(errors),
            "requests": len(done),
            "seconds": seconds,
        }
        return level, errors


def settle(url: str, within: float = 30.0) -> None:
    """Wait until the server has no request left, as far as its /health tells."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        told = httpx.get(f"{url}/health", timeout=10).json()
        if not any(told.get(name) for name in ("active", "queue", "visitors")):
            return
        time.sleep(0.1)


def levels_up_to(visitors: int) -> list[int]:
    """1, 4, 8, 16, 32 as far as `visitors`, and that itself."""
    return sorted({level for level in (1, 4, 8, 16, 32) if level <= visitors} | {visitors})


# The command


@click.command()
@options_of(LoadOptions, "asked", variables=False)
@json_option
def load(asked: LoadOptions, json_file: str | None) -> int:
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.models.registry import find_pair

    find_pair(asked.pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    prompts = [prompt for prompt in prompts if len(prompt) < 400]
    out = sys.stderr if json_file == "-" else sys.stdout
    levels: dict[int, dict[str, Any]] = {}
    errors: set[str] = set()
    with ExitStack() as stack:
        url = (asked.url or "").rstrip("/")
        if url:
            wait_ready(url)
        else:
            # Prompts repeat: a table that learns their answers would be measured instead.
            command = "app.py", "--pair", asked.pair, "--no-learn-ngrams"
            url = stack.enter_context(started(*command, SPECDEMO_LOG="WARNING")).url
        crowd = Crowd(url, prompts, asked.max_new_tokens)
        for visitors in levels_up_to(asked.visitors):
            level, wrong = crowd.level(visitors, asked.seconds)
            levels[visitors] = level
            errors.update(wrong)
            rate = text(level["tokens_per_s"])
            say(f"{visitors} visitors: {rate} tokens/s together, {level['errors']} errors", out)
    one = levels[1]["tokens_per_s"]
    gain = levels[8]["tokens_per_s"] / one if 8 in levels and one else None
    figures = {"one_at_a_time_tokens_per_s": one, "aggregate_gain": gain}
    show("visitors at once", list(levels.values()), out)
    show(None, [figures], out)
    for sentence in sorted(errors)[:20]:
        say(f"error: {sentence}", out)
    if json_file:
        write_json(json.dumps({"levels": list(levels.values()), **figures}, indent=2), json_file)
    return 1 if errors else 0


@contextmanager
def started(*command: str, **environment: str) -> Iterator[SimpleNamespace]:
    """`python COMMAND --port PORT` in a process of its own on 127.0.0.1, ready: its `url`,
    `process`, and what it has `said`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    full = [sys.executable, *command, "--host", "127.0.0.1", "--port", port]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(full, stdout=log, stderr=log, cwd=ROOT, env=env) as process,
    ):

        def said() -> str:
            log.seek(0)
            return log.read()

        try:
            wait_ready(url, process)
            yield SimpleNamespace(url=url, process=process, said=said)
        except RequestFailed as error:
            last = said().strip().splitlines()[-1:]
            raise RequestFailed(" ".join([str(error), *last])) from error
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def wait_ready(url: str, process: subprocess.Popen | None = None) -> None:
    """Wait until the server's models are loaded. Raises RequestFailed when it ends or fails."""
    until = time.monotonic() + (READY_WITHIN if process else 60)
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise RequestFailed("The server ended before it was ready.")
        with suppress(httpx.HTTPError, ValueError, KeyError):
            told = httpx.get(f"{url}/health", timeout=5).json()
            status = told["status"]
            if status == "ready" and not told.get("preparing"):
                return
            if status == "failed":
                raise RequestFailed("The server could not load its models.")
        time.sleep(0.25)
    raise RequestFailed(f"{url} is not ready; start it, or leave --url out.")
