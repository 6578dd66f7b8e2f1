"""`specdemo serve`: an OpenAI-compatible API, on Ray Serve or, with --no-ray, in one process."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import click

from specdemo.cli import chosen_pair, options_of
from specdemo.errors import BadInput, MissingPackage
from specdemo.serving.options import ServeOptions


@click.command()
@options_of(ServeOptions, "options")
def serve(options: ServeOptions) -> None:
    if options.no_ray and (options.replicas > 1 or options.max_replicas):
        raise BadInput("--replicas and --max-replicas need Ray; leave out --no-ray.")
    if not options.no_ray and importlib.util.find_spec("ray") is None:
        raise MissingPackage(
            "serve runs its replicas on Ray Serve, which is not installed: pip install -r "
            "requirements-serve.txt, or use --no-ray for one engine in this process."
        )
    options = replace(
        options,
        pair=options.pair if options.target else chosen_pair(options).name,
        target=_absolute(options.target),
        draft=_absolute(options.draft),
    )

    from specdemo.serving import server

    (server.serve_locally if options.no_ray else server.serve_on_ray)(options)


def _absolute(source: str) -> str:
    """A folder by its whole path, because replicas run in other folders; a repository as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else source
