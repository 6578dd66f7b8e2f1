"""`specdemo bench` and `specdemo audit`: measure prompts with and without speculative decoding, and
test that it is lossless, of our pair and of a peer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import PromptOptions
from specdemo.cli import (
    FAILURE,
    Command,
    check_output,
    json_option,
    load_pair,
    model_options,
    options_of,
    settings_options,
    write_json,
)
from specdemo.errors import BadInput, RequestFailed
from specdemo.settings import CONFIG, listed, option, whole
from specdemo.terminal import printable, say, show, text, where

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit
    from specdemo.bench.prompts import BenchPrompt
    from specdemo.bench.report import Report
    from specdemo.settings import ModelChoice, Settings

SWEEP_PROMPTS = 8

PEERS = {
    "openvino-genai": "specdemo.bench.peers",
    "llama-cpp": "specdemo.bench.llama_peers",
    "transformers": "specdemo.bench.transformers_peers",
}
"""Name: the module that opens it."""


@dataclass(frozen=True, slots=True, config=CONFIG)
class BenchOptions(PromptOptions):
    html: str | None = option(
        None, "write the report as one self-contained page with figures", metavar="FILE"
    )
    repeats: whole(1, 99) = option(1, "runs of each prompt; medians count", metavar="R")
    sweep_prompts: whole(0) | None = option(
        None,
        "run N of the prompts with every draft length from 1 to 12 as well",
        unset=f"{SWEEP_PROMPTS} with --html, else 0",
    )
    paper: bool = option(
        False, "the paper's own table instead (arXiv 2311.04951), its figures beside"
    )
    record: str | None = option(
        None, "record answers for --replay, and measure nothing", metavar="FILE"
    )
    replay: str | None = option(
        None, "decode recorded answers again over cost tables, without a clock", metavar="FILE"
    )
    costs: str | None = option(
        None,
        "cost table of --replay: of bench/cost_tables.json, or a file like it",
        metavar="NAME|FILE",
        unset="all",
    )
    without: listed("head", "model", "ngrams", "table") | None = option(
        None, "leave sources of draft tokens out of --replay", metavar="NAME[,NAME]"
    )


@dataclass(frozen=True, slots=True, config=CONFIG)
class AuditOptions(PromptOptions):
    draws: whole(0) = option(4000, "sampled answers of each kind; 0 leaves sampling out")
    sample_prompts: whole(0) = option(
        0, "sample the first N of the prompts in place of the audit's own"
    )


@click.command(cls=Command)
@options_of(BenchOptions, "asked", variables=False)
@json_option
@model_options
@settings_options
def bench(
    asked: BenchOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    from specdemo.bench import paper as papers
    from specdemo.bench import race
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    check_output(asked.html, "--html")
    if asked.paper and asked != BenchOptions(paper=True, repeats=asked.repeats):
        raise BadInput(
            "--paper has a prompt of its own; leave out --prompts, --limit, --peers, "
            "--sweep-prompts and --html."
        )
    chosen = asked.read()
    if asked.record or asked.replay:
        return _recorded(asked, chosen, json_file, choice, settings)
    sweep_prompts = asked.sweep_prompts
    if sweep_prompts is None:
        sweep_prompts = SWEEP_PROMPTS if asked.html else 0
    loaded = load_pair(choice)
    out = sys.stderr if json_file == "-" else sys.stdout
    with Session(loaded) as session:
        session.require_intact()
        say(f"{session.info.target}, draft model: {session.info.draft or 'none'}", out)
        if asked.paper:
            say(f'"{papers.PROMPT}", seconds from the prompt to the last token', out)
            report = papers.paper_table(session, settings)
            title = "The paper ran dolly-v2-12b with dolly-v2-3b, K = 5"
            show(title, papers.table(report), out)
        else:
            opened, left_out = [], []
            for peer in asked.peers or ():
                properties = session.target_properties(settings.numerics)
                more, reasons = import_module(PEERS[peer]).open_all(loaded, properties)
                opened += more
                left_out += reasons
            for sentence in left_out:
                say(sentence, out)
            plan = race.Plan(settings, asked.repeats, sweep_prompts)
            report = _show_bench(race.bench(session, chosen, plan, peers=opened), out)
    if json_file:
        write_json(to_json(report), json_file)
    if asked.html:
        from specdemo.bench.html import page

        Path(asked.html).write_text(page(report), encoding="utf-8")
    if not report.rows:
        reasons = [skipped.reason for skipped in report.details.skipped]
        raise RequestFailed(f"None of the prompts could be run: {reasons[0] if reasons else ''}")


def _recorded(
    asked: BenchOptions,
    prompts: Sequence[BenchPrompt],
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> None:
    """`bench --record` and `bench --replay`."""
    from specdemo.bench import replay
    from specdemo.session import Session

    check_output(asked.record, "--record")
    tables = replay.cost_tables(asked.costs)
    records = replay.read_records(asked.replay) if asked.replay else []
    loaded = load_pair(choice)
    if asked.record:
        with Session(loaded) as session:
            records = list(replay.record(session, prompts, settings))
        replay.write_records(records, asked.record)
        if not asked.replay:
            return
    rows = list(replay.replay_all(records, tables, loaded, asked.without or ()))
    show("Speed-up by cost table", rows, sys.stderr if json_file == "-" else sys.stdout)
    if json_file:
        write_json(json.dumps(rows, indent=1), json_file)


def _show_bench(events: Iterator, out: TextIO) -> Report:
    """Prints what `race.bench` yields as it comes; returns its report."""
    from tqdm import tqdm

    from specdemo.bench.race import Step
    from specdemo.bench.report import Report, Row, Skipped
    from specdemo.bench.tables import of_report

    form = "{percentage:3.0f}% |{bar:24}| {desc}"
    with tqdm(leave=False, disable=None, bar_format=form) as bar:
        for event in events:
            if isinstance(event, Step):
                bar.total, bar.n = event.total, event.done
                bar.set_description_str(printable(event.text, keep=""))
            elif isinstance(event, Skipped):
                say(f"skipped {event.id}: {event.reason}", out)
            elif isinstance(event, Row):
                speedup, identical = map(text, (event.speedup, event.identical))
                figures = f"{event.tokens} tokens, speed-up {speedup}, identical: {identical}"
                say(f"{event.task} {event.id}: {figures}", out)
            elif isinstance(event, Report):
                report = event
    for title, table in reversed(of_report(report).items()):
        show(title, table, out)
    if report.details.stopped:
        say("stopped before the end: figures are of the prompts finished until then", out)
    return report


@click.command(cls=Command)
@options_of(AuditOptions, "asked", variables=False)
@json_option
@model_options
@settings_options
def audit(
    asked: AuditOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> int:
    from specdemo.bench import audit as audits
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    chosen = asked.read()
    sampled = audits.sampled_settings(settings)
    loaded = load_pair(choice)
    with Session(loaded) as session:
        session.require_intact()
        properties = session.target_properties(settings.numerics)
        found = audits.audit(
            session,
            chosen,
            settings,
            draws=asked.draws,
            sample_prompts=asked.sample_prompts,
            stop_ids=loaded.stop_ids,
            peers={
                name: opening
                for peer in asked.peers or ()
                for name, opening in import_module(PEERS[peer])
                .to_audit(loaded, properties, sampled.draft_tokens)
                .items()
            },
        )
    _show_audit(found, sys.stderr if json_file == "-" else sys.stdout)
    if json_file:
        write_json(to_json(found), json_file)
    if not found.lossless:
        click.echo("specdemo: speculative decoding changes the output of this pair", err=True)
        return FAILURE
    return 0


def _show_audit(audit: Audit, out: TextIO) -> None:

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
