"""`specdemo load`: what visitors of a server get together, and what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from specdemo.cli import Command, FiniteRange, json_option, write_json

if TYPE_CHECKING:
    from specdemo.serving.load import Level, LoadReport
    from specdemo.serving.soak import SoakReport


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
    from specdemo.serving import load, soak

    find_pair(pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    prompts = [prompt for prompt in prompts if len(prompt) < 400]
    stream = sys.stderr if json_file == "-" else sys.stdout
    common: dict[str, Any] = {"visitors": visitors, "max_new_tokens": max_new_tokens}
    if url:
        url = url.rstrip("/")
        load.wait_ready(url)
    with nullcontext((url, None)) if url else load.server(pair) as (address, pid):
        if minutes:
            report = soak.soak(address, pid, prompts, minutes=minutes, **common)
        else:
            report = load.run_levels(
                address,
                pid,
                prompts,
                seconds=seconds,
                on_level=lambda level: print(_level_line(level), file=stream, flush=True),
                **common,
            )
    lines, good = _soak_lines(report) if minutes else _load_lines(report)
    print("\n".join(lines), file=stream)
    if json_file:
        figures = dataclasses.asdict(report) | ({"clean": good} if minutes else {})
        write_json(json.dumps(figures, indent=2), json_file)
    return 0 if good else 1


def _level_line(level: Level) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} s"

    return (
        f"{level.visitors:3d} visitor{'s' if level.visitors > 1 else ' '}: "
        f"{level.tokens_per_s:6.1f} tokens/s together; first token {seconds(level.ttft_p50_s)} "
        f"median, {seconds(level.ttft_p95_s)} 95th percentile; {level.requests} requests, "
        f"{level.errors} errors"
    )


def _load_lines(report: LoadReport) -> tuple[list[str], bool]:
    """The report as lines, and whether every answer came and was the right one."""
    lines = []
    if report.aggregate_gain is not None:
        lines.append(
            f"8 visitors together: {report.aggregate_gain:.2f} times the tokens a second of one"
        )
    words = "are those given without load" if report.identical else "are NOT all the same"
    lines.append(f"{report.compared} answers under load {words}")
    if report.memory:
        sizes = [one.rss_bytes / 1e6 for one in report.memory]
        lines.append(
            f"memory of the server: {sizes[0]:.0f} MB at first, {sizes[-1]:.0f} MB at last, "
            f"{max(sizes):.0f} at most"
        )
    lines += [f"error: {said}" for said in report.errors]
    return lines, report.identical and not any(level.errors for level in report.levels)


def _soak_lines(report: SoakReport) -> tuple[list[str], bool]:
    before, after = report.before, report.after
    lines = [
        f"{report.requests} requests in {report.seconds:.0f} s: {report.finished} finished, "
        f"{report.left} hung up, {report.errors} errors",
        f"left behind: {after.active + after.queue} requests, {after.blocks_held} cache blocks; "
        f"threads {before.threads} before, {after.threads} after; memory "
        f"{before.rss_bytes / 1e6:.0f} MB before, {after.rss_bytes / 1e6:.0f} MB after",
        *(f"error: {said}" for said in report.said),
        "clean" if report.clean else "NOT clean",
    ]
    return lines, report.clean
