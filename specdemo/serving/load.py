"""Loads a page's server over its public endpoint: levels of visitors, or a soak test.

Measures what visitors get and what they leave behind. Prints nothing.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from typing import Annotated, Any

import httpx
import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.serving.options import key_from_environment
from specdemo.settings import CONFIG, Line, option, real, whole

PATIENCE = 120.0
"""Seconds without a byte after which an answer counts as failed."""

DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The endpoint's further inputs, from the draft length to the numerics."""

AT_REST_AFTER = 12.0
"""Seconds without visitors: worker threads that were idle for ten end when the next is needed."""

ENDED = re.compile(
    r'^specdemo_requests_total\{kind="answer",outcome="(\w+)"\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True, config=CONFIG)
class LoadOptions:
    """What to measure: levels of visitors, or for `minutes` what they leave behind."""

    visitors: whole(1, 64) = option(
        16, "most visitors at a time; levels are 1, 4, 8, 16, 32 up to that"
    )
    seconds: real(1, 600) = option(30.0, "how long each level lasts")
    minutes: Annotated[float, Field(gt=0, le=1440)] | None = option(
        None,
        "instead of levels: visitors who join, stop and leave at random, and what they left",
        name="soak",
        metavar="MINUTES",
    )
    url: str | None = option(None, "a server that is running", unset="one is started")
    pair: Line = option("embedded", "what a started server loads")
    max_new_tokens: whole(1, 2000) = option(100, "length of the answers")


@dataclass
class Asked:
    """One request as its visitor saw it, in monotonic seconds; `pieces` are (when, tokens so far).

    It ended with all of its `text`, with an `error`, or because the visitor `left`."""

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
class LoadReport:
    """`aggregate_gain` is the tokens a second of 8 visitors over those of one; `identical` whether
    every compared answer under load was the one given without load."""

    levels: tuple[Level, ...]
    one_at_a_time_tokens_per_s: float
    aggregate_gain: float | None
    identical: bool
    compared: int
    max_new_tokens: int
    errors: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return self.identical and not any(level.errors for level in self.levels)


@dataclass(frozen=True, slots=True)
class Rest:
    """A server without visitors: its requests, cache blocks in use but not kept for prompts,
    threads and memory, and how many answers have `ended` in which way since it began."""

    active: int
    queue: int
    blocks_held: int
    threads: int
    rss_bytes: int
    ended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SoakReport:
    """The server at rest `before` and `after` visitors who join, stop and leave at random. For its
    visitor every request finished, was left or is an error. The server sees others: an answer may
    be whole there before it notices that its visitor left, and who leaves at once never began."""

    seconds: float
    requests: int
    finished: int
    left: int
    errors: int
    before: Rest
    after: Rest
    said: tuple[str, ...] = ()

    @property
    def counted(self) -> dict[str, int]:
        """Requests by how they ended for the server."""
        before, after = self.before.ended, self.after.ended
        return {name: count - before.get(name, 0) for name, count in after.items()}

    @property
    def adds_up(self) -> bool:
        """Whether each request is in one count of its visitors and in one at most of the server."""
        whole = sum(self.counted.get(name, 0) for name in ("stop", "length", "context"))
        seen = self.finished + self.left + self.errors
        counted = sum(self.counted.values())
        return seen == self.requests >= counted and self.finished <= whole

    @property
    def clean(self) -> bool:
        """Whether no request, cache block or thread is left, memory grew by less than 10 %, and the
        counts add up."""
        before, after = self.before, self.after
        return (
            self.adds_up
            and not (self.errors or after.active or after.queue or after.blocks_held)
            and after.threads <= before.threads + 4
            and after.rss_bytes <= before.rss_bytes * 1.1 + 100_000_000
        )


def ask(
    client: httpx.Client,
    url: str,
    instruction: str,
    max_new_tokens: int,
    stop: threading.Event,
    leave_after: int = 0,
) -> Asked:
    """Ask once over the page's endpoint /generate, in a session of its own. Hangs up after
    `leave_after` pieces (0: never) or when `stop` is set."""
    asked = Asked(time.monotonic())
    call = f"{url}/gradio_api/call/generate"
    values = [instruction, max_new_tokens, *DEFAULTS]
    try:
        body = {"data": values, "session_hash": uuid.uuid4().hex}
        reply = client.post(call, json=body).raise_for_status()
        with client.stream("GET", f"{call}/{reply.json()['event_id']}") as stream:
            event = ""
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
                    if data[0]["done"]:
                        asked.text = data[0]["text"]
        if asked.left:
            asked.error = "the answer did not end"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        asked.error = f"{type(error).__name__}: {error}"[:200]
    return asked


def at_once(visit: Callable[[int, threading.Event], None], visitors: int, seconds: float) -> None:
    """Run `visit(number, stop)` of each visitor in a thread; `stop` is set after `seconds`."""
    stop = threading.Event()
    with ThreadPoolExecutor(visitors) as pool:
        visits = [pool.submit(visit, number, stop) for number in range(visitors)]
        time.sleep(seconds)
        stop.set()
    for one in visits:
        one.result()


class Crowd:
    """Visitors at `url` who each ask one question after the other."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int):
        self.url, self.prompts, self.max_new_tokens = url, prompts, max_new_tokens
        self._numbers = itertools.count()

    def level(self, visitors: int, seconds: float) -> tuple[Level, list[str]]:
        """So many visitors for so long, and the messages of all errors.

        Tokens count that arrive within that time. No question is asked twice: a prompt that the
        server has in its prefix cache would cost no prefill.
        """
        all_asked: list[Asked] = []

        def visit(_: int, stop: threading.Event) -> None:
            with httpx.Client(timeout=PATIENCE) as client:
                while not stop.is_set():
                    number = next(self._numbers)
                    prompt = f"{self.prompts[number % len(self.prompts)]} ({number})"
                    asked = ask(client, self.url, prompt, self.max_new_tokens, stop)
                    all_asked.append(asked)
                    stop.wait(0.5 if asked.error else 0)

        ended = time.monotonic() + seconds
        at_once(visit, visitors, seconds)
        settle(self.url)
        begun = [one for one in all_asked if one.pieces and one.pieces[0][0] <= ended]
        firsts = [one.pieces[0][0] - one.begun for one in begun]
        errors = [one.error for one in all_asked if one.error]
        level = Level(
            visitors=visitors,
            tokens_per_s=sum(one.tokens_until(ended) for one in all_asked) / seconds,
            ttft_p50_s=float(np.quantile(firsts, 0.5)) if firsts else None,
            ttft_p95_s=float(np.quantile(firsts, 0.95)) if firsts else None,
            errors=len(errors),
            requests=len(all_asked),
            seconds=seconds,
        )
        return level, errors

    def compare(self, visitors: int) -> tuple[int, int]:
        """(identical answers, compared answers): questions one by one, then by all at once."""

        def text(prompt: str) -> str:
            with httpx.Client(timeout=PATIENCE) as client:
                return ask(client, self.url, prompt, self.max_new_tokens, threading.Event()).text

        prompts = self.prompts[:visitors]
        before = [text(prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(text, prompts))
        pairs = zip(before, together, strict=True)
        return sum(one == other and bool(one) for one, other in pairs), len(prompts)


def figures(url: str, path: str) -> httpx.Response:
    """A server's /health or /metrics, with the key of the environment where there is one."""
    key = key_from_environment()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{url}/{path}", headers=headers, timeout=10)


def settle(url: str, within: float = 30.0) -> dict[str, Any]:
    """Wait until the server has no request left; its last /health."""
    until = time.monotonic() + within
    while True:
        told = figures(url, "health").json()
        busy = told["active"] or told["queue"] or told["visitors"]
        if not busy or time.monotonic() > until:
            return told
        time.sleep(0.1)


def levels_up_to(visitors: int) -> list[int]:
    """1, 4, 8, 16, 32 as far as `visitors`, and that itself."""
    return sorted({level for level in (1, 4, 8, 16, 32) if level <= visitors} | {visitors})


def run_levels(
    url: str, prompts: Sequence[str], asked: LoadOptions, on_level: Callable[[Level], None]
) -> LoadReport:
    """The load test at growing levels; calls `on_level` after each."""
    crowd = Crowd(url, prompts, asked.max_new_tokens)
    levels: list[Level] = []
    errors: list[str] = []
    same, compared = crowd.compare(min(asked.visitors, 8))
    for count in levels_up_to(asked.visitors):
        level, wrong = crowd.level(count, asked.seconds)
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
        max_new_tokens=asked.max_new_tokens,
        errors=tuple(sorted(set(errors)))[:20],
    )


