"""`specdemo serve`: an OpenAI-compatible API, in this process or on replicas."""

import importlib.util
import os
import signal
import sys
import threading
from dataclasses import replace

import click

from specdemo.commands.shared import chosen_pair, options_of
from specdemo.errors import MissingPackage
from specdemo.serving.launch import on_ray, serve_locally
from specdemo.serving.server_options import ServeOptions


@click.command()
@options_of(ServeOptions, "options")
def serve(options: ServeOptions) -> None:
    if not options.model:
        options = replace(options, pair=chosen_pair(options).name)
    if options.no_ray:
        serve_locally(options)
        return
    if importlib.util.find_spec("ray") is None:
        raise MissingPackage(
            "serve runs its replicas on Ray Serve, which is not installed: run "
            "`pip install -e .[serve]`, or use --no-ray for one engine in this process."
        )
    # Replicas run in other folders.
    model, draft = map(_absolute, (options.model, options.assistant_model))
    ended = threading.Event()
    print("Starting Ray and the replicas.", flush=True)
    with on_ray(replace(options, model=model, assistant_model=draft)) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"Ready: {url}/v1", flush=True)
        ended.wait()
        print("Finishing what has begun.", file=sys.stderr)


def _absolute(model: str) -> str:
    """The absolute path of a folder or file; other names stay."""
    return os.path.abspath(model) if os.path.exists(model) else model
