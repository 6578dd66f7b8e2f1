"""`specdemo bench` and `specdemo audit`: measure prompts with and without speculative decoding, and
test that it is lossless, of our pair and of a peer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
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
from specdemo.settings import CONFIG, ModelChoice, listed, option, whole
from specdemo.terminal import printable, say, show, text, where

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit
    from specdemo.bench.prompts import BenchPrompt
    from specdemo.bench.report import Report
    from specdemo.settings import Settings

SWEEP_PROMPTS = 8


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
    reference: str | None = option(
        None,
        "measure how often the target chooses as that of this pair, and nothing else",
        metavar="PAIR",
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


def _command(options: type) -> Callable:
    """A command with these options, and those of models and settings."""

    def decorated(function: Callable) -> click.Command:
        function = json_option(model_options(settings_options(function)))
        return click.command(cls=Command)(options_of(options, "asked", variables=False)(function))

    return decorated


@_command(BenchOptions)
def bench(
    asked: BenchOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    from specdemo.bench import paper, peers, race
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    check_output(asked.html, "--html")
    if asked.paper and asked != BenchOptions(paper=True, repeats=asked.repeats):
        raise BadInput(
            "--paper has a prompt of its own; leave out --prompts, --limit, --peers, "
            "--sweep-prompts and --html."
        )
    chosen = asked.read()
    if asked.reference:
        return _compared(asked.reference, chosen, json_file, choice, settings)
    if asked.record or asked.replay:
        return _recorded(asked, chosen, json_file, choice, settings)
    loaded = load_pair(choice)
    out = sys.stderr if json_file == "-" else sys.stdout
    with Session(loaded) as session:
        session.require_intact()
        say(f"{session.info.target}, draft model: {session.info.draft or 'none'}", out)
        if asked.paper:
            say(f'"{paper.PROMPT}", seconds from the prompt to the last token', out)
            report = paper.paper_table(session, settings)
            show("The paper ran dolly-v2-12b with dolly-v2-3b, K = 5", report.table(), out)
        else:
            properties = session.target_properties(settings.numerics)
            found = peers.pipelines(asked.peers or (), loaded, properties)
            sweep_prompts = asked.sweep_prompts
            if sweep_prompts is None:
                sweep_prompts = SWEEP_PROMPTS if asked.html else 0
            runs = asked.repeats, sweep_prompts
            running = race.Bench(session, chosen, settings, *runs, peers.open_all(found))
            report = _show_bench(running, out)
    if json_file:
        write_json(to_json(report), json_file)
    if asked.html:
        from specdemo.bench.html import page

        Path(asked.html).write_text(page(report), encoding="utf-8")
    if not report.rows:
        reason = report.skipped[0].reason if report.skipped else ""
        raise RequestFailed(f"None of the prompts could be run: {reason}")


def _compared(
    reference: str,
    prompts: Sequence[BenchPrompt],
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> None:
    """`bench --reference`. Drafts change no answer, so none is loaded."""
    from specdemo.bench.agreement import agreement
    from specdemo.models import measured
    from specdemo.models.registry import NO_DRAFT

    pair = replace(choice, draft=NO_DRAFT if choice.pair else "")
    loaded = [load_pair(one) for one in (ModelChoice(reference, draft=NO_DRAFT), pair)]
    found = agreement(*loaded, prompts, settings)
    names = loaded[1].info.name, loaded[0].info.name
    measured.remember("agreement", " ".join(names), found.share)
    if json_file:
        figures = {"pair": names[0], "reference": names[1], **asdict(found)}
        write_json(json.dumps(figures | {"agreement": found.share}, indent=1), json_file)
    if json_file != "-":
        say(
            f"{names[0]} chooses the token of {names[1]} at {100 * found.share:.1f} % of "
            f"{found.tokens} places; {found.identical} of {found.prompts} answers are the same",
            sys.stdout,
        )


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


def _show_bench(events: Iterable, out: TextIO) -> Report:
    """Prints what `race.Bench` yields as it comes; returns its report."""
    from tqdm import tqdm

    from specdemo.bench.race import Step
    from specdemo.bench.report import Row, Skipped
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
                tokens, speedup = event.figures.tokens, text(event.figures.speedup)
                same = f"identical: {text(event.identical)}"
                say(f"{event.task} {event.id}: {tokens} tokens, speed-up {speedup}, {same}", out)
    for title, table in reversed(of_report(event).items()):
        show(title, table, out)
    if event.stopped:
        say("stopped before the end: figures are of the prompts finished until then", out)
    return event


@_command(AuditOptions)
def audit(
    asked: AuditOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> int:
    from specdemo.bench import audit as audits
    from specdemo.bench import peers
    from specdemo.bench.report import to_json
    from specdemo.session import Session

    chosen = asked.read()
    sampled = audits.sampled_settings(settings)
    loaded = load_pair(choice)
    with Session(loaded) as session:
        session.require_intact()
        properties = session.target_properties(settings.numerics)
        pipelines = peers.pipelines(asked.peers or (), loaded, properties)
        found = audits.audit(
            session,
            chosen,
            settings,
            draws=asked.draws,
            sample_prompts=asked.sample_prompts,
            stop_ids=loaded.stop_ids,
            peers=peers.to_audit(pipelines, sampled.draft_tokens),
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
    compared |= {f"{name}, greedy": peer["greedy"] for name, peer in audit.peers.items()}
    for name, one in compared.items():
        if one is not None:
            same = f"{one['identical']} of {one['prompts']} answers identical"
            say(f"{name}: {same} to autoregressive decoding ({one['tokens']} tokens)", out)
            for differing in one["differences"][:10]:
                say(f"  {differing['id']}: {where(differing['difference'])}", out)
    for name, peer in audit.peers.items():
        say(f"{name}: {peer['note']}", out)
    cells = [*audit.sampling_cells, *(peer["sampling"] for peer in audit.peers.values())]
    first = {"drafter": "", "coupling": "", "batched": ""}
    table = [first | cell for cell in cells if cell]
    show("Sampling, against the exact distribution", table, out)
