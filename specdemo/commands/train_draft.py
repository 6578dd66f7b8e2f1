"""`specdemo train-draft`: trains a draft head for a target model."""

import click

from specdemo.commands.shared import options_of
from specdemo.training.recipe import TrainSettings


@click.command()
@options_of(TrainSettings, "settings", variables=False)
def train_draft(settings: TrainSettings) -> None:
    from specdemo.training import steps

    click.echo(steps.train_draft(settings))
