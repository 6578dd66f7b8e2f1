"""Loads a page's server over its public endpoint with visitors that ask, read, and ask again.

Measures what visitors get. Starts a server of its own on 127.0.0.1 where no URL is given. Prints
nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from specdemo.errors import RequestFailed

LEVELS = (1, 4, 8, 16, 32)
PATIENCE = 120.0
"""Seconds without a byte after which an answer counts as failed."""

SESSION = 16
"""Questions that a visitor asks in one session before opening the page anew."""

DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The endpoint's further inputs, from the draft length to the numerics."""

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""


@dataclass
class Asked:
    """One request as its visitor saw it, in monotonic seconds; `pieces` are (when, tokens so far).

    It ended in one of three ways: with all of its `text`, with an `error`, or because the visitor
    `left`.
    """

    begun: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    error: str = ""

    @property
    def left(self) -> bool:
        return not self.text and not self.error

    def tokens_until(self, ended: float) -> int:
        return max((tokens for when, tokens in self.pieces if when <= ended), default=0)


@dataclass(frozen=True, slots=True)
class Level:
    """What `visitors` at a time got: tokens of all of them a second, seconds to the first token."""

    visitors: int
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    errors: int
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the server and its children, `seconds` after the test began."""

    seconds: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`aggregate_gain` is the tokens a second of 8 visitors over those of one; `identical` whether
    every compared answer under load was the one given without load."""

    levels: tuple[Level, ...]
    one_at_a_time_tokens_per_s: float
    aggregate_gain: float | None
    identical: bool
    compared: int
    max_new_tokens: int
    memory: tuple[Memory, ...]
    errors: tuple[str, ...] = ()


@contextmanager
def server(pair: str) -> Iterator[tuple[str, int]]:
    """The page's server in a process of its own on 127.0.0.1: its URL and process id, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--host", "127.0.0.1", "--port", str(port), "--pair", pair]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[2],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "SPECDEMO_LOG": "WARNING"},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                wait_ready(url, process)
            except RequestFailed as error:
                said.seek(0)
                last = [line.strip() for line in said.read().splitlines() if line.strip()][-1:]
                raise RequestFailed(" ".join([str(error), *last])) from error
            yield url, process.pid
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(url: str, process: subprocess.Popen | None = None) -> None:
    """Wait until the server's models are loaded. Raises RequestFailed when it ends or fails."""
    until = time.monotonic() + (READY_WITHIN if process else 60)
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise RequestFailed("The server ended before it was ready.")
        with suppress(httpx.HTTPError, ValueError, KeyError):
            status = httpx.get(f"{url}/health", timeout=5).json()["status"]
            if status == "ready":
                return
            if status == "failed":
                raise RequestFailed("The server could not load its models.")
        time.sleep(0.25)
    raise RequestFailed(f"{url} is not ready; start it, or leave --url out.")


def ask(
    client: httpx.Client,
    url: str,
    instruction: str,
    max_new_tokens: int,
    stop: threading.Event,
    leave_after: int = 0,
    session: str = "",
) -> Asked:
    """Ask once over the page's endpoint /generate, in a `session` or one of its own.

    Hangs up after `leave_after` pieces (0: never) or when `stop` is set.
    """
    asked = Asked(time.monotonic())
    body = {
        "data": [instruction, max_new_tokens, *DEFAULTS],
        "session_hash": session or uuid.uuid4().hex,
    }
    try:
        reply = client.post(f"{url}/gradio_api/call/generate", json=body)
        if reply.status_code != 200:
            asked.error = f"status {reply.status_code}"
            return asked
        place = f"{url}/gradio_api/call/generate/{reply.json()['event_id']}"
        with client.stream("GET", place) as stream:
            event = ""
            for line in stream.iter_lines():
                if stop.is_set() or leave_after and len(asked.pieces) >= leave_after:
                    return asked
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    _take(asked, event, json.loads(line[6:]))
                    if event in ("complete", "error"):
                        break
        if asked.left:
            asked.error = "the answer did not end"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        asked.error = f"{type(error).__name__}: {error}"[:200]
    return asked


def _take(asked: Asked, event: str, data: Any) -> None:
    if event == "error":
        asked.error = str(data)[:300]
    elif event == "generating" and data:
        piece = data[0]
        asked.pieces.append((time.monotonic(), piece["tokens"]))
        if piece["done"]:
            asked.text = piece["text"]


def at_once(
    visit: Callable[[int], None], visitors: int, stop: threading.Event, seconds: float
) -> None:
    """Run `visit(number)` of each visitor in a thread, set `stop` after `seconds`, wait for all."""
    with ThreadPoolExecutor(visitors) as pool:
        visits = [pool.submit(visit, number) for number in range(visitors)]
        time.sleep(seconds)
        stop.set()
    for one in visits:
        one.result()


