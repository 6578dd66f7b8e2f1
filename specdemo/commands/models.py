"""The commands about models: `pairs`, `fetch`, `export` and `rehearse`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specdemo.cli import json_option, progress_bar, write_json
from specdemo.errors import BadInput, DamagedModel
from specdemo.terminal import show

if TYPE_CHECKING:
    from specdemo.models.rehearsal import Rehearsed, Stepped

ACCEPTANCE_RATES = (0.5, 0.6, 0.7, 0.8, 0.9)


@click.command()
@json_option
def pairs(json_file: str | None) -> None:
    from specdemo.models.progress import size
    from specdemo.models.registry import survey

    listed = survey()
    if json_file:
        rows = [
            {
                "name": one.pair.name,
                "target": one.pair.target.name,
                "draft": one.pair.draft.name if one.pair.draft else None,
                "download_bytes": one.pair.download_bytes,
                "memory_bytes": one.pair.memory_bytes,
                "fits": one.fits,
                "ready": one.ready,
                "licence": one.pair.licence,
            }
            for one in listed
        ]
        write_json(json.dumps(rows, indent=1), json_file)
    if json_file != "-":
        table = [
            {
                "pair": one.pair.name,
                "target": one.pair.target.name,
                "draft": one.pair.draft.name if one.pair.draft else "n-gram lookup",
                "download": size(one.pair.download_bytes),
                "memory": size(one.pair.memory_bytes),
                "fits": "yes" if one.fits else "no",
                "here": "yes" if one.ready else "no",
            }
            for one in listed
        ]
        show(None, table, sys.stdout)


@click.command()
@click.argument("pair", help="A name that `specdemo pairs` lists.")
def fetch(pair: str) -> None:
    from specdemo.models.load import load_pair
    from specdemo.models.registry import find_pair

    with progress_bar() as bar:
        chosen = find_pair(pair, option="PAIR")
        try:
            loaded = load_pair(chosen, progress=bar)
            loaded.check.require()
        except DamagedModel as error:
            click.echo(str(error), err=True)
            loaded = load_pair(chosen, progress=bar)
    info = loaded.info
    click.echo(f"{info.name} is ready: {info.target}, draft by {info.draft or 'n-gram lookup'}")


@click.command()
@click.argument("source", metavar="REPO_OR_DIR", help="Where the PyTorch checkpoint is.")
@click.argument("out", type=click.Path(path_type=Path), help="The folder to make.")
@click.option("--weight-format", type=click.Choice(("int8", "int4", "fp16")), default="int8")
@click.option(
    "--group-size",
    type=click.IntRange(1),
    metavar="N",
    help="For int4: weights that share a scale (default: the largest of 128, 64, 32 that fits).",
)
def export(source: str, out: Path, weight_format: str, group_size: int | None) -> None:
    from specdemo.models import sources
    from specdemo.models.export import export

    if group_size and weight_format != "int4":
        raise BadInput(f"--group-size goes with --weight-format int4, not {weight_format}.")
    with progress_bar() as bar:
        model = sources.source_of(source, "REPO_OR_DIR", weight_format)
        folder = sources.checkpoint(model, bar)
        export(folder, out, weight_format, bar, group_size=group_size or 0, name=model.name)
    click.echo(f"{out} holds the IR of {model.name} ({weight_format})")


@click.command()
@click.option("--forget", is_flag=True, help="Drop all of it: the next start measures anew.")
@json_option
def machine(forget: bool, json_file: str | None) -> None:
    from pydantic import TypeAdapter

    from specdemo.models import machine, profiles

    if forget:
        click.echo(f"{profiles.forget()} profiles dropped")
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
@click.argument("pair", help="A Dolly pair that `specdemo pairs` lists.")
@click.option("--quick", is_flag=True, help="Leave out the comparison of numerics.")
@json_option
def rehearse(pair: str, quick: bool, json_file: str | None) -> None:
    from specdemo.models import machine
    from specdemo.models.registry import find_pair
    from specdemo.models.rehearsal import rehearse_pair

    chosen = find_pair(pair, option="PAIR")
    with progress_bar() as bar:
        models = rehearse_pair(chosen, bar, compare=not quick)
    costs = [one.settings[0].step_seconds for one in models]
    prospects = [prospect(costs[0], costs[1][0], rate) for rate in ACCEPTANCE_RATES]
    if json_file:
        figures = {
            "machine": machine.describe(),
            "weights": "made up",
            "pair": chosen.name,
            "models": [dataclasses.asdict(one) for one in models],
            "prospects": prospects,
        }
        write_json(json.dumps(figures, indent=1), json_file)
    if json_file != "-":
        click.echo(f"{chosen.name} rehearsed on {machine.describe()}")
        report(models, prospects)


def prospect(target: Sequence[float], draft_step: float, rate: float) -> dict[str, float]:
    """The draft length that pays best at acceptance `rate`, tokens per round, and the speed-up.

    `target` holds the seconds of a forward over 1, 2, ... tokens, `draft_step` those of a step.
    """
    from specdemo.bench.costs import CostTable, expected_speedup, expected_tokens

    costs = CostTable(target[0], draft_step, dict(enumerate(target, start=1)))
    best = max(range(1, len(target)), key=lambda length: expected_speedup(rate, length, costs))
    return {
        "acceptance_rate": rate,
        "draft_tokens": best,
        "tokens_per_round": expected_tokens(rate, best),
        "speedup": expected_speedup(rate, best, costs),
    }


def report(models: Sequence[Rehearsed], prospects: Sequence[dict[str, float]]) -> None:
    """Print what each model took, and what that promises."""
    from specdemo.models.rehearsal import PROMPT

    def milliseconds(one: Stepped) -> dict[str, float]:
        return {str(n): 1000 * time for n, time in enumerate(one.step_seconds, start=1)}

    kept = sum(one.own_bytes + one.cache_bytes for one in models) / 1e9
    files = sum(one.weights_bytes for one in models) / 1e9
    click.echo(
        "made-up weights in the real shapes, f32 activations, f16 cache, batch 1, "
        f"{PROMPT} tokens of context; together {kept:.1f} GB must stay in memory, and "
        f"{files:.1f} GB of weights files are read once while loading"
    )
    rows = [
        {
            "model": one.model,
            "weights file, GB": one.weights_bytes / 1e9,
            "memory of its own, GB": one.own_bytes / 1e9,
            "cache of a full context, GB": one.cache_bytes / 1e9,
            "load and first forward, s": one.load_seconds,
            f"prefill of {PROMPT}, s": one.prefill_seconds,
        }
        for one in models
    ]
    show("what each model takes", rows, sys.stdout)
    rows = [
        {
            "model": one.model,
            "numerics": way.numerics,
            **milliseconds(way),
            "logits": way.invariance,
        }
        for one in models
        for way in one.settings
    ]
    show("milliseconds a forward of n tokens", rows, sys.stdout)
    show("what these costs promise", prospects, sys.stdout)
