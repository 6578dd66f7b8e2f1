"""Drills of `specdemo serve` on Ray: kill a replica under load, or let the load scale it.

    python -m tools.drill kill --pair embedded --visitors 6 --seconds 20
    python -m tools.drill scale --pair embedded --visitors 4 --seconds 20

Prints what visitors saw before, during and after; the exit code is 1 when a promise of
docs/guide/serve.md was not kept. Visitors speak the public API only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import httpx

from specdemo.bench.prompts import read_prompts
from specdemo.cli import chosen_pair, json_option, model_options, write_json
from specdemo.serving import server
from specdemo.serving.api import key_from_environment
from specdemo.serving.options import ServeOptions

PATIENCE = 60.0
"""Seconds without a byte after which an answer counts as hung."""


@dataclass
class Asked:
    """One request as its client saw it, in monotonic seconds. `tokens` are known at a good end.

    `ended` is "finished", "refused" (a status other than 200), "interrupted" (an error in the
    stream), "broken" (the connection ended without one) or "hung"; `said` is the error's sentence.
    """

    since: float
    pieces: list[float] = field(default_factory=list)
    tokens: int | None = None
    ended: str = "hung"
    said: str = ""
    until: float = 0.0

    @property
    def first(self) -> float | None:
        """Seconds to the first text."""
        return self.pieces[0] - self.since if self.pieces else None


@dataclass(frozen=True, slots=True)
class Seen:
    """What all visitors together saw in a stretch of time. Seconds, and tokens a second."""

    seconds: float
    tokens_per_s: float
    first_token_p50_s: float | None
    finished: int
    refused: int
    interrupted: int
    broken: int
    hung: int


class Crowd:
    """`visitors` asking at `url` as long as the context is open; `asked` are their requests."""

    def __init__(
        self,
        url: str,
        model: str,
        questions: Sequence[str],
        visitors: int,
        *,
        max_tokens: int,
        key: str | None = None,
    ):
        self.asked: list[Asked] = []
        self._model, self._questions, self._max_tokens = model, questions, max_tokens
        self._visitors = visitors
        self._leaving = asyncio.Event()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(PATIENCE, connect=10, pool=None)
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits
        )
        self._tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(self._visit(number)) for number in range(self._visitors)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()  # everybody reads on to the end of what was begun
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _visit(self, number: int) -> None:
        turn = number
        while not self._leaving.is_set():
            one = Asked(time.monotonic())
            self.asked.append(one)
            await self._ask(self._questions[turn % len(self._questions)], one)
            one.until = time.monotonic()
            turn += self._visitors
            if one.ended in ("refused", "broken"):
                await asyncio.sleep(0.5)

    async def _ask(self, question: str, one: Asked) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    one.ended, one.said = "refused", response.text[:300]
                    return
                async for line in response.aiter_lines():
                    self._read(line, one)
            if one.ended == "hung":
                one.ended = "broken"
        except httpx.TimeoutException:
            one.ended = "hung"
        except httpx.HTTPError as error:
            one.ended, one.said = "broken", type(error).__name__

    @staticmethod
    def _read(line: str, one: Asked) -> None:
        data = line.removeprefix("data: ")
        if data == line:
            return
        if data == "[DONE]":
            one.ended = "finished"
            return
        event = json.loads(data)
        if "error" in event:
            one.ended, one.said = "interrupted", event["error"]["message"]
        elif event.get("usage"):
            one.tokens = event["usage"]["completion_tokens"]
        elif event["choices"] and event["choices"][0]["delta"].get("content"):
            one.pieces.append(time.monotonic())


def seen_between(asked: Sequence[Asked], begin: float, end: float) -> Seen:
    """What was seen from `begin` to `end`: tokens by when they came, requests by when they ended.

    A piece of text counts as the tokens per piece of its answer; if cut off, of the others.
    """
    known = [one for one in asked if one.tokens is not None and one.pieces]
    pieces = sum(len(one.pieces) for one in known)
    usual = sum(one.tokens or 0 for one in known) / pieces if pieces else 1.0
    tokens = 0.0
    for one in asked:
        each = (one.tokens / len(one.pieces)) if one.tokens is not None and one.pieces else usual
        tokens += each * sum(begin <= at < end for at in one.pieces)
    ended = [one for one in asked if begin <= one.until < end]
    firsts = [
        one.first
        for one in asked
        if one.pieces and begin <= one.pieces[0] < end and one.first is not None
    ]
    count = {
        name: sum(one.ended == name for one in ended)
        for name in ("finished", "refused", "interrupted", "broken", "hung")
    }
    return Seen(
        seconds=end - begin,
        tokens_per_s=tokens / (end - begin) if end > begin else 0.0,
        first_token_p50_s=statistics.median(firsts) if firsts else None,
        **count,
    )


LONGEST_WAIT = 150.0
"""Seconds in which a replica must be there again, or be gone."""

ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a drill, and the least and the most replicas that were ready in it."""

    name: str
    replicas: tuple[int, int]
    seen: Seen


