"""`specdemo serve`: the engine behind an OpenAI-compatible API, on Ray Serve or, with --no-ray, in one process."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdemo.serving.options import ServeOptions

REQUIREMENTS = "requirements-serve.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import add_pair_arguments, real_number, whole_number

    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=whole_number(1, 65535), metavar="N", default=8000, help="default 8000")
    parser.add_argument("--no-ray", action="store_true", help="one engine in this process, without Ray")
    add_pair_arguments(parser)
    group = parser.add_argument_group("replicas, each with the pair and an engine of its own")
    group.add_argument("--replicas", type=whole_number(1), metavar="N", help="how many (default 1)")
    group.add_argument("--min-replicas", type=whole_number(1), metavar="N",
                       help="instead of --replicas: as many as the load asks for, these at least")  # fmt: skip
    group.add_argument("--max-replicas", type=whole_number(1), metavar="N", help="and these at most")
    group.add_argument("--cpus-per-replica", type=whole_number(1), metavar="N",
                       help="cores of each (default 1; with --no-ray all of the machine)")  # fmt: skip
    group.add_argument("--max-ongoing", type=whole_number(1), metavar="N", default=None,
                       help="requests that a replica answers at once (default 8)")  # fmt: skip
    group.add_argument("--max-waiting", type=whole_number(0), metavar="N", default=None,
                       help="requests that may wait for a replica; more are refused with 429 (default 64)")  # fmt: skip
    group.add_argument("--cache-mb", type=whole_number(1, 1_000_000), metavar="N", default=None,
                       help="megabytes of KV cache of each, taken at the start and never exceeded; one full context at "
                       "least (default 1024)")  # fmt: skip
    group.add_argument("--target-ongoing", type=real_number(0, 10_000, open_below=True), metavar="N",
                       help="requests a replica at which the load asks for no more of them (default half of "
                       "--max-ongoing)")  # fmt: skip
    group.add_argument("--upscale-delay", type=real_number(0, 86_400), metavar="S", default=10.0,
                       help="seconds of load before another replica is started (default 10)")  # fmt: skip
    group.add_argument("--downscale-delay", type=real_number(0, 86_400), metavar="S", default=300.0,
                       help="seconds of quiet before one is stopped (default 300)")  # fmt: skip
    group.add_argument(
        "--drain-seconds",
        type=real_number(0, 86_400),
        metavar="S",
        default=60.0,
        help="how long answers that have begun may take to finish when a replica is stopped (default 60)",
    )
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="a Ray cluster that runs already, as ray.init takes it (default: one of our own, here)",
    )
    parser.add_argument("--max-new-tokens", type=whole_number(1), metavar="N", default=None,
                        help="tokens of a chat answer whose request names no limit (default 512)")  # fmt: skip
    parser.add_argument(
        "--drill",
        choices=("kill", "scale"),
        help="no service: start one here, load it, kill a replica or let the load scale it, print what "
        "happened, and leave",
    )
    parser.add_argument("--visitors", type=whole_number(1), metavar="N", default=4,
                        help="of the drill: how many ask at once (default 4)")  # fmt: skip
    parser.add_argument("--seconds", type=real_number(1, 3600), metavar="S", default=20.0,
                        help="of the drill: seconds of each phase (default 20)")  # fmt: skip
    group = parser.add_argument_group("a plan instead of a service: what so many visitors need (docs/serving.md)")
    group.add_argument("--plan", type=whole_number(1), metavar="VISITORS", help="print what they need, and leave")
    group.add_argument("--figures", metavar="FILE", help="what `specdemo load --json FILE` measured for one replica")
    group.add_argument("--question-every", type=real_number(0, 86_400, open_below=True), metavar="S", default=60.0,
                       help="seconds from one question of a visitor to the next (default 60)")  # fmt: skip
    group.add_argument("--answer-tokens", type=real_number(0, 100_000, open_below=True), metavar="N", default=150.0,
                       help="tokens of a usual answer (default 150)")  # fmt: skip
    group.add_argument("--price-per-core-hour", type=real_number(0, 1000), metavar="P",
                       help="of the machines, in any currency: gives the cost of a million tokens")  # fmt: skip
    parser.add_argument("--json", metavar="FILE",
                        help="write the figures of the drill or the plan ('-' for standard output)")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    from specdemo.models.errors import BadChoice, ZooError

    if args.plan:
        if not args.figures:
            raise BadChoice("--plan needs --figures FILE: what `specdemo load --json FILE` measured for one replica.")
        from specdemo.serving import plan

        return plan.main(args)
    if args.json and not args.drill:
        raise BadChoice("--json writes the figures of a drill or a plan; give --drill or --plan with it.")
    if args.no_ray and args.drill:
        raise BadChoice("--drill needs replicas, which --no-ray does not have; leave one of the two out.")
    if args.no_ray:
        asked = [name for name in ("replicas", "min_replicas", "max_replicas", "address") if getattr(args, name)]
        if asked:
            option = "--" + asked[0].replace("_", "-")
            raise BadChoice(f"{option} needs Ray; leave out --no-ray, or {option}.")
    elif importlib.util.find_spec("ray") is None:
        raise ZooError(f"serve runs its replicas on Ray Serve, which is not installed: pip install -r {REQUIREMENTS}, "
                       "or use --no-ray for one engine in this process.")  # fmt: skip
    options = options_from(args)
    if args.no_ray:
        from specdemo.serving import local

        return local.serve(options, args.host, args.port)
    if args.drill:
        from specdemo.serving import drill

        return drill.main(args, options)
    from specdemo.serving import cluster

    return cluster.serve(options, args.host, args.port, address=args.address)


def options_from(args: argparse.Namespace) -> ServeOptions:
    """The service that the options ask for. Raises BadChoice for options that do not go together."""
    from pydantic import ValidationError

    from specdemo.cli import pair_from
    from specdemo.serving.options import ANSWER, CACHE_MB, ONGOING, WAITING, ServeOptions
    from specdemo.models.errors import BadChoice
    from specdemo.models.machine import require_device

    for option, device in (("--device", args.device), ("--draft-device", args.draft_device)):
        require_device(device, option)
    pair = pair_from(args)
    try:
        return ServeOptions(
            pair="" if args.model else pair.name,
            model=args.model and _absolute(args.model),
            assistant_model=args.assistant_model and _absolute(args.assistant_model),
            weight_format=args.weight_format,
            device=args.device,
            draft_device=args.draft_device,
            kv_cache=args.kv_cache,
            cpus_per_replica=args.cpus_per_replica,
            replicas=args.replicas,
            min_replicas=args.min_replicas,
            max_replicas=args.max_replicas,
            target_ongoing=args.target_ongoing,
            upscale_seconds=args.upscale_delay,
            downscale_seconds=args.downscale_delay,
            drain_seconds=args.drain_seconds,
            ongoing=args.max_ongoing or ONGOING,
            waiting=WAITING if args.max_waiting is None else args.max_waiting,
            cache_mb=args.cache_mb or CACHE_MB,
            max_new_tokens=args.max_new_tokens or ANSWER,
        )
    except ValidationError as error:
        said = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        for name in ("min_replicas", "max_replicas", "replicas"):
            said = said.replace(f" {name}", f" --{name.replace('_', '-')}")
        raise BadChoice(f"The options do not go together: {said}.") from error


def _absolute(source: str) -> str:
    """A folder by its whole path, because replicas run in folders of their own; a repository as it is."""
    return os.path.abspath(source) if os.path.isdir(source) else source
