"""`specdemo load`: measures a server of its own under load."""

import itertools
import sys
from typing import Any

import click

from specdemo.bench.load_test import level
from specdemo.commands.shared import json_option, write_report
from specdemo.errors import RequestFailed
from specdemo.host.server_process import started
from specdemo.host.terminal import show


@click.command()
@click.option("--visitors", type=click.IntRange(1, 64), default=16, help="Most at a time.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=30, help="Of each level.")
@click.option("--pair", default="embedded", help="What the server loads.")
@click.option("--max-new-tokens", type=click.IntRange(1, 2000), default=100)
@json_option
def load(
    visitors: int, seconds: float, pair: str, max_new_tokens: int, json_file: str | None
) -> None:
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.pairs.registry import find_pair

    find_pair(pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    short = itertools.cycle([prompt for prompt in prompts if len(prompt) < 400])
    # Each question ends in its own number, so that none is wholly in the server's prefix cache.
    questions = map("{} ({})".format, short, itertools.count())
    levels: dict[int, dict[str, Any]] = {}
    errors: list[str] = []
    command = "-m", "specdemo", "page", "--pair", pair
    fewer = [number for number in (1, 4, 8, 16, 32) if number < visitors]
    with started(*command, SPECDEMO_LOG="WARNING") as server:
        for number in (*fewer, visitors):
            levels[number], failures = level(server.url, questions, max_new_tokens, number, seconds)
            errors += failures
            show(None, [levels[number]], sys.stderr)
    single = levels[1]["tokens_per_s"]
    gain = levels[8]["tokens_per_s"] / single if 8 in levels and single else None
    figures = {"one_at_a_time_tokens_per_s": single, "aggregate_gain": gain}
    rows = list(levels.values())
    write_report({"levels": rows, **figures}, json_file, {"Load": rows, "Together": [figures]})
    if errors:
        raise RequestFailed(f"{len(errors)} questions failed, the first with: {errors[0]}")