@dataclass(frozen=True, slots=True)
class Drilled:
    """What a drill found; `wrong` holds a sentence for each promise that was not kept."""

    drill: str
    visitors: int
    phases: tuple[Phase, ...]
    notes: tuple[str, ...]
    wrong: tuple[str, ...]


class Watch:
    """Asks a service how many replicas are ready, all the time, and remembers when it changed."""

    def __init__(self, url: str):
        self._http = httpx.AsyncClient(base_url=url, timeout=5)
        self.changes: list[tuple[float, int]] = []
        self._task: asyncio.Task | None = None

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._http.aclose()

    async def _look(self) -> None:
        while True:
            try:
                count = (await self._http.get("/health")).json()["replicas"]
            except (httpx.HTTPError, ValueError, KeyError):
                count = 0
            if not self.changes or self.changes[-1][1] != count:
                self.changes.append((time.monotonic(), count))
            await asyncio.sleep(0.3)

    @property
    def now(self) -> int:
        return self.changes[-1][1] if self.changes else 0

    async def until(self, count: int, seconds: float = LONGEST_WAIT) -> bool:
        """Whether there were `count` replicas within so many seconds; waits for it."""
        limit = time.monotonic() + seconds
        while self.now != count and time.monotonic() < limit:
            await asyncio.sleep(0.1)
        return self.now == count

    def between(self, begin: float, end: float) -> tuple[int, int]:
        before = [count for at, count in self.changes if at <= begin][-1:]
        counts = before + [count for at, count in self.changes if begin < at < end]
        return (min(counts), max(counts)) if counts else (0, 0)


