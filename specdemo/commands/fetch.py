"""`specdemo fetch PAIR`: gets a pair ready."""

import click

from specdemo.commands.shared import load_pair
from specdemo.errors import DamagedModel, naming


@click.command()
@click.argument("pair", help="A name that `specdemo pairs` lists.")
def fetch(pair: str) -> None:
    from specdemo.pairs.registry import ModelChoice, find_pair

    with naming(lambda field: "PAIR"):
        choice = ModelChoice(find_pair(pair).name)
    loaded = load_pair(choice)
    try:
        loaded.check.require()
    except DamagedModel as error:
        click.echo(str(error), err=True)
        loaded = load_pair(choice)
    info = loaded.info
    click.echo(f"{info.name} is ready: {info.target}, draft by {info.draft or 'n-gram lookup'}")
