"""A soak test: visitors who come, ask, hang up and go at random, and what they leave behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from specdemo.serving.load import (
    PATIENCE,
    Asked,
    Memory,
    ask,
    at_once,
    memory_watch,
    process_figures,
    settle,
)

AT_REST_AFTER = 12.0
"""Seconds without visitors before a server counts as at rest: worker threads that were idle for ten
end as soon as the next one is needed."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A server without visitors: its requests, cache blocks in use but not kept for prompts,
    threads and memory."""

    active: int
    queue: int
    blocks_held: int
    threads: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What visitors who join, stop and leave at random left behind: the server at rest `before` and
    `after`. Every request finished, was left or is an error."""

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
        """Whether no request, cache block or thread is left, and memory grew by less than 10 %."""
        before, after = self.before, self.after
        return (
            not (self.errors or after.active or after.queue or after.blocks_held)
            and after.threads <= before.threads + 4
            and after.rss_bytes <= before.rss_bytes * 1.1 + 100_000_000
        )


def soak(
    url: str,
    pid: int | None,
    prompts: Sequence[str],
    *,
    visitors: int,
    minutes: float,
    max_new_tokens: int,
    seed: int = 0,
) -> SoakReport:
    """Visitors who come, ask, sometimes hang up, and go, for so many minutes; then what is left.

    A short crowd comes before the first look, so that what is made once is there already.
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
                    length = chance.randint(1, max_new_tokens)
                    never = threading.Event()
                    done.append(ask(client, url, prompt, length, never, leave_after))
                    if stop.wait(chance.expovariate(2.0)):
                        break
            stop.wait(chance.expovariate(1.0))

    at_once(visit, visitors, stop, min(60.0, 6 * minutes))
    before = at_rest(url, pid)
    stop.clear()
    done.clear()
    begun = time.monotonic()
    with memory_watch(pid, every=max(minutes, 2.0)) as memory:
        at_once(visit, visitors, stop, 60 * minutes)
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
        memory=tuple(memory),
        said=tuple(sorted(set(errors)))[:20],
    )


def at_rest(url: str, pid: int | None) -> Rest:
    """The server some seconds after its last visitor."""
    settle(url)
    time.sleep(AT_REST_AFTER)
    httpx.get(url, timeout=10)  # needs a worker thread: the idle ones end
    told = settle(url)
    rss, threads = process_figures(pid)
    held = sum(cache["used"] - cache["kept"] for cache in told["cache_blocks"].values())
    return Rest(told["active"], told["queue"], held, threads, rss)