@click.command()
@click.argument("drill", type=click.Choice(["kill", "scale"]))
@click.option("--visitors", type=click.IntRange(1), default=4, show_default=True)
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Of each phase.")
@click.option("--cpus-per-replica", type=click.IntRange(1), default=1, show_default=True)
@model_options
@json_option
def main(
    choice: Any,
    drill: str,
    visitors: int,
    seconds: float,
    cpus_per_replica: int,
    json_file: str | None,
) -> None:
    common = {"pair": chosen_pair(choice).name, "cpus_per_replica": cpus_per_replica}
    if drill == "kill":
        options = ServeOptions(**common, replicas=2)
    else:
        options = ServeOptions(
            **common,
            min_replicas=1,
            max_replicas=2,
            target_ongoing=max(visitors / 3, 1),
            upscale_seconds=3.0,
            downscale_seconds=8.0,
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    say(f"Starting {options.least} replicas of {options.pair}.")
    with server.on_ray(options, "127.0.0.1", port) as url:
        found = asyncio.run((kill if drill == "kill" else scale)(url, visitors, seconds, options))
    say("\n".join(report(found)))
    if json_file:
        write_json(json.dumps(dataclasses.asdict(found), indent=1), json_file)
    sys.exit(1 if found.wrong else 0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def kill(url: str, visitors: int, seconds: float, options: ServeOptions) -> Drilled:
    """Load all replicas, kill one, wait until it is back, go on for as long as before."""
    wanted = options.least
    wrong = []
    async with Watch(url) as watch:
        await watch.until(wanted)
        async with await _crowd(url, visitors) as crowd:
            await asyncio.sleep(seconds / 2)  # until everybody is in the middle of something
            begun, spent = time.monotonic(), _processor_seconds()
            await asyncio.sleep(seconds)
            spent = {
                role: total - spent.get(role, 0.0) for role, total in _processor_seconds().items()
            }
            victim, in_flight = await asyncio.to_thread(_busiest)
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            say(f"Killed the replica with process id {victim}, which had {in_flight} requests.")
            if not await watch.until(wanted - 1, 15):
                wrong.append("The loss of the replica was not noticed within 15 s.")
            if not await watch.until(wanted):
                wrong.append(f"The replica was not back after {LONGEST_WAIT:g} s.")
            back = time.monotonic()
            say(f"Back after {back - killed:.1f} s.")
            await asyncio.sleep(seconds)
            end = time.monotonic()
            await asyncio.sleep(1)
    phases = tuple(
        Phase(name, watch.between(*span), seen_between(crowd.asked, *span))
        for name, span in (
            ("before", (begun, killed)),
            ("during", (killed, back)),
            ("after", (back, end)),
        )
    )
    cut = [one for one in crowd.asked if one.ended == "interrupted"]
    lost = [one for one in crowd.asked if one.ended in ("hung", "broken", "refused")]
    moved = await _metric(url, "specdemo_requests_moved_total")
    if len(cut) > in_flight:
        wrong.append(
            f"{len(cut)} answers were cut off, but the killed replica had only {in_flight}."
        )
    if lost:
        wrong.append(
            f"{len(lost)} requests ended without a clear error, as {lost[0].ended}: {lost[0].said}"
        )
    last = max(one.until for one in crowd.asked)
    notes = [
        _shares(spent, phases[0].seen),
        f"{len(cut)} answers that had begun ended with an error in their stream"
        + (f': "{cut[0].said}"' if cut else "."),
        f"{moved:.0f} requests that had not begun went to another replica.",
        f"The last of {len(crowd.asked)} requests ended {last - end:.1f} s after the last phase.",
    ]
    return Drilled("kill", visitors, phases, tuple(filter(None, notes)), tuple(wrong))


async def scale(url: str, visitors: int, seconds: float, options: ServeOptions) -> Drilled:
    """Load one replica until there are two, go on, stop, wait until there is one again."""
    wrong = []
    async with Watch(url) as watch:
        await watch.until(1)
        async with await _crowd(url, visitors) as crowd:
            begun = time.monotonic()
            if not await watch.until(options.most):
                wrong.append(f"The load did not bring a second replica in {LONGEST_WAIT:g} s.")
            grown = time.monotonic()
            say(f"{watch.now} replicas after {grown - begun:.1f} s of load by {visitors} visitors.")
            await asyncio.sleep(seconds)
            end = time.monotonic()
        say("The load is over.")
        if not await watch.until(1):
            wrong.append(f"The second replica was still there {LONGEST_WAIT:g} s after the load.")
        shrunk = time.monotonic()
        say(f"{watch.now} replica {shrunk - end:.1f} s after the load.")
        between = watch.between(end, shrunk)
    phases = (
        Phase("one replica", watch.between(begun, grown), seen_between(crowd.asked, begun, grown)),
        Phase("scaled up", watch.between(grown, end), seen_between(crowd.asked, grown, end)),
        Phase("scaled down", between, seen_between(crowd.asked, end, shrunk)),
    )
    lost = [one for one in crowd.asked if one.ended != "finished"]
    if lost:
        wrong.append(f"{len(lost)} requests did not finish: {lost[0].ended}, {lost[0].said}")
    notes = (f"{len(crowd.asked)} requests, {len(lost)} of them not finished.",)
    return Drilled("scale", visitors, phases, notes, tuple(wrong))


async def _crowd(url: str, visitors: int) -> Crowd:
    key = key_from_environment()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
    questions = [prompt.instruction for prompt in read_prompts()]
    return Crowd(url, model, questions, visitors, max_tokens=ANSWER_TOKENS, key=key)


async def _metric(url: str, name: str) -> float:
    """A sample without labels from /metrics, 0 if there is none."""
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        text = (await http.get("/metrics")).text
    return next(
        (float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0
    )


ROLES = ("Engine", "Gateway", "ProxyActor")
"""Words in the titles of Ray's processes; those without one are Ray's own."""


def _processor_seconds() -> dict[str, float]:
    """Processor seconds so far of the service's processes on this machine, by role."""
    import psutil

    spent: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title, times = " ".join(process.cmdline()), process.cpu_times()
            role = next((role for role in ROLES if f":{role}" in title), "Ray")
            spent[role] = spent.get(role, 0.0) + times.user + times.system
    return spent


def _shares(spent: dict[str, float], seen: Seen) -> str:
    """Who spent the processor time, and what a token costs outside the engines."""
    total, tokens = sum(spent.values()), seen.tokens_per_s * seen.seconds
    if not total or not tokens:
        return ""
    shares = ", ".join(f"{role} {seconds / total:.0%}" for role, seconds in sorted(spent.items()))
    outside = (total - spent.get("Engine", 0.0)) / tokens
    gateway = (spent.get("Gateway", 0.0) + spent.get("ProxyActor", 0.0)) / tokens
    return (
        f"Processor time before: {shares}; outside the engines {outside * 1000:.1f} ms a token, "
        f"{gateway * 1000:.1f} ms of it gateway and proxy."
    )


def _busiest() -> tuple[int, int]:
    """Process id, and requests in flight, of the replica on this machine that has most to do."""
    from ray import serve

    from specdemo.serving import deployment

    handle = serve.get_deployment_handle(deployment.ENGINE, deployment.NAME)
    reports = [
        one
        for one in handle.broadcast("report").results(timeout_s=10, return_exceptions=True)
        if hasattr(one, "pid")
    ]
    here = [one for one in reports if one.node == os.uname().nodename]
    one = max(here, key=lambda report: report.in_flight)
    return one.pid, one.in_flight


def report(found: Drilled) -> list[str]:
    """The figures as lines of a table, then what else is to say."""
    heads = ("seconds", "replicas", "tokens/s", "first token", "finished", "cut off")
    widths = (9, 10, 10, 13, 10, 9)
    pairs = zip(heads, widths, strict=True)
    lines = [" " * 12 + "".join(f"{head:>{width}}" for head, width in pairs)]
    for phase in found.phases:
        seen, (least, most) = phase.seen, phase.replicas
        first = "-" if seen.first_token_p50_s is None else f"{seen.first_token_p50_s:.2f} s"
        replicas = str(least) if least == most else f"{least} to {most}"
        lines.append(
            f"{phase.name:12}{seen.seconds:9.1f}{replicas:>10}{seen.tokens_per_s:10.1f}{first:>13}"
            f"{seen.finished:10}{seen.interrupted:9}"
        )
    return [*lines, *found.notes, *(f"NOT AS PROMISED: {sentence}" for sentence in found.wrong)]


if __name__ == "__main__":
    main()
