"""What a service is made of: which pair, how many replicas, how much each takes on. Checked data.

The `serve` command makes options of its fields, Ray Serve takes them from the `args` of a config
file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.settings import CONFIG, ModelChoice, option, real, whole

if TYPE_CHECKING:
    from specdemo.serving.backend import Engine

KEY_VARIABLE = "SPECDEMO_API_KEY"

Count = whole(1)
Seconds = real(0, 86_400)


@dataclass(frozen=True, slots=True, config=CONFIG)
class ServeOptions(ModelChoice):
    """The models, and the fields below. `gateways` are processes that speak the API,
    `start_seconds` how long a request may wait for a replica to begin, `shared` whether strangers
    ask, who then get no numerics that are not loaded; `allowed_hosts` and `allow_origins` as Door
    has them."""

    replicas: Count | None = option(
        None, "how many", unset="1", section="Replicas, each with the pair and an engine of its own"
    )
    min_replicas: Count | None = option(None, "in place of --replicas: scale with the load")
    max_replicas: Count | None = option(None, "the most that the load may bring")
    cpus_per_replica: Count | None = option(
        None, "cores of each", unset="1; with --no-ray all of the machine"
    )
    ongoing: Count = option(8, "requests that each runs at once", name="max_ongoing")
    waiting: whole(0) = option(
        64, "requests that may wait for each; more are refused with status 429", name="max_waiting"
    )
    cache_mb: Count | None = option(
        1024, "megabytes of KV cache of each, allocated at the start; one full context at least"
    )
    target_ongoing: Annotated[float, Field(gt=0)] | None = option(
        None, "requests of each that bring another replica", unset="half of --max-ongoing"
    )
    upscale_seconds: Seconds = option(
        10.0, "seconds of load before a replica is added", name="upscale_delay"
    )
    downscale_seconds: Seconds = option(
        300.0, "seconds of quiet before one is stopped", name="downscale_delay"
    )
    learn_ngrams: bool | None = option(
        None,
        "whether an n-gram table grows from finished answers; by how soon text comes a client "
        "could notice what another was answered",
        off="no-learn-ngrams",
        unset="on unless strangers share the server",
    )
    drain_seconds: Seconds = option(
        60.0, "how long answers that have begun may take to finish when a replica is stopped"
    )
    max_new_tokens: Count = option(512, "tokens of a chat answer whose request names no limit")
    gateways: Count = 1
    shared: bool = True
    allowed_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    start_seconds: Annotated[float, Field(gt=0)] = 60.0

    def __post_init__(self) -> None:
        if self.autoscaling and self.replicas is not None:
            message = "is a fixed number; leave it out with --min-replicas and --max-replicas."
            raise BadInput(f"replicas {message}", "replicas")
        if self.least > self.most:
            message = f"min_replicas {self.least} is more than --max-replicas {self.most}."
            raise BadInput(message, "min_replicas")

    @property
    def autoscaling(self) -> bool:
        return self.min_replicas is not None or self.max_replicas is not None

    @property
    def least(self) -> int:
        """The fewest replicas there are."""
        return self.min_replicas or (1 if self.autoscaling else self.replicas or 1)

    @property
    def most(self) -> int:
        """The most replicas there may be."""
        return self.max_replicas or self.least


def key_from_environment() -> str | None:
    """The bearer key that requests must bring, None when none is set."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def open_engine(
    options: ServeOptions, report: Callable[[str], None], threads: int | None
) -> Engine:
    """Fetch what is missing of the pair, compile it for `threads` threads, and return its engine.

    Takes from seconds to as long as a download. Raises SpecdemoError with one sentence.
    """
    from specdemo.models.load import load_pair
    from specdemo.models.registry import chosen_pair
    from specdemo.serving.backend import Engine
    from specdemo.session import Session

    loaded = load_pair(
        chosen_pair(options), choice=options, progress=lambda progress: report(progress.line)
    )
    report("Compiling the models for this processor")
    session = Session(
        loaded,
        threads=threads,
        active=options.ongoing,
        waiting=options.waiting,
        cache_mb=options.cache_mb,
        learn=not options.shared if options.learn_ngrams is None else options.learn_ngrams,
    )
    session.prepare()  # a replica that says it is ready answers at full speed
    return Engine(session, loaded, ("exact",) if options.shared else ("exact", "fast"))
