"""`specdemo page`, which `app.py` is too, and its options beside those of every server."""

import os
from typing import Annotated

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.cli import CONTEXT, options_of
from specdemo.serving.options import Port, ServerOptions
from specdemo.settings import CONFIG, Line, Whole, option
from specdemo.verdict import ENOUGH_SECONDS

ON_SPACE = "SPACE_ID" in os.environ


@dataclass(frozen=True, slots=True, config=CONFIG)
class PageOptions(ServerOptions):
    no_fetch: bool = option(
        False, "answer with a pair that is here; without this a Dolly pair is fetched meanwhile"
    )
    host: Line = option("0.0.0.0" if ON_SPACE else "127.0.0.1", "address to listen on")
    port: Port = option(7860, "port to listen on")
    share: bool = option(False, "also print a public link through Gradio's tunnel")
    trusted_proxy: tuple[str, ...] = option(
        (),
        "a proxy in front, whose X-Forwarded-For says who asks",
        metavar="ADDRESS",
        unset="a Space's own",
    )
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = option(
        20, "how long answers that have begun may take to finish when the server is stopped"
    )
    visitors: Annotated[Whole, Field(ge=1, le=64)] = option(
        16, "requests that share the models at once; more wait"
    )
    race_seconds: Annotated[float, Field(ge=0, le=60)] = option(
        ENOUGH_SECONDS, "a race of fewer seconds is repeated until it has so many; 0: raced once"
    )
    max_new_tokens: Annotated[Whole, Field(ge=1, le=2000)] = option(
        100, "where the page's setting of that name starts"
    )


@click.command(context_settings=CONTEXT)
@options_of(PageOptions, "options")
def page(options: PageOptions) -> None:
    """Serve the page: a question, both runs against the clock, the verdict."""
    from specdemo.ui import server

    server.main(options)
