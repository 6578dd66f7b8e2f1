"""`specdemo load`: what visitors of a page get together and what they leave behind, over its public
endpoint, as levels of visitors or as a soak test."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import click
import httpx
import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.cli import json_option, options_of, write_json
from specdemo.errors import RequestFailed
from specdemo.serving.options import key_from_environment
from specdemo.settings import CONFIG, Line, option, real, whole
from specdemo.terminal import say, show, text

ROOT = Path(__file__).resolve().parents[2]

PATIENCE = 120.0  # seconds without a byte after which an answer counts as failed

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""

DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The endpoint's further inputs, from the draft length to the numerics."""

ENDED = re.compile(
    r'^specdemo_requests_total\{kind="answer",outcome="(\w+)"\} (\S+)$', re.MULTILINE
)

AT_REST_AFTER = 12.0
"""Seconds without visitors: worker threads that were idle for ten end when the next is needed."""


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


# Asking


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


def told_by(url: str, path: str) -> httpx.Response:
    """A server's /health or /metrics, with the key of the environment where there is one."""
    key = key_from_environment()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{url}/{path}", headers=headers, timeout=10)


def settle(url: str, within: float = 30.0) -> dict[str, Any]:
    """Wait until the server has no request left; its last /health."""
    until = time.monotonic() + within
    while True:
        told = told_by(url, "health").json()
        busy = told["active"] or told["queue"] or told["visitors"]
        if not busy or time.monotonic() > until:
            return told
        time.sleep(0.1)


# Levels


