"""`specdemo bench` and `specdemo audit`: measure prompts with and without speculative decoding, and
test that it is lossless, of our pair and of a peer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from pydantic.dataclasses import dataclass
from tqdm import tqdm

from specdemo.bench.prompts import PromptOptions
from specdemo.cli import (
    FAILURE,
    answer_options,
    check_output,
    load_pair,
    options_of,
    write_json,
)
from specdemo.errors import RequestFailed
from specdemo.settings import CONFIG, ModelChoice, listed, option, whole
from specdemo.terminal import printable, say, show, text, where
from specdemo.trace import as_json

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit
    from specdemo.bench.report import Report
    from specdemo.settings import Settings


@dataclass(frozen=True, slots=True, config=CONFIG)
class BenchOptions(PromptOptions):
    html: str | None = option(
        None, "write the report as one self-contained page with figures", metavar="FILE"
    )
    repeats: whole(1, 99) = option(1, "runs of each prompt; medians count", metavar="R")
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


@click.command()
@options_of(BenchOptions, "asked", variables=False)
@answer_options
def bench(
    asked: BenchOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    check_output(asked.html, "--html")
    out = sys.stderr if json_file == "-" else sys.stdout
    if asked.reference:
        result = _agreement(asked, choice, settings, out)
    elif asked.record or asked.replay:
        result = _replay(asked, choice, settings, out)
    else:
        report = _bench(asked, choice, settings, out)
        if not report.rows:
            raise RequestFailed(f"None of the prompts could be run: {report.skipped[0].reason}")
        if asked.html:
            Path(asked.html).write_text(report.page(), encoding="utf-8")
        result = report.as_dict()
    if json_file:
        write_json(as_json(result), json_file)


def _bench(asked: BenchOptions, choice: ModelChoice, settings: Settings, out: TextIO) -> Report:
    """Prints what `race.bench` yields as it comes, and its report."""
    from specdemo.bench import peers, race
    from specdemo.bench.report import Row, Skipped
    from specdemo.session import Session

    prompts, loaded = asked.read(), load_pair(choice)
    form = "{percentage:3.0f}% |{bar:24}| {desc}"
    with Session(loaded) as session, tqdm(leave=False, disable=None, bar_format=form) as bar:
        session.require_intact()
        say(f"{session.info.target}, draft model: {session.info.draft or 'none'}", out)
        properties = session.target_properties(settings.numerics)
        others = peers.peers_of(asked.peers or (), loaded, properties)
        more = {"repeats": asked.repeats, "peers": list(peers.fitting(others))}
        for event in race.bench(session, prompts, settings, **more):
            if isinstance(event, race.Step):
                bar.total, bar.n = event.total, event.done
                bar.set_description_str(printable(event.text, keep=""))
            elif isinstance(event, Skipped):
                say(f"skipped {event.id}: {event.reason}", out)
            elif isinstance(event, Row):
                figures = f"{event.figures.tokens} tokens, speed-up {text(event.figures.speedup)}"
                same = f"identical: {text(event.identical)}"
                say(f"{event.task} {event.id}: {figures}, {same}", out)
    for title, table in reversed(event.tables().items()):
        show(title, table, out)
    return event


def _agreement(asked: BenchOptions, choice: ModelChoice, settings: Settings, out: TextIO) -> dict:
    """Drafts change no answer, so none is loaded."""
    from specdemo.bench.agreement import agreement
    from specdemo.models import measured
    from specdemo.models.registry import NO_DRAFT

    prompts = asked.read()
    loaded = load_pair(replace(choice, draft=NO_DRAFT if choice.pair else ""))
    compared = load_pair(ModelChoice(asked.reference, draft=NO_DRAFT))
    found = agreement(compared, loaded, prompts, settings)
    names = loaded.info.name, compared.info.name
    measured.remember("agreement", " ".join(names), found["agreement"])
    share, same = f"{100 * found['agreement']:.1f} %", f"{found['identical']} of {found['prompts']}"
    say(
        f"{names[0]} chooses the token of {names[1]} at {share} of {found['tokens']} places; "
        f"{same} answers are the same",
        out,
    )
    return dict(zip(("pair", "reference"), names, strict=True)) | found


def _replay(asked: BenchOptions, choice: ModelChoice, settings: Settings, out: TextIO) -> list:
    """`bench --record` and `bench --replay`; the rows of the second."""
    from specdemo.bench import replay
    from specdemo.session import Session

    check_output(asked.record, "--record")
    tables = replay.cost_tables(asked.costs)
    records = replay.read_records(asked.replay) if asked.replay else []
    loaded = load_pair(choice)
    if asked.record:
        with Session(loaded) as session:
            records = list(replay.record(session, asked.read(), settings))
        replay.write_records(records, asked.record)
        if not asked.replay:
            return []
    rows = list(replay.replay_all(records, tables, loaded, asked.without or ()))
    show("Speed-up by cost table", rows, out)
    return rows


@click.command()
@options_of(AuditOptions, "asked", variables=False)
@answer_options
def audit(
    asked: AuditOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> int:
    from specdemo.bench import audit as audits
    from specdemo.bench import peers
    from specdemo.session import Session

    chosen = asked.read()
    sampled = audits.sampled_settings(settings)
    loaded = load_pair(choice)
    with Session(loaded) as session:
        session.require_intact()
        properties = session.target_properties(settings.numerics)
        others = peers.peers_of(asked.peers or (), loaded, properties)
        found = audits.audit(
            session,
            chosen,
            settings,
            draws=asked.draws,
            stop_ids=loaded.stop_ids,
            peers=peers.to_audit(others, sampled.draft_tokens),
        )
    _show_audit(found, sys.stderr if json_file == "-" else sys.stdout)
    if json_file:
        write_json(as_json(found), json_file)
    if not found.lossless:
        click.echo("specdemo: speculative decoding changes the output of this pair", err=True)
        return FAILURE
    return 0


def _show_audit(audit: Audit, out: TextIO) -> None:
    compared = {"greedy": audit.greedy, "same seed": audit.same_seed}
    compared |= {f"{name}, greedy": peer["greedy"] for name, peer in audit.peers.items()}
    for name, one in compared.items():
        if one is not None:
            same = f"{one.identical} of {one.prompts} answers identical"
            say(f"{name}: {same} to autoregressive decoding ({one.tokens} tokens)", out)
            for id, difference in one.differences[:10]:
                say(f"  {id}: {where(difference)}", out)
    for name, peer in audit.peers.items():
        say(f"{name}: {peer['note']}", out)
    cells = [*audit.sampling_cells, *(peer["sampling"] for peer in audit.peers.values())]
    first = {"drafter": "", "coupling": "", "batched": ""}
    table = [first | cell for cell in cells if cell]
    show("Sampling, against the exact distribution", table, out)