class Crowd:
    """Visitors who each ask one question after the other until told to stop."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int):
        self.url, self.prompts, self.max_new_tokens = url, prompts, max_new_tokens
        self._numbers = itertools.count()

    def level(self, visitors: int, seconds: float) -> tuple[Level, list[str]]:
        """So many visitors for so long, and the messages of all errors.

        Tokens count that arrive within that time. No question is asked twice: a prompt that the
        server has in its prefix cache would cost no prefill.
        """
        stop = threading.Event()
        all_asked: list[Asked] = []

        def visit(_: int) -> None:
            with httpx.Client(timeout=PATIENCE) as client:
                while not stop.is_set():
                    session = uuid.uuid4().hex
                    for _ in range(SESSION):
                        number = next(self._numbers)
                        prompt = f"{self.prompts[number % len(self.prompts)]} ({number})"
                        length = self.max_new_tokens
                        asked = ask(client, self.url, prompt, length, stop, session=session)
                        all_asked.append(asked)
                        if stop.wait(0.5 if asked.error else 0):
                            break

        ended = time.monotonic() + seconds
        at_once(visit, visitors, stop, seconds)
        settle(self.url)
        begun = [one for one in all_asked if one.pieces and one.pieces[0][0] <= ended]
        firsts = [one.pieces[0][0] - one.begun for one in begun]
        errors = [one.error for one in all_asked if one.error]
        tokens = sum(one.tokens_until(ended) for one in all_asked)
        level = Level(
            visitors=visitors,
            tokens_per_s=tokens / seconds,
            ttft_p50_s=_quantile(firsts, 0.5),
            ttft_p95_s=_quantile(firsts, 0.95),
            errors=len(errors),
            requests=len(all_asked),
            seconds=seconds,
        )
        return level, errors

    def compare(self, visitors: int) -> tuple[int, int]:
        """(identical answers, compared answers): questions one by one, then by all at once."""
        prompts = self.prompts[:visitors]
        before = [self._text(prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(self._text, prompts))
        pairs = zip(before, together, strict=True)
        return sum(one == other and bool(one) for one, other in pairs), len(prompts)

    def _text(self, prompt: str) -> str:
        with httpx.Client(timeout=PATIENCE) as client:
            return ask(client, self.url, prompt, self.max_new_tokens, threading.Event()).text


def settle(url: str, within: float = 30.0) -> dict[str, Any]:
    """Wait until the server has no request left; its last /health."""
    until = time.monotonic() + within
    while True:
        told = httpx.get(f"{url}/health", timeout=10).json()
        busy = told["active"] or told["queue"] or told["visitors"]
        if not busy or time.monotonic() > until:
            return told
        time.sleep(0.1)


@contextmanager
def memory_watch(pid: int | None, every: float) -> Iterator[list[Memory]]:
    """The memory of a process every so many seconds, as long as the context is open."""
    begun, stop = time.monotonic(), threading.Event()
    seen: list[Memory] = []

    def watch() -> None:
        while True:
            rss, _ = process_figures(pid)
            seen.append(Memory(round(time.monotonic() - begun, 1), rss))
            if stop.wait(every):
                return

    thread = threading.Thread(target=watch if pid else lambda: None, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def process_figures(pid: int | None) -> tuple[int, int]:
    """(resident bytes, threads) of a process with its children; zeros where there is none."""
    import psutil

    rss = threads = 0
    try:
        whole = psutil.Process(pid)
        for process in [whole, *whole.children(recursive=True)]:
            rss += process.memory_info().rss
            threads += process.num_threads()
    except psutil.Error:
        pass
    return rss, threads


def levels_up_to(visitors: int) -> list[int]:
    """1, 4, 8, 16, 32 as far as `visitors`, and that itself."""
    return sorted({level for level in LEVELS if level <= visitors} | {visitors})


def run_levels(
    url: str,
    pid: int | None,
    prompts: Sequence[str],
    *,
    visitors: int,
    seconds: float,
    max_new_tokens: int,
    on_level: Callable[[Level], None],
) -> LoadReport:
    """The whole load test; calls `on_level` after each level."""
    crowd = Crowd(url, prompts, max_new_tokens)
    levels: list[Level] = []
    errors: list[str] = []
    with memory_watch(pid, every=max(seconds / 3, 1.0)) as memory:
        same, compared = crowd.compare(min(visitors, 8))
        for count in levels_up_to(visitors):
            level, wrong = crowd.level(count, seconds)
            levels.append(level)
            errors += wrong
            on_level(level)
    one = levels[0].tokens_per_s
    eight = next((level.tokens_per_s for level in levels if level.visitors == 8), None)
    return LoadReport(
        levels=tuple(levels),
        one_at_a_time_tokens_per_s=one,
        aggregate_gain=eight / one if eight and one else None,
        identical=same == compared,
        compared=compared,
        max_new_tokens=max_new_tokens,
        memory=tuple(memory),
        errors=tuple(sorted(set(errors)))[:20],
    )


def _quantile(values: list[float], share: float) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