class Crowd:
    """Visitors at `url` who each ask one question after the other."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int):
        self.url, self.prompts, self.max_new_tokens = url, prompts, max_new_tokens
        self._client = httpx.Client(timeout=PATIENCE)
        self._numbers = itertools.count()

    def level(self, visitors: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
        """What so many visitors got for so long, as the contract of `load` has it, and the messages
        of all errors. Times are in seconds.

        Tokens count that arrive within that time. No question is asked twice: a prompt that the
        server has in its prefix cache would cost no prefill.
        """
        all_asked: list[Asked] = []

        def visit(_: int, stop: threading.Event) -> None:
            while not stop.is_set():
                number = next(self._numbers)
                prompt = f"{self.prompts[number % len(self.prompts)]} ({number})"
                length = self.max_new_tokens
                all_asked.append(ask(self._client, self.url, prompt, length, stop))
                stop.wait(0.5 if all_asked[-1].error else 0)

        ended = time.monotonic() + seconds
        at_once(visit, visitors, seconds)
        settle(self.url)
        begun = [one for one in all_asked if one.pieces and one.pieces[0][0] <= ended]
        firsts = [one.pieces[0][0] - one.begun for one in begun]
        errors = [one.error for one in all_asked if one.error]
        level = {
            "visitors": visitors,
            "tokens_per_s": sum(one.tokens_until(ended) for one in all_asked) / seconds,
            "ttft_p50_s": float(np.quantile(firsts, 0.5)) if firsts else None,
            "ttft_p95_s": float(np.quantile(firsts, 0.95)) if firsts else None,
            "errors": len(errors),
            "requests": len(all_asked),
            "seconds": seconds,
        }
        return level, errors

    def compare(self, visitors: int) -> tuple[int, int]:
        """(identical answers, compared answers): questions one by one, then by all at once."""

        def answer(prompt: str) -> str:
            never = threading.Event()
            return ask(self._client, self.url, prompt, self.max_new_tokens, never).text

        prompts = self.prompts[:visitors]
        before = [answer(prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(answer, prompts))
        pairs = zip(before, together, strict=True)
        return sum(one == other and bool(one) for one, other in pairs), len(prompts)


def levels_up_to(visitors: int) -> list[int]:
    """1, 4, 8, 16, 32 as far as `visitors`, and that itself."""
    return sorted({level for level in (1, 4, 8, 16, 32) if level <= visitors} | {visitors})


def run_levels(
    url: str, prompts: Sequence[str], asked: LoadOptions, on_level: Callable[[dict], None]
) -> dict[str, Any]:
    """The load test at growing levels; calls `on_level` after each. `aggregate_gain` is the tokens
    a second of 8 visitors over those of one; `identical` whether every compared answer under load
    was the one given without load."""
    crowd = Crowd(url, prompts, asked.max_new_tokens)
    levels: dict[int, dict[str, Any]] = {}
    errors: set[str] = set()
    same, compared = crowd.compare(min(asked.visitors, 8))
    for count in levels_up_to(asked.visitors):
        levels[count], wrong = crowd.level(count, asked.seconds)
        errors.update(wrong)
        on_level(levels[count])
    one = levels[1]["tokens_per_s"]
    return {
        "levels": list(levels.values()),
        "one_at_a_time_tokens_per_s": one,
        "aggregate_gain": levels[8]["tokens_per_s"] / one if 8 in levels and one else None,
        "identical": same == compared,
        "compared": compared,
        "max_new_tokens": asked.max_new_tokens,
        "errors": sorted(errors)[:20],
        "clean": same == compared and not errors,
    }


# Soak


def soak(url: str, pid: int | None, prompts: Sequence[str], asked: LoadOptions) -> dict[str, Any]:
    """Visitors who come, ask, sometimes hang up, and go, for so many minutes; then what is left of
    the process `pid`. For its visitor every request finished, was left or is one of the `errors`.
    The server sees others: an answer may be whole there before it notices that its visitor left,
    and who leaves at once never began. The counts add up if neither explains too much.

    A short crowd comes before the first look, so that what is made once is there already.
    """
    done: list[Asked] = []
    client = httpx.Client(timeout=PATIENCE)

    def visit(number: int, stop: threading.Event) -> None:
        chance = random.Random(f"0 {number}")
        never = threading.Event()
        while not stop.is_set():
            leave_after = chance.randint(1, 8) if chance.random() < 0.4 else 0
            prompt = f"{chance.choice(prompts)} ({chance.randint(0, 10**9)})"
            length = chance.randint(1, asked.max_new_tokens)
            done.append(ask(client, url, prompt, length, never, leave_after))
            stop.wait(chance.expovariate(1.0))

    at_once(visit, asked.visitors, min(60.0, 6 * asked.minutes))
    before = at_rest(url, pid)
    done.clear()
    begun = time.monotonic()
    at_once(visit, asked.visitors, 60 * asked.minutes)
    seconds = time.monotonic() - begun
    after = at_rest(url, pid)
    errors = sorted({one.error for one in done if one.error})[:20]
    finished = sum(bool(one.text) for one in done)
    answered, ended = (after[name] - before[name] for name in ("answered", "ended"))
    adds_up = finished <= answered and ended <= len(done)
    return {
        "seconds": seconds,
        "requests": len(done),
        "finished": finished,
        "left": sum(one.left for one in done),
        "before": before,
        "after": after,
        "errors": errors,
        "adds_up": adds_up,
        "clean": adds_up and not errors and nothing_left(before, after),
    }


def at_rest(url: str, pid: int | None) -> dict[str, int]:
    """The server some seconds after its last visitor: requests, cache blocks in use but not kept
    for prompts; requests since it began that were `answered` to their end, and all that `ended`;
    memory and threads of the process `pid` with its children, 0 where that is not known."""
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
    counts = {"active": told["active"], "queue": told["queue"], "blocks_held": held}
    found = dict(ENDED.findall(told_by(url, "metrics").text))
    ended = {how: int(float(count)) for how, count in found.items()}
    answered = sum(ended.get(how, 0) for how in ("stop", "length", "context"))
    counts |= {"answered": answered, "ended": sum(ended.values())}
    return {**counts, "threads": threads, "rss_bytes": rss}


def nothing_left(before: dict[str, int], after: dict[str, int]) -> bool:
    """Whether no request, cache block or thread is left, and memory grew by less than 10 %."""
    return (
        not (after["active"] or after["queue"] or after["blocks_held"])
        and after["threads"] <= before["threads"] + 4
        and after["rss_bytes"] <= before["rss_bytes"] * 1.1 + 100_000_000
    )


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

    def on_level(level: dict) -> None:
        visitors, rate, errors = level["visitors"], text(level["tokens_per_s"]), level["errors"]
        say(f"{visitors} visitors: {rate} tokens/s together, {errors} errors", out)

    with ExitStack() as stack:
        pid, url = None, (asked.url or "").rstrip("/")
        if url:
            wait_ready(url)
        else:
            # Prompts repeat: a table that learns their answers would be measured instead.
            command = "app.py", "--pair", asked.pair, "--no-learn-ngrams"
            server = stack.enter_context(started(*command, SPECDEMO_LOG="WARNING"))
            pid, url = server.process.pid, server.url
        if asked.minutes:
            report = soak(url, pid, prompts, asked)
            rows = [{"": when, **report[when]} for when in ("before", "after")]
            show("at rest", rows, out)
        else:
            report = run_levels(url, prompts, asked, on_level)
            show("visitors at once", report["levels"], out)
    row = {name: value for name, value in report.items() if not isinstance(value, dict | list)}
    show(None, [row], out)
    for sentence in report["errors"]:
        say(f"error: {sentence}", out)
    if json_file:
        write_json(json.dumps(report, indent=2), json_file)
    return 0 if report["clean"] else 1


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
