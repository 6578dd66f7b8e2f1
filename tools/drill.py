"""Drills of `specdemo serve` on Ray: kill a replica under load, or let the load scale it.

    python -m tools.drill kill --pair embedded --visitors 6 --seconds 20
    python -m tools.drill scale --pair embedded --visitors 4 --seconds 20

Prints what visitors saw before, during and after; the exit code is 1 when a promise of
docs/guide/serve.md was not kept. Visitors use the public API, with `RemoteSession`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import click
import httpx

from specdemo.bench.prompts import read_prompts
from specdemo.cli import chosen_pair, json_option, model_options, write_json
from specdemo.engine.rounds import Round
from specdemo.errors import Busy, RequestFailed
from specdemo.serving import server
from specdemo.serving.client import RemoteSession
from specdemo.serving.options import ServeOptions
from specdemo.settings import Settings

LONGEST_WAIT = 150.0
"""Seconds in which a replica must be there again, or be gone."""

ANSWER_TOKENS = 48

ROLES = ("Engine", "Gateway", "ProxyActor")
"""Words in the titles of Ray's processes; those without one are Ray's own."""


@dataclass
class Asked:
    """One request as its client saw it, in monotonic seconds; `pieces` are (when, tokens).

    `ended` is "finished", "cut off" (by an error in the stream), "refused" or "lost" (without a
    clear error); `said` is the error's sentence.
    """

    since: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    ended: str = "lost"
    said: str = ""
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What all visitors saw in a stretch of a drill, with the least and the most replicas that were
    ready in it. Seconds, and tokens a second."""

    name: str
    replicas: tuple[int, int]
    seconds: float
    tokens_per_s: float
    first_token_p50_s: float | None
    finished: int
    cut_off: int


class Drill:
    """A service at `url`, the requests of its visitors, and what was found.

    `replicas` are (when, how many were ready), one for each change; `wrong` holds a sentence for
    each promise that was not kept.
    """

    def __init__(self, url: str):
        self.url = url
        self.asked: list[Asked] = []
        self.replicas = [(time.monotonic(), 0)]
        self.phases: list[Phase] = []
        self.notes: list[str] = []
        self.wrong: list[str] = []

    def watch(self) -> None:
        """Notes how many replicas are ready, for ever."""
        while True:
            try:
                count = httpx.get(f"{self.url}/health").json()["replicas"]
            except (httpx.HTTPError, ValueError, KeyError):
                count = 0
            if self.replicas[-1][1] != count:
                self.replicas.append((time.monotonic(), count))
            time.sleep(0.3)

    def wait_for(self, count: int, otherwise: str, seconds: float = LONGEST_WAIT) -> float:
        """Wait until there are `count` replicas; the time then. After so many seconds it goes on,
        and `otherwise` is wrong."""
        limit = time.monotonic() + seconds
        while self.replicas[-1][1] != count:
            if time.monotonic() > limit:
                self.wrong.append(f"{otherwise} within {seconds:g} s.")
                break
            time.sleep(0.1)
        return time.monotonic()

    @contextlib.contextmanager
    def visitors(self, count: int) -> Iterator[None]:
        """Visitors who ask one question after the other, and read the last answers to their end."""
        questions = [prompt.instruction for prompt in read_prompts()]
        leaving = threading.Event()

        def visit(number: int) -> None:
            with RemoteSession(self.url) as session:
                for turn in itertools.count(number, count):
                    if leaving.is_set():
                        return
                    one = Asked(time.monotonic())
                    self.asked.append(one)
                    self._ask(session, questions[turn % len(questions)], one)
                    one.until = time.monotonic()
                    if one.ended in ("refused", "lost"):
                        time.sleep(0.5)

        with ThreadPoolExecutor(count) as pool:
            visits = [pool.submit(visit, number) for number in range(count)]
            try:
                yield
            finally:
                leaving.set()
        for done in visits:
            done.result()

    def _ask(self, session: RemoteSession, question: str, one: Asked) -> None:
        try:
            for event in session.answer(question, Settings(max_new_tokens=ANSWER_TOKENS)):
                if isinstance(event, Round):
                    one.pieces.append((time.monotonic(), len(event.tokens)))
            one.ended = "finished"
        except Busy as error:
            one.ended, one.said = "refused", str(error)
        except RequestFailed as error:
            one.said = str(error)
            # A sentence of the client, not of the server, has the address in it.
            one.ended = "lost" if self.url in one.said else "cut off"

    def phase(self, name: str, begin: float, end: float) -> Phase:
        """What was seen from `begin` to `end`: tokens by when they came, requests by when they
        ended."""
        tokens = sum(count for one in self.asked for at, count in one.pieces if begin <= at < end)
        begun = [one for one in self.asked if one.pieces and begin <= one.pieces[0][0] < end]
        firsts = [one.pieces[0][0] - one.since for one in begun]
        ended = [one.ended for one in self.asked if begin <= one.until < end]
        counts = [count for at, count in self.replicas if at <= begin][-1:]
        counts += [count for at, count in self.replicas if begin < at < end]
        found = Phase(
            name=name,
            replicas=(min(counts, default=0), max(counts, default=0)),
            seconds=end - begin,
            tokens_per_s=tokens / (end - begin),
            first_token_p50_s=statistics.median(firsts) if firsts else None,
            finished=ended.count("finished"),
            cut_off=ended.count("cut off"),
        )
        self.phases.append(found)
        return found

    def report(self) -> list[str]:
        """The figures as lines of a table, then what else is to say."""
        lines = ["phase         seconds  replicas  tokens/s  first token  finished  cut off"]
        for one in self.phases:
            least, most = one.replicas
            first = "-" if one.first_token_p50_s is None else f"{one.first_token_p50_s:.2f} s"
            replicas = str(least) if least == most else f"{least} to {most}"
            lines.append(
                f"{one.name:12}{one.seconds:9.1f}{replicas:>10}{one.tokens_per_s:10.1f}{first:>13}"
                f"{one.finished:10}{one.cut_off:9}"
            )
        return [*lines, *self.notes, *(f"NOT AS PROMISED: {sentence}" for sentence in self.wrong)]


