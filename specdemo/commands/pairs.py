"""`specdemo pairs`, `fetch`, `export`, `cache` and `machine`: the models of this machine, and what
was measured of them."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import click

from specdemo.commands.shared import completing, json_option, load_pair, write_report
from specdemo.convert import exporting, model_files
from specdemo.errors import DamagedModel, naming
from specdemo.machine import disk, hardware, measured
from specdemo.machine.terminal import counted, progress_bar, size
from specdemo.pairs import registry, sources, storage
from specdemo.pairs.registry import ModelChoice, WeightFormat, find_pair


@click.command()
@json_option
def pairs(json_file: str | None) -> None:
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
            "ready": pair.is_here(),
            "expected": pair.read_expected_speed(),
            "measured": pair.read_facts(),
        }
        for pair in registry.PAIRS
    ]
    columns = "name", "use", "target", "draft", "download_bytes", "memory_bytes"
    shown = [
        {name: row[name] for name in columns}
        | {
            "target": pair.title,
            "state": "here" if row["ready"] else "fits" if pair.fits else "too large",
            "speed": row["measured"] or row["expected"],
        }
        for pair, row in zip(registry.PAIRS, rows, strict=True)
    ]
    write_report(rows, json_file, {"The pairs on this machine": shown})


@click.command()
@click.argument(
    "pair", help="A name that `specdemo pairs` lists.", shell_complete=completing("pair")
)
def fetch(pair: str) -> None:
    with naming(lambda field: "PAIR"):
        choice = ModelChoice(find_pair(pair).name)
    loaded = load_pair(choice)
    try:
        loaded.check.require()
    except DamagedModel as error:
        click.echo(str(error), err=True)
        loaded = load_pair(choice)
    info = loaded.info
    click.echo(f"{info.name} is ready: {info.target}, draft by {info.draft or 'n-gram lookup'}")


@click.command()
@click.argument(
    "source",
    metavar="SOURCE",
    help="A PyTorch checkpoint (a folder or a Hub repository) or a GGUF file (FILE.gguf or "
    "OWNER/NAME:FILE.gguf).",
    shell_complete=completing("model"),
)
@click.argument("out", type=click.Path(path_type=Path), help="The folder to make.")
@click.option(
    "--weight-format",
    type=click.Choice(get_args(WeightFormat)),
    default="auto",
    help="As `run` takes it.",
)
@click.option(
    "--prediction-layer",
    type=click.Choice(("after", "before")),
    help="Make a draft head of a Qwen3.5 checkpoint's own prediction layer (tensors mtp.*), which "
    "reads the target's state after its last norm, as it was trained, or before it.",
)
def export(source: str, out: Path, weight_format: str, prediction_layer: str | None) -> None:
    with naming(lambda field: "SOURCE"):
        model = sources.source_of(source, "model", sources.AS_IT_IS)
    with progress_bar() as bar:
        [fetched] = sources.fetch([model], bar, to_run=False)
        own = prediction_layer or ""
        exporting.export(fetched.folder, out, weight_format, bar, name=model.name, prediction=own)
    click.echo(f"{out} holds the IR of {model.name} ({model_files.weight_format(out)})")


@click.command()
@click.option("--remove", multiple=True, metavar="NAME", help="Delete this model; may be repeated.")
@click.option(
    "--unused", type=click.FloatRange(0), metavar="DAYS", help="Delete all not used for so long."
)
@json_option
def cache(remove: tuple[str, ...], unused: float | None, json_file: str | None) -> None:
    models = storage.stored_models()
    if unused is not None:
        remove += tuple(model.name for model in models if model.unused_days >= unused)
    removed = set(remove)
    storage.remove(removed)
    rows = [dataclasses.asdict(model) for model in models if model.name not in removed]
    freed = sum(model.bytes for model in models if model.name in removed)
    total = size(sum(row["bytes"] for row in rows))
    title = f"{total} in {disk.cache_home()}" + (f", {size(freed)} removed" if removed else "")
    shown = [
        {"name": row["name"], "size": size(row["bytes"]), "unused for": _days(row["unused_days"])}
        for row in rows
    ]
    write_report(rows, json_file, {title: shown})
    click.echo("`hf cache list` shows what was downloaded from the Hub.", err=True)


def _days(days: float) -> str:
    return "less than a day" if days < 1 else counted(round(days), "day")


@click.command()
@click.option("--forget", is_flag=True, help="Drop all of it: the next start measures anew.")
@json_option
def machine(forget: bool, json_file: str | None) -> None:
    if forget:
        return click.echo(f"files dropped: {measured.forget()}")
    figures: list[dict[str, Any]] = []
    tables: dict[str, list[dict[str, str]]] = {hardware.describe(): []}
    for subject, profile in measured.profiles():
        figures.append({"about": subject, "profile": dataclasses.asdict(profile)})
        threads = counted(int(subject["threads"]), "thread")
        model = f"{subject['target']}, {subject['devices']}, {threads}"
        for numerics, target in profile.targets.items():
            how = ", ".join("=".join(pair) for pair in target.properties)
            costs = sorted(target.costs.items())
            forwards = f"ms a forward by tokens, measured {target.measured or 'in passing'}"
            title = (
                f"{model}, {numerics} ({how}): {target.invariance or 'not compared'}\n"
                f"{forwards if costs else 'no forward was timed yet'}"
            )
            tables[title] = [{str(size): f"{1e3 * seconds:.1f}" for size, seconds in costs}]
    write_report(figures, json_file, tables)
