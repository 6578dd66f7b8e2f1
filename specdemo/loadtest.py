"""Visitors for a page's server, over its public HTTP endpoint: they ask, read the streamed answer,
and ask again.

Measures what visitors see. Starts a server of its own on 127.0.0.1 where it is given none. Prints
nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

LEVELS = (1, 4, 8, 16, 32)
PATIENCE = 120.0
"""Seconds without a byte after which an answer counts as failed."""

SESSION = 16
"""Questions that a visitor asks in one session before opening the page anew."""

_DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The endpoint's further inputs: draft tokens, drafter, temperature, top-p, top-k, seed, numerics.
"""

AT_REST_AFTER = 12.0
"""Seconds without visitors after which a server is looked at: worker threads that were idle for ten
end as soon as the next one is needed."""

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""


class LoadError(RuntimeError):
    """The load test cannot be run; the message is one sentence."""


@dataclass
class Asked:
    """One request as its visitor saw it. Times are monotonic seconds; `pieces` are (when, tokens so
    far)."""

    begun: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    error: str = ""
    left: bool = False

    @property
    def first(self) -> float | None:
        return self.pieces[0][0] - self.begun if self.pieces else None


@dataclass(frozen=True, slots=True)
class Level:
    """What `visitors` at a time got: tokens of all of them a second, and seconds to the first
    token."""

    visitors: int
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    errors: int
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the server, with its children, at a time since the test began."""

    seconds: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`aggregate_gain` is what 8 visitors got together over what one got, both in tokens a second;
    `identical` whether each answer under load was the one given alone."""

    levels: tuple[Level, ...]
    one_at_a_time_tokens_per_s: float
    aggregate_gain: float | None
    identical: bool
    compared: int
    max_new_tokens: int
    memory: tuple[Memory, ...]
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rest:
    """A server in which nobody asks anything: requests in it, cache blocks in use and kept for
    prompts, threads, memory."""

    active: int
    queue: int
    blocks_held: int
    threads: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What hours of visitors who join, stop and leave at random did to a server: `before` and
    `after`, at rest."""

    seconds: float
    requests: int
    finished: int
    left: int
    errors: int
    before: Rest
    after: Rest
    memory: tuple[Memory, ...]
    said: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was left behind: no request, no cache block, no thread, and memory within
        10 %."""
        before, after = self.before, self.after
        return (
            not self.errors
            and not after.active
            and not after.queue
            and not after.blocks_held
            and after.threads <= before.threads + 4
            and after.rss_bytes <= before.rss_bytes * 1.1 + 100_000_000
        )


