"""`specdemo serve`: an OpenAI-compatible API, on Ray Serve or, with --no-ray, in one process."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError

from specdemo.cli import (
    Command,
    FiniteRange,
    chosen_pair,
    json_option,
    model_options,
    section,
    write_json,
)
from specdemo.errors import BadInput, MissingPackage
from specdemo.serving.options import ServeOptions
from specdemo.settings import sentence

if TYPE_CHECKING:
    from specdemo.settings import ModelChoice

INTERVAL = FiniteRange(0, 86_400, min_open=True)
NAMES = {
    "ongoing": "max_ongoing",
    "waiting": "max_waiting",
    "upscale_seconds": "upscale_delay",
    "downscale_seconds": "downscale_delay",
}
"""Fields of ServeOptions whose options are called otherwise."""


def option(field: str) -> str:
    return "--" + NAMES.get(field, field).replace("_", "-")


def service_options(command: Callable) -> Callable:
    """Adds an option for every field of ServeOptions that has a description."""
    for name, field in reversed(ServeOptions.model_fields.items()):
        if field.description:
            default = None if field.default is None else str(field.default)
            command = click.option(
                option(name), name, metavar="N", default=default, help=field.description
            )(command)
    return command


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000)
@click.option("--no-ray", is_flag=True, help="One engine in this process, without Ray.")
@click.option("--address", help="A running Ray cluster, as ray.init takes it.  [default: our own]")
@model_options
@section("Replicas, each with the pair and an engine of its own")
@service_options
@section("A plan instead of a service: what so many visitors need")
@click.option("--plan", "visitors", type=click.IntRange(1), help="For how many visitors.")
@click.option("--figures", metavar="FILE", help="What `specdemo load --json FILE` measured.")
@click.option(
    "--question-every", type=INTERVAL, default=60.0, help="Seconds between a visitor's questions."
)
@click.option("--answer-tokens", type=INTERVAL, default=150.0, help="Tokens of a usual answer.")
@click.option(
    "--price-per-core-hour", type=FiniteRange(0, 1000), help="In any currency; gives the cost."
)
@json_option
def serve(
    choice: ModelChoice,
    host: str,
    port: int,
    no_ray: bool,
    address: str | None,
    visitors: int | None,
    figures: str | None,
    question_every: float,
    answer_tokens: float,
    price_per_core_hour: float | None,
    json_file: str | None,
    **service: str | None,
) -> None:
    if visitors:
        from specdemo.models.registry import find_pair
        from specdemo.serving.plan import best_level, lines, plan

        if not figures:
            raise BadInput("--plan needs --figures FILE, which `specdemo load --json FILE` wrote.")
        cores = _checked(cpus_per_replica=service["cpus_per_replica"]).cpus_per_replica
        memory = find_pair(choice.pair).memory_bytes if choice.pair else 0
        measured = best_level(figures, cores or os.cpu_count() or 1, memory)
        found = plan(visitors, measured, question_every, answer_tokens, price_per_core_hour)
        if json_file:
            both = {"measured": dataclasses.asdict(measured), "plan": dataclasses.asdict(found)}
            write_json(json.dumps(both, indent=1), json_file)
        if json_file != "-":
            click.echo("\n".join(lines(measured, found)))
        return
    if json_file:
        raise BadInput("--json writes the figures of a plan; give --plan with it.")
    if no_ray:
        for name in ("replicas", "min_replicas", "max_replicas", "address"):
            if {**service, "address": address}[name]:
                raise BadInput(f"{option(name)} needs Ray; leave out --no-ray, or {option(name)}.")
    elif importlib.util.find_spec("ray") is None:
        raise MissingPackage(
            "serve runs its replicas on Ray Serve, which is not installed: pip install -r "
            "requirements-serve.txt, or use --no-ray for one engine in this process."
        )
    pair = chosen_pair(choice)
    models = dataclasses.asdict(choice) | {"pair": "" if choice.target else pair.name}
    models["model"] = _absolute(models.pop("target"))
    models["assistant_model"] = _absolute(models.pop("draft"))
    options = _checked(**models, **service)

    from specdemo.serving import server

    if no_ray:
        server.serve_locally(options, host, port)
    else:
        server.serve_on_ray(options, host, port, address)


def _checked(**given: str | None) -> ServeOptions:
    """ServeOptions of what is given. Raises BadInput naming the option."""
    try:
        return ServeOptions(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ") + "."
        said = sentence(error) if first["loc"] else said
        for name in ServeOptions.model_fields:
            said = re.sub(rf"\b{name}\b", option(name), said)
        raise BadInput(said) from error


def _absolute(source: str) -> str | None:
    """A folder by its whole path, because replicas run in other folders; a repository as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else source or None
