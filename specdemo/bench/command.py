"""`specdemo bench` and `specdemo audit`: measure prompts with and without speculative decoding, and
test that it is lossless, of our pair and of a peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from specdemo.cli import (
    FAILURE,
    Command,
    check_output,
    json_option,
    load_pair,
    model_options,
    settings_options,
    write_json,
)
from specdemo.errors import BadInput, RequestFailed

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit
    from specdemo.bench.report import Report
    from specdemo.settings import ModelChoice, Settings

SWEEP_PROMPTS = 8

PEERS = {
    "openvino-genai": "specdemo.bench.peers",
    "transformers": "specdemo.bench.transformers_peers",
}
"""Name: the module that opens it."""


def prompt_options(command: Callable) -> Callable:
    """Adds --prompts, --limit and --peers; passes `prompts` (a file or None), `limit`, `peers`."""
    file_help = "JSONL with id, task and instruction. [default: a small set of its own]"
    limit_help = "Run only N prompts, spread evenly over the tasks."
    peers_help = "Also run another engine on the same files: transformers on torch devices."
    prompts = click.option("--prompts", metavar="FILE", help=file_help)
    limit = click.option("--limit", type=click.IntRange(min=1), metavar="N", help=limit_help)
    peers = click.option("--peers", type=click.Choice(list(PEERS)), help=peers_help)
    return prompts(limit(peers(command)))


@click.command(cls=Command)
@prompt_options
@json_option
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    callback=lambda context, param, value: check_output(value, "--html"),
    help="Write the report as one self-contained page with figures.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 99),
    default=1,
    metavar="R",
    help="Runs of each prompt; medians count.",
)
@click.option(
    "--sweep-prompts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Run N of the prompts with every draft length from 1 to 12 as well. "
    f"[default: {SWEEP_PROMPTS} with --html, else 0]",
)
@click.option(
    "--paper",
    is_flag=True,
    help="The paper's own table instead (arXiv 2311.04951), its figures beside.",
)
@model_options
@settings_options
def bench(
    prompts: str | None,
    limit: int | None,
    peers: str | None,
    json_file: str | None,
    html_file: str | None,
    repeats: int,
    sweep_prompts: int | None,
    paper: bool,
    choice: ModelChoice,
    settings: Settings,
) -> None:
    from specdemo.bench import paper as papers
    from specdemo.bench import race, tables
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    if paper and (prompts or limit or peers or html_file or sweep_prompts):
        raise BadInput(
            "--paper has a prompt of its own; leave out --prompts, --limit, --peers, "
            "--sweep-prompts and --html."
        )
    chosen = spread(read_prompts(prompts or BUILT_IN), limit)
    if sweep_prompts is None:
        sweep_prompts = SWEEP_PROMPTS if html_file else 0
    loaded = load_pair(choice)
    out = sys.stderr if json_file == "-" else sys.stdout
    with closing(Session(loaded)) as session:
        session.require_intact()
        tables.say(f"{session.info.target}, draft model: {session.info.draft or 'none'}", out)
        if paper:
            tables.say(f'"{papers.PROMPT}", seconds from the prompt to the last token', out)
            report = papers.paper_table(session, settings)
            title = "The paper ran dolly-v2-12b with dolly-v2-3b, K = 5"
            tables.show(title, tables.of_paper(report.rows), out)
        else:
            opened, left_out = [], []
            if peers:
                properties = session.target_properties(settings.numerics)
                opened, left_out = import_module(PEERS[peers]).open_all(loaded, properties)
            for sentence in left_out:
                tables.say(sentence, out)
            plan = race.Plan(settings, repeats, sweep_prompts)
            report = _show_bench(race.bench(session, chosen, plan, peers=opened), out)
    if json_file:
        write_json(to_json(report), json_file)
    if html_file:
        from specdemo.bench.html import page

        Path(html_file).write_text(page(report), encoding="utf-8")
    if not report.rows:
        reasons = [skipped.reason for skipped in report.details.skipped]
        raise RequestFailed(f"None of the prompts could be run: {reasons[0] if reasons else ''}")


def _show_bench(events: Iterator, out: TextIO) -> Report:
    """Prints what `race.bench` yields as it comes; returns its report."""
    from tqdm import tqdm

    from specdemo.bench import tables
    from specdemo.bench.race import Step
    from specdemo.bench.report import Report, Row, Skipped

    form = "{percentage:3.0f}% |{bar:24}| {desc}"
    with tqdm(leave=False, disable=None, bar_format=form) as bar:
        for event in events:
            if isinstance(event, Step):
                bar.total, bar.n = event.total, event.done
                bar.set_description_str(tables.printable(event.text))
            elif isinstance(event, Skipped):
                tables.say(f"skipped {event.id}: {event.reason}", out)
            elif isinstance(event, Row):
                speedup, identical = map(tables.text, (event.speedup, event.identical))
                figures = f"{event.tokens} tokens, speed-up {speedup}, identical: {identical}"
                tables.say(f"{event.task} {event.id}: {figures}", out)
            elif isinstance(event, Report):
                report = event
    for title, table in reversed(tables.of_report(report).items()):
        tables.show(title, table, out)
    if report.details.stopped:
        tables.say("stopped before the end: figures are of the prompts finished until then", out)
    return report


@click.command(cls=Command)
@prompt_options
@click.option(
    "--draws",
    type=click.IntRange(min=0),
    default=4000,
    metavar="N",
    help="Sampled answers of each kind; 0 leaves sampling out.",
)
@click.option(
    "--sample-prompts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Sample the first N of the prompts in place of the audit's own.",
)
@json_option
@model_options
@settings_options
def audit(
    prompts: str | None,
    limit: int | None,
    peers: str | None,
    draws: int,
    sample_prompts: int,
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> int:
    from specdemo.bench import audit as audits
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    chosen = spread(read_prompts(prompts or BUILT_IN), limit)
    sampled = audits.sampled_settings(settings)
    loaded = load_pair(choice)
    with closing(Session(loaded)) as session:
        session.require_intact()
        properties = session.target_properties(settings.numerics)
        found = audits.audit(
            session,
            chosen,
            settings,
            draws=draws,
            sample_prompts=sample_prompts,
            stop_ids=loaded.stop_ids,
            peers=import_module(PEERS[peers]).to_audit(loaded, properties, sampled.draft_tokens)
            if peers
            else {},
        )
    _show_audit(found, sys.stderr if json_file == "-" else sys.stdout)
    if json_file:
        write_json(to_json(found), json_file)
    if not found.lossless:
        click.echo("specdemo: speculative decoding changes the output of this pair", err=True)
        return FAILURE
    return 0


def _show_audit(audit: Audit, out: TextIO) -> None:
    from specdemo.bench.tables import say, show, where

    compared = {"greedy": audit.greedy, "same seed": audit.same_seed}
    compared |= {f"{name}, greedy": peer.greedy for name, peer in audit.peers.items()}
    for name, one in compared.items():
        if one is not None:
            same = f"{one.identical} of {one.prompts} answers identical"
            say(f"{name}: {same} to autoregressive decoding ({one.tokens} tokens)", out)
            for differing in one.differences[:10]:
                say(f"  {differing.id}: {where(differing.difference)}", out)
    for name, peer in audit.peers.items():
        say(f"{name}: {peer.note}", out)
    of_peers = [peer.sampling for peer in audit.peers.values() if peer.sampling]
    cells = [asdict(cell) for cell in (*audit.sampling_cells, *of_peers)]
    names = ("drafter", "coupling", "batched")
    table = [{**{name: cell[name] for name in names}, **cell} for cell in cells]
    show("Sampling, against the exact distribution", table, out)