def soak(url: str, pid: int | None, prompts: Sequence[str], asked: LoadOptions) -> SoakReport:
    """Visitors who come, ask, sometimes hang up, and go, for so many minutes; then what is left.

    A short crowd comes before the first look, so that what is made once is there already.
    """
    done: list[Asked] = []

    def visit(number: int, stop: threading.Event) -> None:
        chance = random.Random(f"0 {number}")
        never = threading.Event()
        while not stop.is_set():
            with httpx.Client(timeout=PATIENCE) as client:
                for _ in range(chance.randint(1, 4)):
                    leave_after = chance.randint(1, 8) if chance.random() < 0.4 else 0
                    prompt = f"{chance.choice(prompts)} ({chance.randint(0, 10**9)})"
                    length = chance.randint(1, asked.max_new_tokens)
                    done.append(ask(client, url, prompt, length, never, leave_after))
                    if stop.wait(chance.expovariate(2.0)):
                        break
            stop.wait(chance.expovariate(1.0))

    at_once(visit, asked.visitors, min(60.0, 6 * asked.minutes))
    before = at_rest(url, pid)
    done.clear()
    begun = time.monotonic()
    at_once(visit, asked.visitors, 60 * asked.minutes)
    seconds = time.monotonic() - begun
    errors = [one.error for one in done if one.error]
    return SoakReport(
        seconds=seconds,
        requests=len(done),
        finished=sum(bool(one.text) for one in done),
        left=sum(one.left for one in done),
        errors=len(errors),
        before=before,
        after=at_rest(url, pid),
        said=tuple(sorted(set(errors)))[:20],
    )


def at_rest(url: str, pid: int | None) -> Rest:
    """The server some seconds after its last visitor; memory and threads of the process `pid` with
    its children, 0 where that is not known."""
    import psutil

    settle(url)
    time.sleep(AT_REST_AFTER)
    httpx.get(url, timeout=10)  # needs a worker thread: the idle ones end
    told = settle(url)
    held = sum(cache["used"] - cache["kept"] for cache in told["cache_blocks"].values())
    rss = threads = 0
    with suppress(psutil.Error):
        whole = psutil.Process(pid)
        for process in [whole, *whole.children(recursive=True)] if pid else []:
            rss += process.memory_info().rss
            threads += process.num_threads()
    found = ENDED.findall(figures(url, "metrics").text)
    ended = {outcome: int(float(count)) for outcome, count in found}
    return Rest(told["active"], told["queue"], held, threads, rss, ended)
