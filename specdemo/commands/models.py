"""The commands about models: `pairs`, `fetch`, `export`, `machine` and `tune`."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click

from specdemo.cli import json_option, load_pair, write_json
from specdemo.errors import DamagedModel
from specdemo.models.progress import Progress, size
from specdemo.settings import ModelChoice, WeightFormat
from specdemo.terminal import Table, progress_bar, show


def write_report(figures: Any, json_file: str | None, tables: Mapping[str, Table]) -> None:
    """Write `figures` as JSON to `json_file`, if any. Unless standard output gets the JSON, print
    the tables, each below its title, with sizes and lists as text."""
    if json_file:
        write_json(json.dumps(figures, indent=1), json_file)
    for title, rows in tables.items() if json_file != "-" else ():
        click.echo(title)
        show(None, [dict(map(_readable, row, row.values())) for row in rows], sys.stdout)


def _readable(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), size(value)
    return name, ", ".join(value) if isinstance(value, list) else value


@click.command()
@json_option
def pairs(json_file: str | None) -> None:
    from specdemo.models.registry import PAIRS

    rows = [
        {
            "name": pair.name,
            "use": pair.use,
            "target": pair.target.name,
            "draft": pair.draft.name if pair.draft else None,
            "drafts": [draft.name for draft in pair.drafts],
            "download_bytes": pair.download_bytes,
            "memory_bytes": pair.memory_bytes,
            "fits": pair.fits,
            "ready": pair.ready,
            "expected": pair.expected,
            "measured": pair.facts,
        }
        for pair in PAIRS
    ]
    write_report(rows, json_file, {"The pairs on this machine": rows})


@click.command()
@click.argument("pair", help="A name that `specdemo pairs` lists.")
def fetch(pair: str) -> None:
    from specdemo.models.registry import find_pair
    from specdemo.settings import ModelChoice

    choice = ModelChoice(find_pair(pair, option="PAIR").name)
    loaded = load_pair(choice)
    try:
        loaded.check.require()
    except DamagedModel as error:
        click.echo(str(error), err=True)
        loaded = load_pair(choice)
    info = loaded.info
    click.echo(f"{info.name} is ready: {info.target}, draft by {info.draft or 'n-gram lookup'}")


@click.command()
@click.argument("source", metavar="REPO_OR_DIR", help="Where the PyTorch checkpoint is.")
@click.argument("out", type=click.Path(path_type=Path), help="The folder to make.")
@click.option("--weight-format", type=click.Choice(("int8", "int4", "fp16")), default="int8")
def export(source: str, out: Path, weight_format: str) -> None:
    from specdemo.models import sources
    from specdemo.models.export import export

    model = sources.source_of(source, "REPO_OR_DIR", sources.AS_IT_IS)
    with progress_bar() as bar:
        [found] = sources.prepare([model], bar, to_run=False)
        export(found.folder, out, weight_format, bar, name=model.name)
    click.echo(f"{out} holds the IR of {model.name} ({weight_format})")


@click.command()
@click.option("--forget", is_flag=True, help="Drop all of it: the next start measures anew.")
@json_option
def machine(forget: bool, json_file: str | None) -> None:
    from specdemo.models import machine, measured

    if forget:
        return click.echo(f"files dropped: {measured.forget()}")
    figures, tables = [], {machine.describe(): []}
    for about, profile in measured.profiles():
        figures.append({"about": about, "profile": dataclasses.asdict(profile)})
        model = f"{about['target']}, {about['devices']}, {about['threads']} threads"
        for numerics, target in profile.targets.items():
            how = ", ".join("=".join(pair) for pair in target.properties)
            title = (
                f"{model}, {numerics} ({how}): {target.invariance or 'not compared'}\n"
                f"ms a forward by tokens ({1e3 * target.change:.1f} more for a change of their "
                f"number), measured {target.measured or 'in passing'}"
            )
            costs = sorted(target.costs.items())
            tables[title] = [{str(size): f"{1e3 * seconds:.1f}" for size, seconds in costs}]
    write_report(figures, json_file, tables)


@click.command()
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
    from specdemo.bench import tune as tuning
    from specdemo.models import machine
    from specdemo.models.registry import choice_of
    from specdemo.session import Session

    def session(chosen: ModelChoice) -> Session:
        return Session(load_pair(chosen))

    choice = choice_of(pair, weight_format)
    drafts = tuple(os.path.abspath(one) if os.path.exists(one) else one for one in drafts)
    with progress_bar() as bar:
        for event in tuning.tune(choice, session, drafts=drafts, prompts=limit):
            if isinstance(event, str):
                bar(Progress(event))
    figures = {"machine": machine.describe(), "pair": pair, "winner": event.winner}
    tables = {
        f"{pair} on {machine.describe()}": tuning.table(event.rows),
        f"{pair} drafts by {tuning.named(event.winner)} from now on.": [],
    }
    write_report(figures | dataclasses.asdict(event), json_file, tables)