@click.command()
@click.argument("drill", type=click.Choice(["kill", "scale"]))
@click.option("--visitors", type=click.IntRange(1), default=4, show_default=True)
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Of each phase.")
@model_options
@json_option
def main(choice: Any, drill: str, visitors: int, seconds: float, json_file: str | None) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing": max(visitors / 3, 1),
        "upscale_seconds": 3.0,
        "downscale_seconds": 8.0,
    }
    replicas = {"replicas": 2} if drill == "kill" else scaling
    options = ServeOptions(pair=chosen_pair(choice).name, cpus_per_replica=1, **replicas)
    with server.bound_socket("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    say(f"Starting {options.least} replicas of {options.pair}.")
    with server.on_ray(options, "127.0.0.1", port) as url:
        found = Drill(url)
        threading.Thread(target=found.watch, daemon=True).start()
        (kill if drill == "kill" else scale)(found, visitors, seconds)
    say("\n".join(found.report()))
    if json_file:
        phases = [dataclasses.asdict(phase) for phase in found.phases]
        figures = {"drill": drill, "visitors": visitors, "phases": phases}
        write_json(json.dumps(figures | {"notes": found.notes, "wrong": found.wrong}), json_file)
    sys.exit(1 if found.wrong else 0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def kill(drill: Drill, visitors: int, seconds: float) -> None:
    """Load both replicas, kill one, wait until it is back, go on for as long as before."""
    drill.wait_for(2, "There were not two replicas")
    with drill.visitors(visitors):
        time.sleep(seconds / 2)  # until everybody is in the middle of something
        begun, spent = time.monotonic(), _processor_seconds()
        time.sleep(seconds)
        spent = {role: now - spent.get(role, 0.0) for role, now in _processor_seconds().items()}
        victim, in_flight = _busiest()
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        say(f"Killed the replica with process id {victim}, which had {in_flight} requests.")
        drill.wait_for(1, "The loss of the replica was not noticed", 15)
        back = drill.wait_for(2, "The replica was not back")
        say(f"Back after {back - killed:.1f} s.")
        time.sleep(seconds)
        end = time.monotonic()
        time.sleep(1)
    before = drill.phase("before", begun, killed)
    drill.phase("during", killed, back)
    drill.phase("after", back, end)
    cut = [one for one in drill.asked if one.ended == "cut off"]
    lost = [one for one in drill.asked if one.ended in ("lost", "refused")]
    if len(cut) > in_flight:
        drill.wrong.append(f"{len(cut)} answers were cut off; the replica had only {in_flight}.")
    if lost:
        drill.wrong.append(f"{len(lost)} requests were {lost[0].ended}: {lost[0].said}")
    metrics = httpx.get(f"{drill.url}/metrics").text
    [moved] = re.findall(r"^specdemo_requests_moved_total (\S+)", metrics, re.MULTILINE)
    said = f': "{cut[0].said}"' if cut else "."
    last = max(one.until for one in drill.asked)
    drill.notes += [
        _shares(spent, before.tokens_per_s * before.seconds),
        f"{len(cut)} answers that had begun ended with an error in their stream{said}",
        f"{float(moved):.0f} requests that had not begun went to another replica.",
        f"The last of {len(drill.asked)} requests ended {last - end:.1f} s after the last phase.",
    ]


def scale(drill: Drill, visitors: int, seconds: float) -> None:
    """Load one replica until there are two, go on, stop, wait until there is one again."""
    drill.wait_for(1, "There was not one replica")
    with drill.visitors(visitors):
        begun = time.monotonic()
        grown = drill.wait_for(2, "The load did not bring a second replica")
        say(f"Two replicas after {grown - begun:.1f} s of load by {visitors} visitors.")
        time.sleep(seconds)
        end = time.monotonic()
    shrunk = drill.wait_for(1, "The second replica was not stopped")
    say(f"One replica {shrunk - end:.1f} s after the load.")
    drill.phase("one replica", begun, grown)
    drill.phase("scaled up", grown, end)
    drill.phase("scaled down", end, shrunk)
    lost = [one for one in drill.asked if one.ended != "finished"]
    if lost:
        drill.wrong.append(f"{len(lost)} requests were {lost[0].ended}: {lost[0].said}")
    drill.notes.append(f"{len(drill.asked)} requests, {len(lost)} of them not finished.")


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


def _shares(spent: dict[str, float], tokens: float) -> str:
    """Where the processor time went, and what a token costs outside the engines."""
    total = sum(spent.values())
    if not total or not tokens:
        return "No processor time was measured."
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
    told = handle.broadcast("report").results(timeout_s=10, return_exceptions=True)
    reports = [one for one in told if getattr(one, "node", None) == os.uname().nodename]
    busiest = max(reports, key=lambda report: report.in_flight)
    return busiest.pid, busiest.in_flight


if __name__ == "__main__":
    main()
