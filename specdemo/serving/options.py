"""What a service is made of: which pair, how many replicas, how much each takes on. Checked data.

The `serve` command fills it from its options, Ray Serve from the `args` of a config file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdemo.settings import ModelChoice

if TYPE_CHECKING:
    from specdemo.serving.backend import Engine

KEY_VARIABLE = "SPECDEMO_API_KEY"

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]


def option(default: Any, help: str) -> Any:
    """A field of which the `serve` command makes an option."""
    return Field(default, description=help)


class ServeOptions(BaseModel):
    """`pair` is a name that `specdemo pairs` lists; `model` with `assistant_model` are a pair of
    one's own instead. `gateways` are processes that speak the API, `start_seconds` how long a
    request may wait for a replica to begin. The other fields describe themselves."""

    model_config = ConfigDict(extra="forbid")

    pair: str = "embedded"
    model: str | None = None
    assistant_model: str | None = None
    weight_format: str = "int8"
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    gateways: Count = 1
    start_seconds: Annotated[float, Field(gt=0)] = 60.0
    replicas: Count | None = option(None, "How many.  [default: 1]")
    min_replicas: Count | None = option(None, "In place of --replicas: scale with the load.")
    max_replicas: Count | None = option(None, "The most that the load may bring.")
    cpus_per_replica: Count | None = option(
        None, "Cores of each.  [default: 1; with --no-ray all of the machine]"
    )
    ongoing: Count = option(8, "Requests that each runs at once.")
    waiting: Annotated[int, Field(ge=0)] = option(
        64, "Requests that may wait for each; more are refused with status 429."
    )
    cache_mb: Annotated[int, Field(ge=1, le=1_000_000)] | None = option(
        1024, "Megabytes of KV cache of each, allocated at the start; one full context at least."
    )
    target_ongoing: Annotated[float, Field(gt=0)] | None = option(
        None, "Requests of each that bring another replica.  [default: half of --max-ongoing]"
    )
    upscale_seconds: Seconds = option(10.0, "Seconds of load before a replica is added.")
    downscale_seconds: Seconds = option(300.0, "Seconds of quiet before one is stopped.")
    drain_seconds: Seconds = option(
        60.0, "How long answers that have begun may take to finish when a replica is stopped."
    )
    max_new_tokens: Count = option(512, "Tokens of a chat answer whose request names no limit.")

    @model_validator(mode="after")
    def _replicas_go_together(self) -> ServeOptions:
        if self.autoscaling and self.replicas is not None:
            raise ValueError(
                "replicas is a fixed number; leave it out with min_replicas and max_replicas"
            )
        if self.least > self.most:
            raise ValueError(f"min_replicas {self.least} is more than max_replicas {self.most}")
        if self.assistant_model and not self.model:
            raise ValueError("assistant_model needs model beside it")
        return self

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

    @property
    def choice(self) -> ModelChoice:
        """The models, as the command line names them."""
        return ModelChoice(
            pair="" if self.model else self.pair,
            target=self.model or "",
            draft=self.assistant_model or "",
            weight_format=self.weight_format,
            device=self.device,
            draft_device=self.draft_device,
            kv_cache=self.kv_cache,
        )


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

    choice = options.choice
    loaded = load_pair(
        chosen_pair(choice), choice=choice, progress=lambda progress: report(progress.line)
    )
    report("Compiling the models for this processor")
    session = Session(
        loaded,
        threads=threads,
        active=options.ongoing,
        waiting=options.waiting,
        cache_mb=options.cache_mb,
    )
    session.prepare()  # a replica that says it is ready answers at full speed
    return Engine(session, loaded)
