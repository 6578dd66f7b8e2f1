"""`specdemo audit`: tests which engines are lossless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import BenchPrompt, PromptOptions
from specdemo.commands.shared import (
    answer_options,
    check_output,
    load_pair,
    options_of,
    write_json,
    write_report,
)
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.host.terminal import Progress, Table, printable, progress_bar
from specdemo.options import CONFIG, SPLIT, Line, Whole, option
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json

if TYPE_CHECKING:
    from specdemo.bench.engines import AuditedEngine
    from specdemo.runs.session import Session

MANNERS = (
    "",
    " Be brief.",
    " Give reasons.",
    " Use a list.",
    " Be formal.",
    " Use rhymes.",
    " Joke.",
)
"""Endings that make more prompts of those of a set."""

EngineName = Annotated[
    str, Field(pattern=r"^(openvino-genai|llama-cpp|transformers|optimum-intel|[\w.]+:\w+)$")
]
PropertyName = Literal[
    "greedy", "seed", "repeat", "batch", "sampling", "end", "stop", "schema", "penalties", "context"
]


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
    html: str | None = option(None, "write the report as one self-contained page", metavar="FILE")
    only: Annotated[tuple[PropertyName, ...], SPLIT] | None = option(
        None, "test these properties only", metavar="|".join(get_args(PropertyName)), unset="all"
    )
    resume: bool = option(False, "go on with the report in the --json file, and keep its cells")
    threads: Annotated[Whole, Field(ge=1, le=256)] | None = option(
        None, "processor threads of an inference", unset="all"
    )
    server: Line = option("", "audit an OpenAI-compatible server, and no pair", metavar="URL")
    server_baseline: Line = option("", "the same model without speculative decoding", metavar="URL")
    server_seed: bool = option(
        False, "the server promises the same answer for a seed with and without drafts"
    )

    def cases(self) -> tuple[BenchPrompt, ...]:
        """As many prompts as --limit says; a set with fewer is asked in several manners."""
        prompts, limit = self.read(), self.limit or 0
        more = [
            BenchPrompt(f"{prompt.id}{manner}", prompt.task, prompt.instruction + manner)
            for manner in MANNERS
            for prompt in prompts
        ]
        return tuple(more[: max(limit, len(prompts))])


@click.command()
@options_of(AuditOptions, "options", variables=False)
@answer_options
def audit(
    options: AuditOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    check_output(options.html, "--html")
    from specdemo.bench import auditor, properties
    from specdemo.bench.report import head

    if settings.top_k > properties.MAX_TOP_K:
        most = properties.MAX_TOP_K
        raise BadInput(f"--top-k is {settings.top_k}; the audit takes at most {most}.")
    if options.resume and (json_file in (None, "-") or not Path(json_file or "").is_file()):
        raise BadInput("--resume needs --json with the file of an earlier report.")
    only = options.only or get_args(PropertyName)
    plan = properties.Plan(options.cases(), settings, options.draws, only)
    report: dict[str, Any] = {"rows": [], "left_out": {}}
    if options.resume:
        report = json.loads(Path(json_file or "").read_text(encoding="utf-8"))
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar())
        if options.server:
            engines: Iterator[AuditedEngine] = _server(options)
            info, pair = None, ""
        else:
            from specdemo.pairs.registry import OWN
            from specdemo.runs.session import Session

            loaded = load_pair(choice)
            session = stack.enter_context(Session(loaded, threads=options.threads))
            loaded.check.require()
            info = session.info
            own = " with ".join(filter(None, (info.target, info.draft)))
            pair = own if info.name == OWN else info.name
            pair += f", {options.threads} threads" if options.threads else ""
            engines = _engines(session, options, settings, report)
        report |= head(info, settings)
        report["prompts"], report["draws"] = len(plan.prompts), plan.draws
        for event in auditor.audit(engines, plan, report, pair):
            if isinstance(event, Progress):
                bar(Progress(printable(event.text), event.done, event.total))
            elif json_file not in (None, "-"):
                write_json(as_json(event), json_file)
    report["versions"] = head(info, settings)["versions"]  # with those imported since
    write_report(report, json_file, _tables(report))
    if options.html:
        from specdemo.bench.audit_page import page

        Path(options.html).write_text(page(json.loads(as_json(report))), encoding="utf-8")
    if any(auditor.failures(row) for row in report["rows"] if row["engine"] in OURS):
        raise RequestFailed("Speculative decoding changes the output.")


OURS = "specdemo", "server"
"""The engines whose failures are those of the command."""


def _server(options: AuditOptions) -> Iterator[AuditedEngine]:
    from specdemo.bench.server_engine import ServerEngine

    yield ServerEngine(options.server, options.server_baseline or None, options.server_seed)


def _engines(
    session: Session, options: AuditOptions, settings: Settings, report: dict[str, Any]
) -> Iterator[AuditedEngine]:
    """Ours, then the peers. One that cannot run is named in the report and on stderr."""
    from specdemo.bench import engines, peers
    from specdemo.bench.properties import DRAFT_TOKENS

    yield from engines.own_engines(session, settings.drafter)
    properties = session.target_properties(settings.numerics)
    for name in options.peers or ():
        if ":" in name:
            yield engines.imported(name)
            continue
        try:
            ways = list(peers.peers_of(name, session.loaded, properties))
        except (BadInput, MissingPackage) as error:
            report["left_out"][name] = str(error)
            click.echo(f"{name} is left out: {error}", err=True)
            continue
        report["left_out"].pop(name, None)
        yield from peers.audited(ways, settings.draft_tokens or DRAFT_TOKENS)


def _tables(report: dict[str, Any]) -> dict[str, Table]:
    from specdemo.bench.auditor import failures
    from specdemo.bench.properties import PROPERTIES

    results, wrong = [], []
    for row in report["rows"]:
        subject = {name: row[name] for name in ("engine", "method", "pair")}
        cells = {
            title: row["cells"][name]["result"].replace("not offered", "-")
            for name, (title, _) in PROPERTIES.items()
            if name in row["cells"]
        }
        results.append(subject | cells)
        for name, cell in failures(row).items():
            wrong.append(subject | {"property": PROPERTIES[name][0], "why": cell["note"]})
    return {"Who is lossless": results} | ({"Failures": wrong} if wrong else {})
