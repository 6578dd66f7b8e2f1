"""The commands about models: `pairs`, `fetch`, `export` and `rehearse`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specdemo.cli import json_option, write_json
from specdemo.errors import BadInput

if TYPE_CHECKING:
    from specdemo.models.rehearsal_costs import Rehearsed

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
                "draft": one.draft,
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
        table = [("pair", "target", "draft", "download", "memory", "fits", "here")]
        for one in listed:
            sizes = size(one.pair.download_bytes), size(one.pair.memory_bytes)
            states = ("yes" if state else "no" for state in (one.fits, one.ready))
            names = one.pair.name, one.pair.target.name, one.draft or "n-gram lookup"
            table.append((*names, *sizes, *states))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@click.command()
@click.argument("pair", help="A name that `specdemo pairs` lists.")
def fetch(pair: str) -> None:
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models.load import load_pair
    from specdemo.models.registry import find_pair

    with ProgressBar() as bar:
        info = load_pair(find_pair(pair, option="PAIR"), progress=bar).info
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
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models import sources
    from specdemo.models.export import ExportSettings, export

    if group_size and weight_format != "int4":
        raise BadInput(f"--group-size goes with --weight-format int4, not {weight_format}.")
    settings = ExportSettings(weight_format, group_size or 0)
    with ProgressBar() as bar:
        checkpoint = sources.source_of(source, "REPO_OR_DIR", weight_format)
        export(sources.checkpoint(checkpoint, bar), out, settings, bar, name=checkpoint.name)
    click.echo(f"{out} holds the IR of {checkpoint.name} ({weight_format})")


@click.command()
@click.argument("pair", help="A Dolly pair that `specdemo pairs` lists.")
@click.option("--quick", is_flag=True, help="Leave out the comparison of numerics.")
@json_option
def rehearse(pair: str, quick: bool, json_file: str | None) -> None:
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models import machine
    from specdemo.models.registry import find_pair
    from specdemo.models.rehearsal_costs import rehearse_pair

    chosen = find_pair(pair, option="PAIR")
    with ProgressBar() as bar:
        target, draft = rehearse_pair(chosen, bar, compare=not quick)
    outlook = [prospect(target, draft.step_seconds[0], rate) for rate in ACCEPTANCE_RATES]
    if json_file:
        figures = {
            "machine": machine.describe(),
            "weights": "made up",
            "pair": chosen.name,
            "models": [dataclasses.asdict(one) for one in (target, draft)],
            "prospects": [dataclasses.asdict(one) for one in outlook],
        }
        write_json(json.dumps(figures, indent=1), json_file)
    if json_file != "-":
        click.echo(report(chosen.name, machine.describe(), [target, draft], outlook))


@dataclass(frozen=True, slots=True)
class Prospect:
    """For an acceptance rate: the draft length that pays best, tokens per round, the speed-up."""

    acceptance_rate: float
    draft_tokens: int
    tokens_per_round: float
    speedup: float


def prospect(target: Rehearsed, draft_step: float, rate: float) -> Prospect:
    """The best draft length at acceptance `rate`, for draft steps of `draft_step` seconds."""
    from specdemo.bench.costs import CostTable, VerifyCost, expected_speedup, expected_tokens

    seconds = target.step_seconds
    verify = tuple(VerifyCost(tokens, cost, 1) for tokens, cost in enumerate(seconds, start=1))
    costs = CostTable(seconds[0], draft_step, verify)
    lengths = range(1, len(seconds))
    best = max(lengths, key=lambda length: expected_speedup(rate, length, costs))
    speedup = expected_speedup(rate, best, costs)
    return Prospect(rate, best, expected_tokens(rate, best), speedup)


def report(
    pair: str, machine: str, rehearsed: Sequence[Rehearsed], outlook: Sequence[Prospect]
) -> str:
    """The figures as Markdown."""
    from specdemo.models.rehearsal_costs import PROMPT, TOKENS

    target = rehearsed[0]
    kept = sum(one.own_bytes + one.cache_bytes for one in rehearsed) / 1e9
    files = sum(one.weights_bytes for one in rehearsed) / 1e9
    counts = tuple(map(str, TOKENS))
    parts = [
        f"{pair} rehearsed on {machine}: made-up weights in the real shapes, f32 activations, "
        f"f16 cache, batch 1, {PROMPT} tokens of context.",
        _table(
            "model|weights file|memory of its own|peak while loading|cache of a full context|"
            f"load and first forward|prefill of {PROMPT}".split("|"),
            [_costs(one) for one in rehearsed],
        ),
        f"Together {kept:.1f} GB must stay in memory; the weights files, {files:.1f} GB, are "
        "read once while loading.",
        _table(
            ("milliseconds a forward of n tokens", *counts),
            [(one.model, *_milliseconds(one.step_seconds)) for one in rehearsed],
        ),
    ]
    if target.settings:
        rows = [
            (one.numerics, *_milliseconds(one.step_seconds), one.invariance)
            for one in target.settings
        ]
        parts.append(_table((f"numerics of {target.model}, ms for n =", *counts, "logits"), rows))
    rows = [
        ("best draft length", *(str(one.draft_tokens) for one in outlook)),
        ("tokens per round", *(f"{one.tokens_per_round:.2f}" for one in outlook)),
        ("speed-up", *(f"{one.speedup:.2f}" for one in outlook)),
    ]
    rates = (f"{one.acceptance_rate:.1f}" for one in outlook)
    parts.append(_table(("acceptance rate", *rates), rows))
    return "\n\n".join(parts)


def _costs(one: Rehearsed) -> list[str]:
    sizes = (one.weights_bytes, one.own_bytes, one.peak_bytes, one.cache_bytes)
    cells = [f"{size / 1e9:.2f} GB" for size in sizes]
    return [one.model, *cells, f"{one.load_seconds:.1f} s", f"{one.prefill_seconds:.2f} s"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _milliseconds(seconds: Sequence[float]) -> list[str]:
    return [f"{one * 1000:.1f}" for one in seconds]
