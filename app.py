"""Builds the page and serves it. On a Hugging Face Space it just runs; locally it listens on
127.0.0.1."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

ON_SPACE = "SPACE_ID" in os.environ


@click.command(
    context_settings={
        "auto_envvar_prefix": "SPECDEMO",
        "show_default": True,
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    }
)
@click.option("--share", is_flag=True, help="Also print a public link through Gradio's tunnel.")
@click.option(
    "--host", default="0.0.0.0" if ON_SPACE else "127.0.0.1", help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=7860,
    help="Port to listen on, or the next free one.",
)
@click.option(
    "--pair",
    metavar="NAME",
    show_default="the largest Dolly pair that fits if the Hub answers, else embedded",
    help="Pair of models to start with; see `python -m specdemo pairs`.",
)
@click.option(
    "--engine",
    metavar="URL",
    help="Let a `specdemo serve` at http://HOST:PORT answer, in place of models here.",
)
@click.option("--device", default="CPU", help="OpenVINO device of the target model.")
@click.option("--draft-device", default="CPU", help="OpenVINO device of the draft model.")
@click.option(
    "--kv-cache",
    type=click.Choice(["auto", "f32", "f16", "bf16", "u8"]),
    default="auto",
    help="Precision of the KV cache.",
)
@click.option(
    "--shared/--private",
    default=None,
    help="Whether strangers share this server. What loads or compiles models (pair, device, KV "
    "cache, numerics) is then its owner's alone.  [default: shared on a Space, with --share, or "
    "where --host is not this machine's own address]",
)
@click.option(
    "--allowed-host",
    multiple=True,
    metavar="NAME",
    help="A further name that the server is reached by; '*' for any.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Another site whose pages may ask this server; '*' for any.",
)
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy in front, whose X-Forwarded-For says who asks.  [default: a Space's own]",
)
@click.option(
    "--drain-seconds",
    type=click.IntRange(0, 3600),
    default=20,
    help="How long answers that have begun may take to finish when the server is stopped.",
)
@click.option(
    "--visitors",
    type=click.IntRange(1, 64),
    default=16,
    help="Requests that share the models at once; more wait.",
)
@click.option(
    "--cache-mb",
    type=click.IntRange(1, 1_000_000),
    default=1024,
    help="Megabytes of KV cache at most, and one full context at least; taken as it is used.",
)
@click.option(
    "--exclusive",
    is_flag=True,
    help="Run requests one at a time, so that no figure is of a shared machine.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1, 2000),
    default=100,
    help="Where the page's setting of that name starts.",
)
def command(**options: Any) -> None:
    """Serve the speculative decoding demo.

    Each option can be given as an environment variable too: SPECDEMO_PAIR, SPECDEMO_CACHE_MB, ...
    """
    from specdemo.errors import SpecdemoError
    from specdemo.ui import server

    try:
        server.main(**options)
    except SpecdemoError as error:
        print(f"app.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def main(arguments: list[str] | None = None) -> None:
    """Serve the page until interrupted. Exits with 2 for bad input, 1 for a failure."""
    command.main(arguments, prog_name="app.py")


if __name__ == "__main__":
    main()
