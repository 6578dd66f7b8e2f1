"""What a service is made of: which pair, how many replicas, how much each may take on. Plain data, checked.

The `serve` command fills it from its options, Ray Serve from the `args` of a config file.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdemo.serving.generation import Engine

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]

ONGOING, WAITING, ANSWER, CACHE_MB = 8, 64, 512, 1024


class ServeOptions(BaseModel):
    """`pair` is a name that `specdemo pairs` lists; `model` with `assistant_model` are a pair of one's own instead.

    A replica takes `cpus_per_replica` cores and answers at most `ongoing` requests at once; beyond that `waiting`
    requests wait, and further ones are refused. Its KV cache has `cache_mb` megabytes (None: it grows). There are
    `replicas` of them, or between `min_replicas` and `max_replicas`: as many as leave each about `target_ongoing`
    requests (half of `ongoing` unless set).
    """

    model_config = ConfigDict(extra="forbid")

    pair: str = "embedded"
    model: str | None = None
    assistant_model: str | None = None
    weight_format: str = "int8"
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    cpus_per_replica: Count | None = None
    replicas: Count | None = None
    min_replicas: Count | None = None
    max_replicas: Count | None = None
    target_ongoing: Annotated[float, Field(gt=0)] | None = None
    upscale_seconds: Seconds = 10.0
    downscale_seconds: Seconds = 300.0
    gateways: Count = 1
    ongoing: Count = ONGOING
    waiting: Annotated[int, Field(ge=0)] = WAITING
    cache_mb: Count | None = CACHE_MB
    max_new_tokens: Count = ANSWER
    drain_seconds: Seconds = 60.0
    start_seconds: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _replicas_go_together(self) -> ServeOptions:
        if self.autoscaling and self.replicas is not None:
            raise ValueError("replicas is a fixed number; leave it out with min_replicas and max_replicas")
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
        return self.max_replicas or (self.least if self.autoscaling else self.replicas or 1)


def open_engine(options: ServeOptions, report: Callable[[str], None], threads: int | None = None) -> Engine:
    """Fetch what is missing of the pair, compile it for `threads` threads, and return its engine.

    Takes from seconds to as long as a download. Raises ZooError, or the session's error, with a sentence.
    """
    from specdemo.models import models, pairs
    from specdemo.models.load import load_pair

    if options.model:
        target = models.source_of(options.model, "--model", options.weight_format)
        draft = None
        if options.assistant_model:
            draft = models.source_of(options.assistant_model, "--assistant-model", options.weight_format)
        pair = pairs.own_pair(target, draft)
    else:
        pair = pairs.find_pair(options.pair)
    loaded = load_pair(pair, progress=lambda progress: report(progress.line))
    loaded = dataclasses.replace(
        loaded, device=options.device, draft_device=options.draft_device, kv_cache=options.kv_cache
    )
    report("Compiling the models for this processor")

    from specdemo.session import MAX_NEW_TOKENS, Session, machine_name

    session = Session(loaded, threads=threads, visitors=options.ongoing, cache_mb=options.cache_mb)
    longest = min(MAX_NEW_TOKENS, session.context_limit - 1)
    return Engine(session, loaded, longest=longest, created=int(time.time()), machine=machine_name())
