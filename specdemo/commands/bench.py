"""`specdemo bench` and `load`: measure prompts with and without speculative decoding, beside peers;
and a server of its own under load."""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import PromptOptions
from specdemo.commands.shared import (
    answer_options,
    check_output,
    json_option,
    load_pair,
    options_of,
    sectioned,
    threads_option,
    write_report,
)
from specdemo.errors import RequestFailed
from specdemo.host.terminal import Progress, printable, progress_bar, show
from specdemo.options import CONFIG, SPLIT, Whole, option
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings

QUICK_SECONDS, QUICK_TOKENS = 100.0, 48  # of a quick benchmark, once the models are loaded


@dataclass(frozen=True, slots=True, config=CONFIG)
class BenchOptions(PromptOptions):
    html: str | None = option(None, "write the report as one self-contained page", metavar="FILE")
    repeats: Annotated[Whole, Field(ge=1, le=99)] = option(
        1, "runs of each prompt; medians count", metavar="R"
    )
    quick: bool = option(False, "decide within two minutes; answers of 48 tokens if not set")


Limit = Annotated[Whole, Field(ge=1, le=MAX_NEW_TOKENS)]
Lengths = Annotated[tuple[Limit, ...], Field(min_length=1), SPLIT] | None


@dataclass(frozen=True, slots=True, config=CONFIG)
class BenchSettings(Settings):
    """Settings of which the longest answer may have several values, to be measured each."""

    max_new_tokens: Lengths = option(  # type: ignore[assignment]  # `bench` makes Settings of it
        None, "longest answer, tokens; several numbers measure each", metavar="N[,N]", unset="100"
    )


@sectioned()
@threads_option
@options_of(BenchOptions, "options", variables=False)
@partial(answer_options, kind=BenchSettings)
def bench(
    threads: int | None,
    options: BenchOptions,
    json_file: str | None,
    choice: ModelChoice,
    settings: BenchSettings,
) -> None:
    check_output(options.html, "--html")
    from specdemo.audit.engines import peers_of
    from specdemo.bench import report
    from specdemo.runs.session import Session

    prompts = options.read()
    usual = QUICK_TOKENS if options.quick else Settings().max_new_tokens
    lengths = settings.max_new_tokens or (usual,)
    longest = Settings(**asdict(settings) | {"max_new_tokens": max(lengths)})
    loaded = load_pair(choice)
    with Session(loaded, threads=threads) as session, progress_bar() as bar:
        loaded.check.require()
        properties = session.target_properties(longest.numerics)
        peers = [
            peer for name in options.peers or () for peer in peers_of(name, loaded, properties)
        ]
        figures = report.bench(
            session,
            prompts,
            longest,
            lengths=lengths,
            repeats=options.repeats,
            peers=peers,
            choice=None if choice == ModelChoice() else choice,
            seconds=QUICK_SECONDS if options.quick else None,
            report=lambda step: bar(Progress(printable(f"{step.done}/{step.total} {step.text}"))),
        )
    write_report(figures, json_file, dict(reversed(report.tables(figures).items())))
    if not figures.rows:
        raise RequestFailed("None of the prompts could be run.")
    decision = figures.decision
    for line in (decision.sentence, decision.command, decision.python):
        click.echo(printable(line), err=json_file == "-")
    if options.html:
        from specdemo.bench.charts import page

        Path(options.html).write_text(page(figures), encoding="utf-8")


@click.command()
@click.option("--visitors", type=click.IntRange(1, 64), default=16, help="Most at a time.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=30, help="Of each level.")
@click.option("--pair", default="embedded", help="What the server loads.")
@click.option("--max-new-tokens", type=click.IntRange(1, 2000), default=100)
@json_option
def load(
    visitors: int, seconds: float, pair: str, max_new_tokens: int, json_file: str | None
) -> None:
    from specdemo.bench.load_test import level
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.host.server_process import started
    from specdemo.pairs.registry import find_pair

    find_pair(pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None)]
    short = itertools.cycle([prompt for prompt in prompts if len(prompt) < 400])
    # Each question ends in its own number, so that none is wholly in the server's prefix cache.
    questions = map("{} ({})".format, short, itertools.count())
    levels: dict[int, dict[str, Any]] = {}
    errors: list[str] = []
    fewer = [number for number in (1, 4, 8, 16, 32) if number < visitors]
    with started("-m", "specdemo", "page", "--pair", pair, SPECDEMO_LOG="WARNING") as server:
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
