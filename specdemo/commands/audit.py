"""`specdemo audit`: tests which engines are lossless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import click
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from specdemo.audit import auditor
from specdemo.audit.auditor import AuditReport
from specdemo.audit.engines import AuditedEngine, audited, imported, peers_of
from specdemo.audit.properties import DRAFT_TOKENS, MAX_TOP_K, PROPERTIES, Cell, Plan
from specdemo.bench.prompts import PeerName, PromptOptions
from specdemo.commands import shared
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.machine.terminal import Progress, Table, printable, progress_bar
from specdemo.options import CONFIG, SPLIT, Line, Whole, option
from specdemo.pairs.registry import OWN, ModelChoice
from specdemo.runs.report_page import versions
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json

if TYPE_CHECKING:
    from specdemo.runs.session import Session

MANNERS = "| Be brief.| Give reasons.| Use a list.| Be formal.| Use rhymes.| Joke.".split("|")
"""Endings that make more prompts of those of a set."""


def _engine_name(name: str) -> str:
    peers = get_args(PeerName)
    if name not in peers and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ValueError(f"it must be {', '.join(peers)} or the MODULE:CLASS of an engine of yours")
    return name


def _url(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("it must be a URL, such as http://127.0.0.1:8000")
    return text


Url = Annotated[Line, AfterValidator(_url)]
EngineName = Annotated[str, AfterValidator(_engine_name)]
PropertyName = Literal[*PROPERTIES]  # type: ignore[valid-type]  # read by pydantic only


@dataclass(frozen=True, slots=True, config=CONFIG)
class AuditOptions(PromptOptions):
    peers: Annotated[tuple[EngineName, ...], SPLIT] | None = option(  # type: ignore[assignment]
        None,
        "also audit openvino-genai, llama-cpp, transformers, optimum-intel, or an engine of yours",
        metavar="NAME|MODULE:CLASS[,...]",
    )
    draws: Annotated[Whole, Field(ge=0, le=20_000)] = option(
        4000, "most sampled answers of a method; 0 leaves sampling out"
    )
    only: Annotated[tuple[PropertyName, ...], SPLIT] | None = option(
        None, "test these properties only", metavar="|".join(PROPERTIES), unset="all"
    )
    server: Url = option("", "audit an OpenAI-compatible server, and no pair", metavar="URL")
    server_baseline: Url = option("", "the same model without speculative decoding", metavar="URL")
    server_seed: bool = option(
        False, "the server promises the same answer for a seed with and without drafts"
    )

    def cases(self) -> list[str]:
        """As many instructions as --limit says; those of a smaller set are asked in several
        manners."""
        prompts = self.read()
        cases = [prompt.instruction + manner for manner in MANNERS for prompt in prompts]
        return cases[: max(self.limit or 0, len(prompts))]


@shared.sectioned()
@shared.options_of(AuditOptions, "options", variables=False)
@shared.answer_options
def audit(
    options: AuditOptions,
    threads: int | None,
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> None:
    shared.check_output(options.html, "--html")
    if settings.top_k > MAX_TOP_K:
        raise BadInput(f"--top-k is {settings.top_k}; the audit takes at most {MAX_TOP_K}.")
    file = None if json_file in (None, "-") else Path(json_file or "")
    if not options.server and (options.server_baseline or options.server_seed):
        raise BadInput("--server-baseline and --server-seed need --server beside them.")
    if options.server and options.peers:
        raise BadInput("--server is audited alone; leave out --peers.")
    plan = Plan(options.cases(), settings, options.draws, options.only or (*PROPERTIES,))
    report = AuditReport(settings=settings, prompts=len(plan.prompts), draws=plan.draws)
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar())
        if options.server:
            from specdemo.audit.server_engine import ServerEngine

            baseline = options.server_baseline or None
            server = ServerEngine(options.server, baseline, options.server_seed)
            engines: Iterable[AuditedEngine] = [server]
            pair = ""
        else:
            from specdemo.runs.session import Session

            loaded = shared.load_pair(choice)
            session = stack.enter_context(Session(loaded, threads=threads))
            loaded.check.require()
            report.pair = info = session.info
            models = " with ".join(filter(None, (info.target, info.draft)))
            pair = models if info.name == OWN else info.name
            pair += f", {threads} threads" if threads else ""
            engines = _engines(session, options, settings, report.left_out)
        for progress in auditor.audit(engines, plan, report, pair):
            bar(Progress(printable(progress.text), progress.done, progress.total))
            if file:
                shared.write_file(as_json(report), str(file))
    report.versions = versions()  # with those imported since
    shared.write_report(report, json_file, _tables(report))
    for sentence in auditor.verdicts(report.rows):
        click.echo(printable(sentence), err=json_file == "-")
    if options.html:
        shared.write_file(auditor.page(report), options.html)
    if any(row.failures for row in report.rows if row.engine in OURS):
        raise RequestFailed("Speculative decoding changes the output.")


OURS = "specdemo", "server"
"""The engines whose failures are those of the command."""


def _engines(
    session: Session, options: AuditOptions, settings: Settings, left_out: dict[str, str]
) -> Iterator[AuditedEngine]:
    """Ours, then the peers. One that cannot run is named in `left_out` and on stderr."""
    from specdemo.audit.own_engine import own_engines

    adapters = {name: imported(name) for name in options.peers or () if ":" in name}
    yield from own_engines(session, settings.drafter)
    properties = session.target_properties(settings.numerics)
    for name in options.peers or ():
        if name in adapters:
            yield adapters[name]()
            continue
        try:
            ways = list(peers_of(name, session.loaded, properties))
        except (BadInput, MissingPackage) as error:
            left_out[name] = str(error)
            click.echo(f"{name} is left out: {error}", err=True)
            continue
        yield from audited(ways, settings.draft_tokens or DRAFT_TOKENS)


def _tables(report: AuditReport) -> dict[str, Table]:
    """A table for each engine, with a column for each of its methods, and one of the notes."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    notes = []
    for row in report.rows:
        engine = ", ".join(filter(None, (row.engine, row.pair)))
        table = tables.setdefault(engine, {})
        for name, cell in row.cells.items():
            title = PROPERTIES[name].title
            table.setdefault(name, {"": title})[row.method] = _cell(name, cell)
            if cell.note and cell.result != "not offered":
                subject = {"engine": engine, "method": row.method, "property": title}
                notes.append(subject | {"result": cell.result, "note": cell.note})
    shown: dict[str, Table] = {engine: [*table.values()] for engine, table in tables.items()}
    return shown | ({"Notes": notes} if notes else {})


def _cell(name: str, cell: Cell) -> str:
    share = f", {cell.failures / cell.cases:.1%} rejected" if name == "self" and cell.cases else ""
    return cell.result.replace("not offered", "-") + share
