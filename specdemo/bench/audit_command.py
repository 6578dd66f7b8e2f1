"""`specdemo audit`: test that speculative decoding is lossless, of our pair and of a peer."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from specdemo.bench.command import peers_option, prompt_options
from specdemo.cli import (
    FAILURE,
    Command,
    json_option,
    load_pair,
    model_options,
    settings_options,
    write_json,
)

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit
    from specdemo.bench.screen import Screen
    from specdemo.settings import ModelChoice, Settings


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
@peers_option
@json_option
@model_options
@settings_options
def audit(
    prompts: str | None,
    limit: int | None,
    draws: int,
    sample_prompts: int,
    peers: str | None,
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> int:
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread

    chosen = spread(read_prompts(prompts or BUILT_IN), limit)

    from specdemo.bench import audit as audits
    from specdemo.bench.report import to_json
    from specdemo.bench.screen import Screen
    from specdemo.session import Session

    sampled = audits.sampled_settings(settings)
    loaded = load_pair(choice)
    with ExitStack() as stack:
        session = stack.enter_context(closing(Session(loaded)))
        screen = stack.enter_context(Screen(json_file))
        opened = {}
        if peers:
            from specdemo.bench.peers import Genai

            genai = stack.enter_context(Genai(loaded))
            properties = session.target_properties(settings.numerics)
            opened = genai.to_audit(properties, sampled.draft_tokens)
        found = audits.audit(
            session,
            chosen,
            settings,
            draws=draws,
            sample_prompts=sample_prompts,
            stop_ids=loaded.stop_ids,
            peers=opened,
            on_step=screen.step,
        )
        _show(found, screen)
    if json_file:
        write_json(to_json(found), json_file)
    if not found.lossless:
        click.echo("specdemo: speculative decoding changes the output of this pair", err=True)
        return FAILURE
    return 0


def _show(audit: Audit, screen: Screen) -> None:
    from specdemo.bench.tables import where

    compared = {"greedy": audit.greedy, "same seed": audit.same_seed}
    compared |= {f"{name}, greedy": peer.greedy for name, peer in audit.peers.items()}
    for name, one in compared.items():
        if one is not None:
            screen.line(
                f"{name}: {one.identical} of {one.prompts} answers identical to autoregressive "
                f"decoding ({one.tokens} tokens)"
            )
            for differing in one.differences[:10]:
                screen.line(f"  {differing.id}: {where(differing.difference)}")
    for name, peer in audit.peers.items():
        screen.line(f"{name}: {peer.note}")
    of_peers = [peer.sampling for peer in audit.peers.values() if peer.sampling]
    cells = [asdict(cell) for cell in (*audit.sampling_cells, *of_peers)]
    names = ("drafter", "coupling", "batched")
    table = [{**{name: cell[name] for name in names}, **cell} for cell in cells]
    screen.table("Sampling, against the exact distribution", table)
