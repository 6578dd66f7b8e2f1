"""Serves the page. On a Hugging Face Space it just runs; locally it listens on 127.0.0.1."""

import sys

import click

from specdemo.cli import CONTEXT, main, options_of
from specdemo.ui.options import PageOptions


@click.command(context_settings=CONTEXT)
@options_of(PageOptions, "options")
def page(options: PageOptions) -> None:
    """Serve the speculative decoding demo."""
    from specdemo.ui import server

    server.main(options)


if __name__ == "__main__":
    sys.exit(main(command=page, name="app.py"))
