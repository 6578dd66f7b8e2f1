"""`specdemo train-draft`."""

import click

from specdemo.cli import options_of
from specdemo.training.settings import TrainSettings


@click.command()
@options_of(TrainSettings, "settings", variables=False)
def train_draft(settings: TrainSettings) -> None:
    from specdemo.training import run

    click.echo(run.train_draft(settings))
