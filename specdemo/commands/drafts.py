"""`specdemo tune` and `train-draft`: which draft pays here, and drafts of one's own."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import click

from specdemo.commands import shared
from specdemo.errors import RequestFailed, naming
from specdemo.machine import hardware, measured
from specdemo.machine.measured import DraftResult, TuningResult
from specdemo.machine.terminal import Progress, Report, progress_bar
from specdemo.pairs.registry import NO_DRAFT, ModelChoice, WeightFormat, choice_of, chosen_pair
from specdemo.training.recipe import TrainSettings

TOKENS = 64  # of the longest answer
OPTIONS = {"assistant_model": "--assistant-model", "weight_format": "--weight-format"}


@click.command()
@click.argument(
    "pair",
    metavar="PAIR_OR_MODEL",
    help="A pair, or a model as `run` takes it.",
    shell_complete=shared.completing("pair"),
)
@click.option(
    "--assistant-model",
    "drafts",
    multiple=True,
    metavar="DIR_OR_REPO",
    shell_complete=shared.completing("model"),
    help="A further draft to race, such as one that `train-draft` made; may be repeated.",
)
@click.option("--weight-format", type=click.Choice(get_args(WeightFormat)), default="auto")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", default=8, help="Built-in prompts to race."
)
@shared.json_option
def tune(
    pair: str,
    drafts: tuple[str, ...],
    weight_format: WeightFormat,
    limit: int,
    json_file: str | None,
) -> None:
    choice = choice_of(pair, weight_format)
    drafts = tuple(os.path.abspath(name) if os.path.exists(name) else name for name in drafts)
    with progress_bar() as bar, naming(lambda name: OPTIONS.get(name, "PAIR_OR_MODEL")):
        results = tuple(race_drafts(choice, drafts, limit, bar))
        tuned = TuningResult(datetime.now(UTC).date().isoformat(), results)
        uncounted = next((row for row in results if not row.counted), None)
        if not uncounted:
            measured.write("tuned", chosen_pair(choice).subject, tuned)
    machine = hardware.describe()
    rows = [dataclasses.asdict(row) | {"draft": _named(row.draft)} for row in results]
    decision = "Nothing is kept."
    if not uncounted:
        decision = f"{pair} drafts by {_named(tuned.winner)} from now on."
    tables = {f"{pair} on {machine}": rows, decision: []}
    figures = {"machine": machine, "pair": pair, "winner": None if uncounted else tuned.winner}
    shared.write_report(figures | dataclasses.asdict(tuned), json_file, tables)
    if uncounted:
        raise RequestFailed(
            f"With {_named(uncounted.draft)} no race counts ({uncounted.verdict.rstrip('.')}), so "
            f"{pair} keeps the draft it had; tune it again when other programs rest."
        )


def race_drafts(
    choice: ModelChoice, drafts: Sequence[str], prompts: int, report: Report
) -> Iterator[DraftResult]:
    """Race built-in prompts with each draft of the pair that `choice` names, with each of `drafts`
    (as `ModelChoice.assistant_model`) and with n-grams only, on the processor with default
    settings. Raises BadInput for an unknown pair or draft before the first race."""
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.bench.report import bench
    from specdemo.runs.session import Session
    from specdemo.runs.settings import Settings
    from specdemo.runs.trace import over

    raced, settings = spread(read_prompts(), prompts), Settings(max_new_tokens=TOKENS)
    pair = chosen_pair(choice)
    for draft in drafts:
        chosen_pair(replace(choice, assistant_model=draft))
    # A user's first: one of them may be a folder that holds no model.
    for draft in (*drafts, *(draft.name for draft in pair.drafts), NO_DRAFT):
        subject = f"{pair.title} with {_named(draft)}"
        report(Progress(f"Loading {subject}"))

        def tell(step: Progress, subject: str = subject) -> None:
            report(Progress(f"{subject}: {step.text}"))

        with Session(shared.load_pair(replace(choice, assistant_model=draft))) as session:
            figures = bench(session, raced, settings, users=False, report=tell)
            step = session.engine.draft_step
        summary = figures.summary
        yield DraftResult(
            draft=draft,
            speedup=summary["speedup"] or 0.0,
            tokens_per_second=summary["speculative_tokens_per_s"] or 0.0,
            acceptance_rate=summary["acceptance_rate"],
            target_seconds=over(1.0, summary["autoregressive_tokens_per_s"]) or 0.0,
            draft_seconds=step,
            verdict=figures.decision.verdict.sentence,
            counted=figures.decision.verdict.races,
        )


def _named(draft: str) -> str:
    return "n-grams only" if draft == NO_DRAFT else draft


@click.command()
@shared.options_of(TrainSettings, "settings", variables=False)
def train_draft(settings: TrainSettings) -> None:
    from specdemo.training import steps

    click.echo(steps.train_draft(settings))
