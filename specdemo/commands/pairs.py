"""`specdemo pairs`: the pairs, what fits this machine, and what is here."""

import click

from specdemo.commands.shared import json_option, write_report


@click.command()
@json_option
def pairs(json_file: str | None) -> None:
    from specdemo.pairs.registry import PAIRS

    rows = [
        {
            "name": pair.name,
            "use": pair.use,
            "target": pair.target.name,
            "draft": pair.draft.name if pair.draft else None,
            "drafts": [draft.name for draft in pair.drafts],
            "download_bytes": pair.download_bytes,
            "memory_bytes": pair.memory_bytes,
            "fits": pair.fits,
            "ready": pair.is_here(),
            "expected": pair.read_expected_speed(),
            "measured": pair.read_facts(),
        }
        for pair in PAIRS
    ]
    write_report(rows, json_file, {"The pairs on this machine": rows})
