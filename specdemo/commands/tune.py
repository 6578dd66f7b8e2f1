"""`specdemo tune`: which draft pays here."""

import dataclasses
import os
from typing import get_args

import click

from specdemo.commands.shared import (
    json_option,
    load_pair,
    sectioned,
    write_report,
)
from specdemo.errors import naming
from specdemo.host.terminal import Progress, progress_bar
from specdemo.pairs.registry import ModelChoice, WeightFormat


@sectioned()
@click.argument("pair", metavar="PAIR_OR_MODEL", help="A pair, or a model as `run` takes it.")
@click.option(
    "--assistant-model",
    "drafts",
    multiple=True,
    metavar="DIR_OR_REPO",
    help="A further draft to race, such as one that `train-draft` made; may be repeated.",
)
@click.option("--weight-format", type=click.Choice(get_args(WeightFormat)), default="auto")
@click.option("--limit", type=click.IntRange(1), default=8, help="Built-in prompts to race.")
@json_option
def tune(
    pair: str,
    drafts: tuple[str, ...],
    weight_format: WeightFormat,
    limit: int,
    json_file: str | None,
) -> None:
    from specdemo.bench import tuning
    from specdemo.host import hardware
    from specdemo.host.measured import TuningResult
    from specdemo.pairs.registry import choice_of
    from specdemo.runs.session import Session

    def session(chosen: ModelChoice) -> Session:
        return Session(load_pair(chosen))

    choice = choice_of(pair, weight_format)
    drafts = tuple(os.path.abspath(name) if os.path.exists(name) else name for name in drafts)
    fields = {"assistant_model": "--assistant-model"}
    with progress_bar() as bar, naming(lambda field: fields.get(field, "PAIR_OR_MODEL")):
        for event in tuning.tune(choice, session, drafts=drafts, prompts=limit):
            if isinstance(event, str):
                bar(Progress(event))
    assert isinstance(event, TuningResult)
    figures = {"machine": hardware.describe(), "pair": pair, "winner": event.winner}
    rows = [dataclasses.asdict(row) | {"draft": tuning.named(row.draft)} for row in event.rows]
    tables = {
        f"{pair} on {hardware.describe()}": rows,
        f"{pair} drafts by {tuning.named(event.winner)} from now on.": [],
    }
    write_report(figures | dataclasses.asdict(event), json_file, tables)
