"""`specdemo machine`: what was measured here."""

import dataclasses
from typing import Any

import click

from specdemo.commands.shared import json_option, write_report


@click.command()
@click.option("--forget", is_flag=True, help="Drop all of it: the next start measures anew.")
@json_option
def machine(forget: bool, json_file: str | None) -> None:
    from specdemo.host import hardware, measured

    if forget:
        return click.echo(f"files dropped: {measured.forget()}")
    figures: list[dict[str, Any]] = []
    tables: dict[str, list[dict[str, str]]] = {hardware.describe(): []}
    for about, profile in measured.profiles():
        figures.append({"about": about, "profile": dataclasses.asdict(profile)})
        model = f"{about['target']}, {about['devices']}, {about['threads']} threads"
        for numerics, target in profile.targets.items():
            how = ", ".join("=".join(pair) for pair in target.properties)
            title = (
                f"{model}, {numerics} ({how}): {target.invariance or 'not compared'}\n"
                f"ms a forward by tokens ({1e3 * target.change:.1f} more for a change of their "
                f"number), measured {target.measured or 'in passing'}"
            )
            costs = sorted(target.costs.items())
            tables[title] = [{str(size): f"{1e3 * seconds:.1f}" for size, seconds in costs}]
    write_report(figures, json_file, tables)
