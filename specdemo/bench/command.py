"""`specdemo bench`: measure prompts with and without speculative decoding, beside peers; print, and
write JSON and HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specdemo.cli import (
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
    from specdemo.bench.race import Event
    from specdemo.bench.report import Report
    from specdemo.bench.screen import Screen
    from specdemo.session import Session
    from specdemo.settings import ModelChoice, Settings

SWEEP_PROMPTS = 8


def prompt_options(command: Callable) -> Callable:
    """Adds --prompts and --limit; passes `prompts` (a file or None) and `limit`."""
    limit = click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Run only N prompts, spread evenly over the tasks.",
    )
    prompts = click.option(
        "--prompts",
        metavar="FILE",
        help="JSONL with id, task and instruction. [default: a small set of its own]",
    )
    return prompts(limit(command))


def peers_option(command: Callable) -> Callable:
    """Adds --peers; passes `peers`, a name or None."""
    return click.option(
        "--peers",
        type=click.Choice(["openvino-genai"]),
        help="Also run another engine on the same IR files.",
    )(command)


def _html_file(value: str | None) -> str | None:
    if value == "-":
        raise BadInput("--html - is not a file; give the page's name.")
    return check_output(value, "--html")


@click.command(cls=Command)
@prompt_options
@peers_option
@json_option
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    callback=lambda context, param, value: _html_file(value),
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
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread

    if paper and (prompts or limit or peers or html_file or sweep_prompts):
        raise BadInput(
            "--paper has a prompt of its own; leave out --prompts, --limit, --peers, "
            "--sweep-prompts and --html."
        )
    chosen = spread(read_prompts(prompts or BUILT_IN), limit)
    if sweep_prompts is None:
        sweep_prompts = SWEEP_PROMPTS if html_file else 0
    loaded = load_pair(choice)

    from specdemo.bench.race import Plan
    from specdemo.bench.race import bench as run
    from specdemo.bench.report import to_json
    from specdemo.bench.screen import Screen
    from specdemo.session import Session

    with ExitStack() as stack:
        session = stack.enter_context(closing(Session(loaded)))
        screen = stack.enter_context(Screen(json_file))
        screen.line(f"{session.info.target}, draft model: {session.info.draft or 'none'}")
        if paper:
            _paper(session, settings, screen, json_file)
            return
        opened = []
        if peers:
            from specdemo.bench.peers import Genai

            genai = stack.enter_context(Genai(loaded))
            opened, left_out = genai.open_all(session.target_properties(settings.numerics))
            for sentence in left_out:
                screen.line(sentence)
        events = run(session, chosen, Plan(settings, repeats, sweep_prompts), peers=opened)
        report = _show(events, screen)
    if json_file:
        write_json(to_json(report), json_file)
    if html_file:
        from specdemo.bench.html import page

        Path(html_file).write_text(page(report), encoding="utf-8")
    if not report.rows:
        reasons = [skipped.reason for skipped in report.details.skipped]
        raise RequestFailed(f"None of the prompts could be run: {reasons[0] if reasons else ''}")


def _show(events: Iterator[Event], screen: Screen) -> Report:
    """Prints what `bench` yields as it comes; returns its report."""
    from specdemo.bench import tables
    from specdemo.bench.race import Step
    from specdemo.bench.report import Report, Row, Skipped

    for event in events:
        if isinstance(event, Step):
            screen.step(event)
        elif isinstance(event, Skipped):
            screen.line(f"skipped {event.id}: {event.reason}")
        elif isinstance(event, Row):
            screen.line(
                f"{event.task} {event.id}: {event.tokens} tokens, speed-up "
                f"{tables.text(event.speedup)}, identical: {tables.text(event.identical)}"
            )
        elif isinstance(event, Report):
            report = event
    screen.table("Prompts", tables.prompts(report))
    screen.table("Decoding", tables.decoding(report))
    screen.table("Summary", tables.summary(report))
    screen.table("Other engines", tables.peers(report))
    if report.details.stopped:
        screen.line("stopped before the end: figures are of the prompts finished until then")
    return report


def _paper(session: Session, settings: Settings, screen: Screen, json_file: str | None) -> None:
    from specdemo.bench.paper import PROMPT, paper_table
    from specdemo.bench.report import to_json
    from specdemo.bench.tables import paper

    screen.line(f'"{PROMPT}", seconds from the prompt to the last token')
    table = paper_table(session, settings, screen.step)
    screen.table("The paper ran dolly-v2-12b with dolly-v2-3b, K = 5", paper(table.rows))
    if json_file:
        write_json(to_json(table), json_file)
