"""`specdemo page`; `app.py` is the same command."""

import click

from specdemo.cli import CONTEXT, options_of
from specdemo.ui.options import PageOptions


@click.command(context_settings=CONTEXT)
@options_of(PageOptions, "options")
def page(options: PageOptions) -> None:
    """Serve the page: a question, both runs against the clock, the verdict."""
    from specdemo.ui import server

    server.main(options)
