"""`specdemo load`: what visitors of a server get together, and what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specdemo.cli import Command, FiniteRange, json_option, write_json
from specdemo.errors import RequestFailed

if TYPE_CHECKING:
    from specdemo.serving.load import Level, LoadReport, SoakReport

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""


@click.command(cls=Command)
@click.option(
    "--visitors",
    type=click.IntRange(1, 64),
    default=16,
    help="Most visitors at a time; levels are 1, 4, 8, 16, 32 up to that.",
)
@click.option(
    "--seconds", type=FiniteRange(1, 600), default=30.0, help="How long each level lasts."
)
@click.option(
    "--soak",
    "minutes",
    type=FiniteRange(0, 1440, min_open=True),
    metavar="MINUTES",
    help="Instead of levels: visitors who join, stop and leave at random, and what they left.",
)
@click.option("--url", help="A server that is running.  [default: one is started]")
@click.option("--pair", default="embedded", metavar="NAME", help="What a started server loads.")
@click.option(
    "--max-new-tokens", type=click.IntRange(1, 2000), default=100, help="Length of the answers."
)
@json_option
def load(
    visitors: int,
    seconds: float,
    minutes: float | None,
    url: str | None,
    pair: str,
    max_new_tokens: int,
    json_file: str | None,
) -> int:
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.models.registry import find_pair
    from specdemo.serving import load

    find_pair(pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    prompts = [prompt for prompt in prompts if len(prompt) < 400]
    stream = sys.stderr if json_file == "-" else sys.stdout
    common: dict[str, Any] = {"visitors": visitors, "max_new_tokens": max_new_tokens}
    if url:
        url = url.rstrip("/")
        wait_ready(url)
    with nullcontext((url, None)) if url else server(pair) as (address, pid):
        if minutes:
            report = load.soak(address, pid, prompts, minutes=minutes, **common)
        else:
            report = load.run_levels(
                address,
                prompts,
                seconds=seconds,
                on_level=lambda level: print(_level_line(level), file=stream, flush=True),
                **common,
            )
    print("\n".join(_soak_lines(report) if minutes else _load_lines(report)), file=stream)
    if json_file:
        figures = dataclasses.asdict(report) | ({"clean": report.clean} if minutes else {})
        write_json(json.dumps(figures, indent=2), json_file)
    return 0 if report.clean else 1


@contextmanager
def server(pair: str) -> Iterator[tuple[str, int]]:
    """The page's server in a process of its own on 127.0.0.1: its URL and process id, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "app.py", "--host", "127.0.0.1", "--port", port, "--pair", pair]
    where = {
        "cwd": Path(__file__).resolve().parents[2],
        "env": {**os.environ, "PYTHONUNBUFFERED": "1", "SPECDEMO_LOG": "WARNING"},
    }
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, **where) as process,
    ):
        try:
            wait_ready(url, process)
            yield url, process.pid
        except RequestFailed as error:
            said.seek(0)
            last = said.read().strip().splitlines()[-1:]
            raise RequestFailed(" ".join([str(error), *last])) from error
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def wait_ready(url: str, process: subprocess.Popen | None = None) -> None:
    """Wait until the server's models are loaded. Raises RequestFailed when it ends or fails."""
    import httpx

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


def _level_line(level: Level) -> str:
    median, late = (
        "-" if value is None else f"{value:.2f} s" for value in (level.ttft_p50_s, level.ttft_p95_s)
    )
    return (
        f"{level.visitors:3d} visitors: {level.tokens_per_s:6.1f} tokens/s together; first token "
        f"{median} median, {late} 95th percentile; {level.requests} requests, {level.errors} errors"
    )


def _load_lines(report: LoadReport) -> list[str]:
    lines = []
    if report.aggregate_gain is not None:
        lines.append(
            f"8 visitors together: {report.aggregate_gain:.2f} times the tokens a second of one"
        )
    words = "are those given without load" if report.identical else "are NOT all the same"
    lines.append(f"{report.compared} answers under load {words}")
    return lines + [f"error: {said}" for said in report.errors]


def _soak_lines(report: SoakReport) -> list[str]:
    before, after = report.before, report.after
    return [
        f"{report.requests} requests in {report.seconds:.0f} s: {report.finished} finished, "
        f"{report.left} hung up, {report.errors} errors",
        f"left behind: {after.active + after.queue} requests, {after.blocks_held} cache blocks; "
        f"threads {before.threads} before, {after.threads} after; memory "
        f"{before.rss_bytes / 1e6:.0f} MB before, {after.rss_bytes / 1e6:.0f} MB after",
        *(f"error: {said}" for said in report.said),
        "clean" if report.clean else "NOT clean",
    ]
