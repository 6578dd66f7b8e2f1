"""The commands about models: `pairs`, `fetch`, `export`, `machine`, `tune` and `rehearse`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from specdemo.cli import json_option, load_pair, progress_bar, write_json
from specdemo.errors import DamagedModel
from specdemo.terminal import show

ACCEPTANCE_RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@click.command()
@json_option
def pairs(json_file: str | None) -> None:
    from specdemo.models.progress import size
    from specdemo.models.registry import survey

    found = survey()
    rows = [
        {
            "name": one.pair.name,
            "target": one.pair.target.name,
            "draft": one.pair.draft.name if one.pair.draft else None,
            "drafts": [draft.name for draft in one.pair.drafts],
            "download_bytes": one.pair.download_bytes,
            "memory_bytes": one.pair.memory_bytes,
            "fits": one.fits,
            "ready": one.ready,
            "token_seconds": one.token_seconds,
            "agreement": one.agreement,
        }
        for one in found
    ]
    if json_file:
        write_json(json.dumps(rows, indent=1), json_file)
    if json_file != "-":
        table = [
            {
                "pair": one.pair.name,
                "target": one.pair.target.name,
                "drafts": ", ".join(draft.name for draft in one.pair.drafts),
                "download": size(one.pair.download_bytes),
                "memory": size(one.pair.memory_bytes),
                "fits": one.fits,
                "here": one.ready,
                "measured here": one.facts,
            }
            for one in found
        ]
        show(None, table, sys.stdout)


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

    with progress_bar() as bar:
        model = sources.source_of(source, "REPO_OR_DIR", weight_format)
        export(sources.checkpoint(model, bar), out, weight_format, bar, name=model.name)
    click.echo(f"{out} holds the IR of {model.name} ({weight_format})")


@click.command()
@click.option("--forget", is_flag=True, help="Drop all of it: the next start measures anew.")
@json_option
def machine(forget: bool, json_file: str | None) -> None:
    from pydantic import TypeAdapter

    from specdemo.models import machine, profiles

    if forget:
        count = profiles.forget()
        click.echo(f"{count} file{'s' * (count != 1)} dropped")
        return
    found = list(profiles.stored())
    if json_file:
        kind = TypeAdapter(list[profiles.Stored])
        write_json(kind.dump_json(found, indent=1).decode(), json_file)
    if json_file != "-":
        click.echo(machine.describe())
        for one in found:
            click.echo(f"\n{one.about.target}, {one.about.devices}, {one.about.threads} threads")
            for numerics, target in one.profile.targets.items():
                click.echo(f"{numerics}: {target.invariance or 'not compared'}")
                costs = {str(size): f"{1e3 * s:.1f}" for size, s in sorted(target.costs.items())}
                show(
                    f"ms a forward by tokens, measured {target.measured or 'in passing'}",
                    [costs],
                    sys.stdout,
                )


@click.command()
@click.argument("pair", help="A pair that `specdemo pairs` lists.")
@click.option("--limit", type=click.IntRange(1), default=8, help="Built-in prompts to race.")
@json_option
def tune(pair: str, limit: int, json_file: str | None) -> None:
    from specdemo.bench import tune as tuning
    from specdemo.models import machine
    from specdemo.models.progress import Progress
    from specdemo.session import Session

    with progress_bar() as bar:
        for event in tuning.tune(pair, lambda choice: Session(load_pair(choice)), prompts=limit):
            if isinstance(event, str):
                bar(Progress(event))
    if json_file:
        figures = {"machine": machine.describe(), "pair": pair, "winner": event.winner}
        write_json(json.dumps(figures | dataclasses.asdict(event), indent=1), json_file)
    if json_file != "-":
        show(f"{pair} on {machine.describe()}", tuning.table(event.rows), sys.stdout)
        click.echo(f"{pair} drafts by {tuning.named(event.winner)} from now on.")


@click.command()
@click.argument("pair", help="A pair that `specdemo pairs` lists.")
@json_option
def rehearse(pair: str, json_file: str | None) -> None:
    from specdemo.models import machine, measured
    from specdemo.models.drafts import promised_speedup
    from specdemo.models.registry import ASSUMED_ACCEPTANCE, find_pair
    from specdemo.models.rehearsal import PROMPT, rehearse_pair

    chosen = find_pair(pair, option="PAIR")
    with progress_bar() as bar:
        models = rehearse_pair(chosen, bar)
    steps = {one.model: one.step_seconds for one in models}
    for model, seconds in steps.items():
        measured.remember("steps", model, seconds)
    drafts = list(steps)[1 : 1 + len(chosen.drafts)]
    targets = [name for name in steps if name not in drafts]
    assumed = {draft: ASSUMED_ACCEPTANCE.get(draft, 0.5) for draft in drafts}

    def speedup(target: str, draft: str, rate: float) -> float:
        return promised_speedup(dict(enumerate(steps[target], start=1)), steps[draft][0], rate)

    rows = [
        {
            "target": target,
            "draft": draft,
            **{f"{rate:g}": speedup(target, draft, rate) for rate in ACCEPTANCE_RATES},
            "assumed rate": assumed[draft],
            "speed-up": speedup(target, draft, assumed[draft]),
        }
        for target in targets
        for draft in drafts
    ]
    default = max(rows[: len(drafts)], key=lambda row: row["speed-up"])["draft"]
    if json_file:
        figures = {
            "machine": machine.describe(),
            "weights": "made up",
            "pair": chosen.name,
            "models": [dataclasses.asdict(one) for one in models],
            "prospects": rows,
            "default": default,
        }
        write_json(json.dumps(figures, indent=1), json_file)
    if json_file == "-":
        return
    click.echo(
        f"{chosen.name} rehearsed on {machine.describe()}: made-up weights in the real shapes, f32 "
        f"activations, f16 cache, batch 1, {PROMPT} tokens of context. Weights files are read once "
        "while loading, the rest stays."
    )
    taken = [
        {
            "model": one.model,
            "weights file, GB": one.weights_bytes / 1e9,
            "memory of its own, GB": one.own_bytes / 1e9,
            "cache of a full context, GB": one.cache_bytes / 1e9,
        }
        for one in models
    ]
    show("what each model takes", taken, sys.stdout)
    stepped = [
        {
            "model": one.model,
            **{str(n): 1000 * time for n, time in enumerate(one.step_seconds, start=1)},
            "logits": one.invariance,
        }
        for one in models
    ]
    show("milliseconds a forward of n tokens", stepped, sys.stdout)
    show("speed-up by acceptance rate", rows, sys.stdout)
    click.echo(f"At the assumed acceptance rates {default} is the draft to begin with.")
