"""`specdemo audit`: tests that speculative decoding is lossless."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TextIO

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import PromptOptions
from specdemo.commands.bench import session_with_peers
from specdemo.commands.shared import answer_options, options_of, write_json
from specdemo.errors import RequestFailed
from specdemo.host.terminal import show
from specdemo.options import CONFIG, Whole, option
from specdemo.pairs.choice import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json, where

if TYPE_CHECKING:
    from specdemo.bench.auditor import Audit


@dataclass(frozen=True, slots=True, config=CONFIG)
class AuditOptions(PromptOptions):
    draws: Annotated[Whole, Field(ge=0)] = option(
        4000, "sampled answers of each kind; 0 leaves sampling out"
    )


@click.command()
@options_of(AuditOptions, "asked", variables=False)
@answer_options
def audit(
    asked: AuditOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    from specdemo.bench import auditor as audits
    from specdemo.bench.peers import to_audit
    from specdemo.bench.report import head

    chosen = asked.read()
    sampled = audits.sampled_settings(settings)
    with session_with_peers(asked, choice, settings) as (session, peers):
        report = head(session, settings)
        result = audits.audit(
            session,
            chosen,
            settings,
            draws=asked.draws,
            peers=to_audit(peers, sampled.draft_tokens),
        )
    _show_audit(result, sys.stderr if json_file == "-" else sys.stdout)
    if json_file:
        write_json(as_json({**report, **asdict(result)}), json_file)
    if not result.lossless:
        raise RequestFailed("Speculative decoding changes the output of this pair.")


def _show_audit(audit: Audit, out: TextIO) -> None:
    compared = {"greedy": audit.greedy, "same seed": audit.same_seed}
    compared |= {f"{name}, greedy": peer["greedy"] for name, peer in audit.peers.items()}
    rows = []
    for name, one in compared.items():
        if one:
            parted = "; ".join(f"{id}: {where(place)}" for id, place in one.differences)
            rows.append({"": name, **asdict(one), "differences": parted})
    show("Answers, against autoregressive decoding", rows, out)
    notes = [{"": name, "note": peer["note"]} for name, peer in audit.peers.items()]
    show("Other engines", notes, out)
    cells = [*audit.sampling_cells, *(peer["sampling"] for peer in audit.peers.values())]
    first = {"drafter": "", "coupling": "", "batched": ""}
    show("Sampling, against the exact distribution", [first | cell for cell in cells if cell], out)