@contextmanager
def server(pair: str, *, options: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """The page's server in a process of its own on 127.0.0.1, its address and process id; ready
    when entered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "app.py", "--host", "127.0.0.1", "--port", str(port), "--pair", pair, *options],
            cwd=root, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "SPECDEMO_LOG": "WARNING"})  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                wait_ready(url, process)
            except LoadError as error:
                said.seek(0)
                last = [line.strip() for line in said.read().splitlines() if line.strip()][-1:]
                raise LoadError(f"{error} {last[0] if last else ''}".strip()) from error
            yield url, process.pid
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(url: str, process: subprocess.Popen | None = None) -> None:
    """Until the server's models are loaded. Raises LoadError when it ends, fails, or is not a
    server of ours."""
    until = time.monotonic() + (READY_WITHIN if process else 60)
    status = "no answer"
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise LoadError("The server ended before it was ready.")
        try:
            told = httpx.get(f"{url}/health", timeout=5).json()
            status = told["status"]
            if status == "ready":
                return
            if status == "failed":
                raise LoadError("The server could not load its models.")
        except (httpx.HTTPError, ValueError, KeyError):
            pass
        time.sleep(0.25)
    raise LoadError(f"{url} is not ready ({status}); start it, or leave --url out.")


def ask(
    client: httpx.Client,
    url: str,
    instruction: str,
    max_new_tokens: int,
    stop: threading.Event,
    leave_after: int = 0,
    session: str = "",
) -> Asked:
    """Ask once over the page's endpoint /generate, in a `session` or one of its own. Hangs up,
    without a word, after `leave_after` pieces (0: never) or when `stop` is set."""
    asked = Asked(time.monotonic())
    try:
        body = {"data": [instruction, max_new_tokens, *_DEFAULTS], "session_hash": session or uuid.uuid4().hex}
        reply = client.post(f"{url}/gradio_api/call/generate", json=body)
        if reply.status_code != 200:
            asked.error = f"status {reply.status_code}"
            return asked
        with client.stream("GET", f"{url}/gradio_api/call/generate/{reply.json()['event_id']}") as stream:
            event = ""
            for line in stream.iter_lines():
                if stop.is_set() or leave_after and len(asked.pieces) >= leave_after:
                    asked.left = True
                    return asked
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    _take(asked, event, json.loads(line[6:]))
                    if event in ("complete", "error"):
                        break
        if not asked.error and not asked.text:
            asked.error = "the answer did not end"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        asked.error = f"{type(error).__name__}: {error}"[:200]
    return asked


def _take(asked: Asked, event: str, data) -> None:
    if event == "error":
        asked.error = str(data)[:300]
    elif event == "generating" and data:
        piece = data[0]
        asked.pieces.append((time.monotonic(), piece["tokens"]))
        if piece["done"]:
            asked.text = piece["text"]


class Crowd:
    """Visitors who each ask one question after the other, in threads, until told to stop."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int):
        self.url, self.prompts, self.max_new_tokens = url, prompts, max_new_tokens
        self._asked = 0
        self._lock = threading.Lock()

    def _next(self) -> str:
        """A question that nobody asked before: a prompt that the server remembers would cost it no
        prefill."""
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
        return f"{self.prompts[number % len(self.prompts)]} ({number})"

    def level(self, visitors: int, seconds: float) -> tuple[Level, list[str]]:
        """So many visitors for so long; tokens count when they arrive within that time. Also what
        errors said."""
        stop = threading.Event()
        all_asked: list[Asked] = []

        def visit() -> None:
            with httpx.Client(timeout=PATIENCE) as client:
                for number in itertools.count():
                    if stop.is_set():
                        break
                    if number % SESSION == 0:
                        session = uuid.uuid4().hex
                    asked = ask(client, self.url, self._next(), self.max_new_tokens, stop, session=session)
                    all_asked.append(asked)
                    if asked.error:
                        stop.wait(0.5)

        threads = [threading.Thread(target=visit, daemon=True) for _ in range(visitors)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        ended = time.monotonic()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        settle(self.url)
        firsts = [one.first for one in all_asked if one.first is not None and one.begun + one.first <= ended]
        errors = [one.error for one in all_asked if one.error]
        tokens = sum(_tokens_until(one, ended) for one in all_asked)
        return Level(
            visitors, tokens / (ended - begun), _quantile(firsts, 0.5), _quantile(firsts, 0.95), len(errors),
            len(all_asked), ended - begun), errors  # fmt: skip

    def compare(self, visitors: int) -> tuple[int, int]:
        """(answers that were the same, answers compared): questions asked one by one, then by all
        at once."""
        prompts = self.prompts[:visitors]
        alone = [self._text(prompt) for prompt in prompts]
        together: list[str | None] = [None] * len(prompts)

        def visit(at: int) -> None:
            together[at] = self._text(prompts[at])

        threads = [threading.Thread(target=visit, args=(at,), daemon=True) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        same = sum(one == other and bool(one) for one, other in zip(alone, together, strict=True))
        return same, len(prompts)

    def _text(self, prompt: str) -> str:
        with httpx.Client(timeout=PATIENCE) as client:
            return ask(client, self.url, prompt, self.max_new_tokens, threading.Event()).text


def settle(url: str, within: float = 30.0) -> dict:
    """Wait until the server has no request left; gives what /health said last."""
    until = time.monotonic() + within
    told: dict = {}
    while time.monotonic() < until:
        told = httpx.get(f"{url}/health", timeout=10).json()
        if not told["active"] and not told["queue"] and not told["visitors"]:
            break
        time.sleep(0.1)
    return told


class MemoryWatch:
    """Notes a process's memory at intervals, in a thread of its own. Without a process id, nothing.
    """

    def __init__(self, pid: int | None, every: float):
        self._pid, self._every = pid, every
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self.seen: list[Memory] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if self._pid is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._pid is not None:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            rss, _ = process_figures(self._pid)
            self.seen.append(Memory(round(time.monotonic() - self._begun, 1), rss))
            if self._stop.wait(self._every):
                return


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
    url: str, pid: int | None, prompts: Sequence[str], *, visitors: int, seconds: float, max_new_tokens: int, said=None
) -> LoadReport:
    """The whole load test; `said` is told each level when it is done."""
    crowd = Crowd(url, prompts, max_new_tokens)
    memory = MemoryWatch(pid, every=max(seconds / 3, 1.0))
    levels: list[Level] = []
    errors: list[str] = []
    with memory:
        same, compared = crowd.compare(min(visitors, 8))
        for count in levels_up_to(visitors):
            level, wrong = crowd.level(count, seconds)
            levels.append(level)
            errors += wrong
            if said is not None:
                said(level)
    one = levels[0].tokens_per_s
    eight = next((level.tokens_per_s for level in levels if level.visitors == 8), None)
    return LoadReport(
        tuple(levels), one, eight / one if eight and one else None, same == compared, compared, max_new_tokens,
        tuple(memory.seen), tuple(sorted(set(errors)))[:20])  # fmt: skip


def soak(
    url: str, pid: int | None, prompts: Sequence[str], *, visitors: int, minutes: float, max_new_tokens: int, seed: int = 0
) -> SoakReport:
    """Visitors who come, ask, sometimes hang up in the middle, and go, for so many minutes; then a
    look at what is left.

    The server is asked a few questions before the first look, so that what is made once is there
    already.
    """
    stop = threading.Event()
    done: list[Asked] = []

    def visit(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        while not stop.is_set():
            with httpx.Client(timeout=PATIENCE) as client:
                for _ in range(chance.randint(1, 4)):
                    leave_after = chance.randint(1, 8) if chance.random() < 0.4 else 0
                    prompt = f"{chance.choice(prompts)} ({chance.randint(0, 10**9)})"
                    done.append(
                        ask(client, url, prompt, chance.randint(1, max_new_tokens), threading.Event(), leave_after)
                    )
                    if stop.wait(chance.expovariate(2.0)):
                        break
            stop.wait(chance.expovariate(1.0))

    def crowd(seconds: float) -> None:
        threads = [threading.Thread(target=visit, args=(at,), daemon=True) for at in range(visitors)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)

    crowd(min(60.0, 6 * minutes))
    before = at_rest(url, pid)
    stop.clear()
    done.clear()
    begun = time.monotonic()
    with MemoryWatch(pid, every=max(minutes * 60 / 60, 2.0)) as memory:
        crowd(minutes * 60)
    seconds = time.monotonic() - begun
    after = at_rest(url, pid)
    errors = [one.error for one in done if one.error]
    return SoakReport(
        seconds, len(done), sum(bool(one.text) for one in done), sum(one.left for one in done), len(errors), before,
        after, tuple(memory.seen), tuple(sorted(set(errors)))[:20])  # fmt: skip


def at_rest(url: str, pid: int | None) -> Rest:
    """The server some seconds after its last visitor."""
    settle(url)
    time.sleep(AT_REST_AFTER)
    httpx.get(url, timeout=10)  # needs a worker thread: the others are let go
    told = settle(url)
    rss, threads = process_figures(pid)
    held = sum(cache["used"] - cache["kept"] for cache in told["cache_blocks"].values())
    return Rest(told["active"], told["queue"], held, threads, rss)


def _tokens_until(asked: Asked, ended: float) -> int:
    return max((tokens for when, tokens in asked.pieces if when <= ended), default=0)


def _quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
