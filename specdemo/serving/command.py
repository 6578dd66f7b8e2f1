"""`specdemo serve`: an OpenAI-compatible API, on Ray Serve or, with --no-ray, in one process; or,
with --plan, what a number of visitors needs (docs/guide/serve.md has the formulae)."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.cli import Command, chosen_pair, json_option, options_of, write_json
from specdemo.errors import BadInput, MissingPackage
from specdemo.serving.options import ServeOptions
from specdemo.settings import CONFIG, option, real, whole
from specdemo.terminal import show

HEADROOM = 0.7  # share of a replica's capacity that is planned with: visitors do not come evenly

PATIENCE = 2.0
"""Seconds to the first token that a visitor should wait at most, at the 95th percentile."""


Interval = Annotated[float, Field(gt=0, le=86_400)]


@dataclass(frozen=True, slots=True, config=CONFIG)
class PlanOptions:
    """The visitors, who each ask once in `question_every` seconds."""

    visitors: whole(1) | None = option(
        None,
        "for how many visitors",
        name="plan",
        section="A plan instead of a service: what so many visitors need",
    )
    figures: str | None = option(None, "what `specdemo load --json FILE` measured", metavar="FILE")
    question_every: Interval = option(60.0, "seconds between a visitor's questions")
    answer_tokens: Interval = option(150.0, "tokens of a usual answer")
    price_per_core_hour: real(0, 1000) | None = option(None, "in any currency; gives the cost")


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
        return _plan(options, asked, json_file)
    if json_file:
        raise BadInput("--json writes the figures of a plan; give --plan with it.")
    if no_ray:
        for name in ("replicas", "min_replicas", "max_replicas", "address"):
            if {**dataclasses.asdict(options), "address": address}[name]:
                flag = "--" + name.replace("_", "-")
                raise BadInput(f"{flag} needs Ray; leave out --no-ray, or {flag}.")
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


def _plan(options: ServeOptions, asked: PlanOptions, json_file: str | None) -> None:
    from specdemo.models.registry import find_pair

    if not asked.figures:
        raise BadInput("--plan needs --figures FILE, which `specdemo load --json FILE` wrote.")
    cores = options.cpus_per_replica or os.cpu_count() or 1
    memory = find_pair(options.pair).memory_bytes if options.pair else 0
    measured = best_level(asked.figures, cores, memory)
    found = {"measured": measured, "plan": plan(asked, measured)}
    if json_file:
        write_json(json.dumps(found, indent=1), json_file)
    if json_file != "-":
        for title, figures in found.items():
            show(title, [figures], sys.stdout)


def _absolute(source: str) -> str:
    """A folder by its whole path, because replicas run in other folders; a repository as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else source


def plan(asked: PlanOptions, measured: dict[str, float]) -> dict[str, float | None]:
    """What a demand needs; `in_flight` is the average number of answers being made at once."""
    visitors, rate = measured["visitors"], measured["tokens_per_s"]
    requests = asked.visitors / asked.question_every
    demand = requests * asked.answer_tokens
    answer = measured["first_token_s"] + asked.answer_tokens * visitors / rate
    in_flight = requests * answer  # Little's law
    by_tokens = math.ceil(demand / (HEADROOM * rate))
    replicas = max(1, by_tokens, math.ceil(in_flight / visitors))
    cores, price = replicas * measured["cores"], asked.price_per_core_hour
    return {
        "demand_tokens_per_s": demand,
        "requests_per_s": requests,
        "in_flight": in_flight,
        "answer_s": answer,
        "replicas": replicas,
        "cores": cores,
        "memory_bytes": replicas * measured["memory_bytes"],
        "per_million_tokens": None if price is None else cores * price * 1e6 / (3600 * demand),
    }


def best_level(figures: str, cores: int, memory_bytes: int) -> dict[str, float]:
    """Of the levels in a file that `specdemo load --json` wrote, the one with the most tokens a
    second at which the first token takes at most PATIENCE; if none does, the shortest wait. What
    one replica gave, on so many cores and bytes.

    Raises BadInput for another kind of file.
    """
    try:
        levels = [
            {
                "visitors": int(one["visitors"]),
                "tokens_per_s": float(one["tokens_per_s"]),
                "first_token_s": float(one["ttft_p95_s"]),
                "cores": cores,
                "memory_bytes": memory_bytes,
            }
            for one in json.loads(Path(figures).read_text(encoding="utf-8"))["levels"]
            if not one["errors"] and float(one["tokens_per_s"]) > 0
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--figures {figures} must be a file that `specdemo load --json FILE` wrote."
        ) from error
    if not levels:
        raise BadInput("--figures: no level of that file is without errors; measure again.")
    quick = [one for one in levels if one["first_token_s"] <= PATIENCE]
    if quick:
        return max(quick, key=lambda one: one["tokens_per_s"])
    return min(levels, key=lambda one: one["first_token_s"])
