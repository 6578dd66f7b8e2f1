"""python -m tools.load_test --pair NAME --visitors 32: measures a page under load, over its public
endpoint /generate. The hostile tests ask with it."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import click
import httpx
import numpy as np

from specdemo import cli
from specdemo.bench.prompts import read_prompts, spread
from specdemo.commands import shared
from specdemo.errors import RequestFailed
from specdemo.machine.server_process import started
from specdemo.machine.terminal import show
from specdemo.pairs.registry import choice_of, chosen_pair

LOAD_DEFAULTS = ("auto", "auto", 0, 1, 0, 0, "exact")
"""The other inputs of /generate, from the draft length to the numerics."""


@click.command()
@click.option("--visitors", type=click.IntRange(1, 64), default=16, help="Most at a time.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=30, help="Of each level.")
@click.option("--pair", default="embedded", metavar="PAIR_OR_MODEL", help="What the server loads.")
@click.option("--assistant-model", default="", metavar="DIR_OR_REPO", help="The draft of it.")
@click.option("--max-new-tokens", type=click.IntRange(1, 2000), default=100)
@shared.json_option
def load(
    visitors: int,
    seconds: float,
    pair: str,
    assistant_model: str,
    max_new_tokens: int,
    json_file: str | None,
) -> None:
    choice = replace(choice_of(pair), assistant_model=assistant_model)
    chosen_pair(choice)  # raises for a wrong name
    names = "pair", "model", "assistant_model"
    models = {f"SPECDEMO_{name.upper()}": getattr(choice, name) for name in names}
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    short = itertools.cycle([prompt for prompt in prompts if len(prompt) < 400])
    # Each question ends in its own number, so that none is wholly in the server's prefix cache.
    questions = map("{} ({})".format, short, itertools.count())
    levels: dict[int, dict[str, Any]] = {}
    errors: list[str] = []
    fewer = [number for number in (1, 4, 8, 16, 32) if number < visitors]
    with started("-m", "specdemo", "page", **models, SPECDEMO_LOG="WARNING") as server:
        for number in (*fewer, visitors):
            levels[number], failures = level(server.url, questions, max_new_tokens, number, seconds)
            errors += failures
            show([levels[number]], sys.stderr)
    single = levels[1]["tokens_per_s"]
    gain = levels[8]["tokens_per_s"] / single if 8 in levels and single else None
    figures = {"one_at_a_time_tokens_per_s": single, "aggregate_gain": gain}
    rows = list(levels.values())
    tables = {"Load": rows, "Together": [figures]}
    shared.write_report({"levels": rows, **figures}, json_file, tables)
    if errors:
        raise RequestFailed(f"{len(errors)} questions failed, the first with: {errors[0]}")


def ask(
    client: httpx.Client, url: str, instruction: str, max_new_tokens: int
) -> Generator[dict[str, Any], None, None]:
    """Ask /generate in a session of its own. Yields its pieces. Raises RequestFailed."""
    call = f"{url}/gradio_api/call/generate"
    body = {"data": [instruction, max_new_tokens, *LOAD_DEFAULTS], "session_hash": uuid.uuid4().hex}
    event = ""
    try:
        reply = client.post(call, json=body).raise_for_status()
        with client.stream("GET", f"{call}/{reply.json()['event_id']}") as stream:
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "error":
                    raise RequestFailed(value[:300])
                elif name == "data" and event == "generating" and (data := json.loads(value)):
                    yield data[0]
        if event != "complete":
            raise RequestFailed("The answer did not end.")
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}"[:200]) from error


def level(
    url: str, questions: Iterator[str], max_new_tokens: int, visitors: int, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """Measures the page while `visitors` each ask question after question for `seconds`. Gives the
    figures and the messages of all errors. Only tokens that arrive within `seconds` count."""
    # Visitors share one client: making one takes 30 ms of processor time from the models.
    client = httpx.Client(timeout=120, limits=httpx.Limits(max_connections=None))
    stop = threading.Event()
    tokens: list[int] = []
    firsts: list[float] = []
    errors: list[str] = []

    def visit(_: int) -> None:
        while not stop.is_set():
            begun, had = time.monotonic(), 0
            try:
                with closing(ask(client, url, next(questions), max_new_tokens)) as pieces:
                    for piece in itertools.takewhile(lambda _: not stop.is_set(), pieces):
                        if not had:
                            firsts.append(time.monotonic() - begun)
                        had = piece["tokens"]
            except RequestFailed as error:
                errors.append(str(error))
                stop.wait(0.5)
            tokens.append(had)

    with client, ThreadPoolExecutor(visitors) as pool:
        visits = pool.map(visit, range(visitors))
        time.sleep(seconds)
        stop.set()
        list(visits)  # raises the error of a visitor
    at_rest(url)  # abandoned answers must not spoil the figures of the next level
    median, slow = np.quantile(firsts, (0.5, 0.95)).tolist() if firsts else (None, None)
    figures = {
        "visitors": visitors,
        "tokens_per_s": sum(tokens) / seconds,
        "ttft_p50_s": median,
        "ttft_p95_s": slow,
        "errors": len(errors),
        "requests": len(tokens),
        "seconds": seconds,
    }
    return figures, errors


def at_rest(url: str) -> dict[str, Any]:
    """The figures of /health once no request is active, queued or held, or after 30 s."""
    for _ in range(300):
        health: dict[str, Any] = httpx.get(f"{url}/health", timeout=10).json()
        if not health["active"] + health["queue"] + health["in_flight"]:
            break
        time.sleep(0.1)
    return health


if __name__ == "__main__":
    sys.exit(cli.main(command=load, name="tools.load_test"))
