"""`specdemo load`: what visitors of a server get together, and what they leave behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

import click

from specdemo.cli import json_option, options_of, write_json
from specdemo.errors import RequestFailed
from specdemo.serving.load import Level, LoadOptions, run_levels, soak
from specdemo.terminal import say, show, text

READY_WITHIN = 1800.0
"""Seconds that a server may take to load its models; the first start downloads them."""


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

    def on_level(level: Level) -> None:
        rate = text(level.tokens_per_s)
        say(f"{level.visitors} visitors: {rate} tokens/s together, {level.errors} errors", out)

    if url := (asked.url or "").rstrip("/"):
        wait_ready(url)
    with nullcontext((url, None)) if url else server(asked.pair) as (address, pid):
        if asked.minutes:
            report = soak(address, pid, prompts, asked)
        else:
            report = run_levels(address, prompts, asked, on_level)
    figures = asdict(report)
    if asked.minutes:
        figures |= {"adds_up": report.adds_up, "clean": report.clean}
        rests = {when: figures[when] for when in ("before", "after")}
        rows = [
            {"server": when, **rest, "ended": sum(rest["ended"].values())}
            for when, rest in rests.items()
        ]
        show("at rest", rows, out)
    else:
        show("visitors at once", figures["levels"], out)
    rows = {name: value for name, value in figures.items() if not isinstance(value, dict | tuple)}
    show(None, [rows], out)
    for sentence in report.said if asked.minutes else report.errors:
        say(f"error: {sentence}", out)
    if json_file:
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
            told = httpx.get(f"{url}/health", timeout=5).json()
            status = told["status"]
            if status == "ready" and not told.get("preparing"):
                return
            if status == "failed":
                raise RequestFailed("The server could not load its models.")
        time.sleep(0.25)
    raise RequestFailed(f"{url} is not ready; start it, or leave --url out.")
