"""`specdemo serve`: an OpenAI-compatible API, on Ray Serve or, with --no-ray, in one process."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys

import click

from specdemo.cli import (
    Command,
    chosen_pair,
    json_option,
    options_of,
    write_json,
)
from specdemo.errors import BadInput, MissingPackage
from specdemo.serving.options import ServeOptions
from specdemo.serving.plan import PlanOptions, best_level, plan
from specdemo.terminal import show


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000)
@click.option("--no-ray", is_flag=True, help="One engine in this process, without Ray.")
@click.option(
    "--shared/--private",
    default=None,
    help="Whether strangers share this server; numerics that are not loaded are then refused.  "
    "[default: shared where --host is not this machine's own address]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A further name that the server is reached by; '*' for any.",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    multiple=True,
    metavar="URL",
    help="Another site whose pages may ask this server; '*' for any.",
)
@click.option("--address", help="A running Ray cluster, as ray.init takes it.  [default: our own]")
@options_of(ServeOptions, "options")
@options_of(PlanOptions, "asked", variables=False)
@json_option
def serve(
    options: ServeOptions,
    host: str,
    port: int,
    no_ray: bool,
    shared: bool | None,
    allowed_hosts: tuple[str, ...],
    allow_origins: tuple[str, ...],
    address: str | None,
    asked: PlanOptions,
    json_file: str | None,
) -> None:
    if asked.visitors:
        from specdemo.models.registry import find_pair

        if not asked.figures:
            raise BadInput("--plan needs --figures FILE, which `specdemo load --json FILE` wrote.")
        cores = options.cpus_per_replica or os.cpu_count() or 1
        memory = find_pair(options.pair).memory_bytes if options.pair else 0
        measured = best_level(asked.figures, cores, memory)
        found = plan(asked, measured)
        both = {"measured": dataclasses.asdict(measured), "plan": dataclasses.asdict(found)}
        if json_file:
            write_json(json.dumps(both, indent=1), json_file)
        if json_file != "-":
            for title, figures in both.items():
                show(title, [figures], sys.stdout)
        return
    if json_file:
        raise BadInput("--json writes the figures of a plan; give --plan with it.")
    if no_ray:
        for name in ("replicas", "min_replicas", "max_replicas", "address"):
            if {**dataclasses.asdict(options), "address": address}[name]:
                option = "--" + name.replace("_", "-")
                raise BadInput(f"{option} needs Ray; leave out --no-ray, or {option}.")
    elif importlib.util.find_spec("ray") is None:
        raise MissingPackage(
            "serve runs its replicas on Ray Serve, which is not installed: pip install -r "
            "requirements-serve.txt, or use --no-ray for one engine in this process."
        )
    options = dataclasses.replace(
        options,
        pair=options.pair if options.target else chosen_pair(options).name,
        target=_absolute(options.target),
        draft=_absolute(options.draft),
    )

    from specdemo.serving import server
    from specdemo.serving.door import strangers_share

    options = dataclasses.replace(
        options,
        shared=strangers_share(host, option=shared),
        allowed_hosts=(host, *allowed_hosts),
        allow_origins=allow_origins,
    )
    if no_ray:
        server.serve_locally(options, host, port)
    else:
        server.serve_on_ray(options, host, port, address)


def _absolute(source: str) -> str:
    """A folder by its whole path, because replicas run in other folders; a repository as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else source
