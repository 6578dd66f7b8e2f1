"""Drills: a service of two replicas under load, one of which is killed; and one that the load alone scales up and down.

Each prints what visitors saw before, during and after, and fails when something was not as docs/serving.md promises.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from specdemo.serving import cluster
from specdemo.serving.options import ServeOptions
from specdemo.serving.traffic import Crowd, Level, level
from specdemo.serving.web import key_from_environment

LONGEST_WAIT = 150.0
"""Seconds in which a replica must be there again, or be gone."""

ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a drill, and the least and the most replicas that were ready in it."""

    name: str
    replicas: tuple[int, int]
    seen: Level


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


def main(args: argparse.Namespace, options: ServeOptions) -> int:
    """Runs the drill that `args` name; the exit code is 1 when a promise was not kept."""
    from specdemo.cli import write_json

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json == "-" else sys.stdout, flush=True)

    if args.drill == "kill":
        options = options.model_copy(update={"replicas": max(options.replicas or 2, 2), "min_replicas": None,
                                             "max_replicas": None})  # fmt: skip
    else:
        options = options.model_copy(update={
            "replicas": None, "min_replicas": 1, "max_replicas": max(options.max_replicas or 2, 2),
            "target_ongoing": options.target_ongoing or max(args.visitors / 3, 1),
            "upscale_seconds": 3.0, "downscale_seconds": 8.0,
        })  # fmt: skip
    with socket.socket() as probe:
        probe.bind((args.host, 0))
        port = probe.getsockname()[1]
    say(f"Starting {options.least} replicas of {options.pair or options.model}.")
    with cluster.running(options, args.host, port, address=args.address) as url:
        drill = kill if args.drill == "kill" else scale
        found = asyncio.run(drill(url, args.visitors, args.seconds, options, say))
    for line in report(found):
        say(line)
    if args.json:
        write_json(json.dumps(dataclasses.asdict(found), indent=1), args.json)
    return 1 if found.wrong else 0


async def kill(url: str, visitors: int, seconds: float, options: ServeOptions, say: Callable[[str], None]) -> Drilled:
    """Load all replicas, kill one with SIGKILL, wait until it is back, go on for as long as before."""
    wanted = options.least
    wrong = []
    async with Watch(url) as watch:
        await watch.until(wanted)
        async with await _crowd(url, visitors) as crowd:
            await asyncio.sleep(seconds / 2)  # until everybody is in the middle of something
            begun, spent = time.monotonic(), _processor_seconds()
            await asyncio.sleep(seconds)
            spent = {role: total - spent.get(role, 0.0) for role, total in _processor_seconds().items()}
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
        Phase(name, watch.between(*span), level(crowd.asked, *span))
        for name, span in (("before", (begun, killed)), ("during", (killed, back)), ("after", (back, end)))
    )
    cut = [one for one in crowd.asked if one.ended == "interrupted"]
    lost = [one for one in crowd.asked if one.ended in ("hung", "broken", "refused")]
    moved = await _metric(url, "specdemo_requests_moved_total")
    if len(cut) > in_flight:
        wrong.append(f"{len(cut)} answers were cut off, but only {in_flight} were with the replica that was killed.")
    if lost:
        wrong.append(f"{len(lost)} requests ended without a clear error, as {lost[0].ended}: {lost[0].said}")
    notes = [
        _shares(spent, phases[0].seen),
        f"{len(cut)} answers that had begun ended with an error in their stream"
        + (f': "{cut[0].said}"' if cut else "."),
        f"{moved:.0f} requests that had not begun went to another replica.",
        f"The last of {len(crowd.asked)} requests ended {max(one.until for one in crowd.asked) - end:.1f} s after the "
        "last phase; none hung." if not lost else "",
    ]  # fmt: skip
    return Drilled("kill", visitors, phases, tuple(filter(None, notes)), tuple(wrong))


async def scale(url: str, visitors: int, seconds: float, options: ServeOptions, say: Callable[[str], None]) -> Drilled:
    """Load one replica until there are two, go on, stop the load and wait until there is one again."""
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
        Phase("one replica", watch.between(begun, grown), level(crowd.asked, begun, grown)),
        Phase("scaled up", watch.between(grown, end), level(crowd.asked, grown, end)),
        Phase("scaled down", between, level(crowd.asked, end, shrunk)),
    )
    lost = [one for one in crowd.asked if one.ended != "finished"]
    if lost:
        wrong.append(f"{len(lost)} requests did not finish: {lost[0].ended}, {lost[0].said}")
    notes = (f"{len(crowd.asked)} requests, {len(lost)} of them not finished.",)
    return Drilled("scale", visitors, phases, notes, tuple(wrong))


async def _crowd(url: str, visitors: int) -> Crowd:
    from specdemo.bench.prompts import read_prompts

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
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


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


def _shares(spent: dict[str, float], seen: Level) -> str:
    """Who spent the processor time, and what a token costs outside the engines."""
    total, tokens = sum(spent.values()), seen.tokens_per_s * seen.seconds
    if not total or not tokens:
        return ""
    shares = ", ".join(f"{role} {seconds / total:.0%}" for role, seconds in sorted(spent.items()))
    outside = (total - spent.get("Engine", 0.0)) / tokens
    gateway = (spent.get("Gateway", 0.0) + spent.get("ProxyActor", 0.0)) / tokens
    return (f"Processor time before: {shares}; outside the engines {outside * 1000:.1f} ms a token, {gateway * 1000:.1f} ms "
            "of it gateway and proxy.")  # fmt: skip


def _busiest() -> tuple[int, int]:
    """Process id, and requests in flight, of the replica on this machine that has most to do."""
    from ray import serve

    from specdemo.serving import deployment

    handle = serve.get_deployment_handle(deployment.ENGINE, deployment.NAME)
    reports = [
        one for one in handle.broadcast("report").results(timeout_s=10, return_exceptions=True) if hasattr(one, "pid")
    ]
    here = [one for one in reports if one.node == os.uname().nodename]
    one = max(here, key=lambda report: report.in_flight)
    return one.pid, one.in_flight


def report(found: Drilled) -> list[str]:
    """The figures as lines of a table, then what else is to say."""
    lines = [f"{'':12}{'seconds':>9}{'replicas':>10}{'tokens/s':>10}{'first token':>13}{'finished':>10}{'cut off':>9}"]
    for phase in found.phases:
        seen, (least, most) = phase.seen, phase.replicas
        first = "-" if seen.first_token_p50_s is None else f"{seen.first_token_p50_s:.2f} s"
        replicas = str(least) if least == most else f"{least} to {most}"
        lines.append(f"{phase.name:12}{seen.seconds:9.1f}{replicas:>10}{seen.tokens_per_s:10.1f}{first:>13}"
                     f"{seen.finished:10}{seen.interrupted:9}")  # fmt: skip
    return [*lines, *found.notes, *(f"NOT AS PROMISED: {sentence}" for sentence in found.wrong)]
