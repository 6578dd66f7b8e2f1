"""`specdemo bench`: measure prompts with and without speculative decoding, beside peers."""

import itertools
from dataclasses import asdict
from functools import partial
from typing import Annotated

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import PromptOptions
from specdemo.commands import shared
from specdemo.errors import RequestFailed
from specdemo.machine.terminal import Progress, printable, progress_bar
from specdemo.options import CONFIG, SPLIT, Whole, option
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import MAX_NEW_TOKENS, Settings

QUICK_SECONDS, QUICK_TOKENS = 100.0, 48  # of a quick benchmark, once the models are loaded


@dataclass(frozen=True, slots=True, config=CONFIG)
class BenchOptions(PromptOptions):
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


@shared.sectioned()
@shared.options_of(BenchOptions, "options", variables=False)
@partial(shared.answer_options, kind=BenchSettings)
def bench(
    options: BenchOptions,
    threads: int | None,
    json_file: str | None,
    choice: ModelChoice,
    settings: BenchSettings,
) -> None:
    shared.check_output(options.html, "--html")
    from specdemo.audit.engines import peers_of
    from specdemo.bench import report
    from specdemo.runs.session import Session

    prompts = options.read()
    usual = QUICK_TOKENS if options.quick else Settings().max_new_tokens
    lengths = settings.max_new_tokens or (usual,)
    longest = Settings(**asdict(settings) | {"max_new_tokens": max(lengths)})
    loaded = shared.load_pair(choice)
    with Session(loaded, threads=threads) as session, progress_bar() as bar:
        loaded.check.require()
        properties = session.target_properties(longest.numerics)
        engines = (peers_of(name, loaded, properties) for name in options.peers or ())
        peers = list(itertools.chain.from_iterable(engines))
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
    shared.write_report(figures, json_file, dict(reversed(report.tables(figures).items())))
    if not figures.rows:
        raise RequestFailed("None of the prompts could be run.")
    decision = figures.decision
    for line in (decision.headline, decision.sentence, decision.command, decision.python):
        click.echo(printable(line), err=json_file == "-")
    if options.html:
        from specdemo.bench.charts import page

        shared.write_file(page(figures), options.html)
