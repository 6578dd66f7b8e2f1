"""The service on Ray Serve: engines that each hold the pair, and a gateway that speaks the API. Ray
places, watches, restarts, scales and balances the engines."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from specdemo.errors import BadInput, Busy, CacheFull, RequestFailed
from specdemo.options import parse
from specdemo.serving.application import application
from specdemo.serving.backend import LocalBackend, Piece, ReplicaBackend
from specdemo.serving.metrics import log_requests
from specdemo.serving.schema import CommonRequest
from specdemo.serving.server_options import ServeOptions, key_from_environment

NAME, ENGINE = "specdemo", "Engine"

SCALING = {"upscale_delay_s": 10.0, "downscale_delay_s": 300.0, "look_back_period_s": 15.0}


@serve.deployment(name=ENGINE)
class EngineReplica:
    """One pair with its engine, in a process of its own."""

    def __init__(self, options: ServeOptions):
        log_requests()
        options = replace(options, cpus_per_replica=options.cpus_per_replica or 1)
        self._backend = LocalBackend(options)
        self._backend.load()
        if self._backend.failed:  # Serve reports it and tries again
            raise RequestFailed(self._backend.failed)

    def __del__(self) -> None:
        self._backend.close()

    async def answer(self, request: CommonRequest) -> AsyncIterator[Piece | Exception]:
        """The events of an answer. Yields an error: Ray would wrap a raised one in a traceback."""
        try:
            async with aclosing(self._backend.answer(request)) as events:
                async for event in events:
                    yield event
        except (BadInput, Busy, CacheFull, RequestFailed) as error:
            yield error

    async def report(self) -> dict[str, Any]:
        """`metrics` in the Prometheus text format; `model` is its entry in /v1/models."""
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "pid": os.getpid(),
            "in_flight": (await self._backend.health())["in_flight"],
            "metrics": await self._backend.metrics(),
            "model": await self._backend.model(),
        }


@serve.deployment(name="Gateway", max_ongoing_requests=2000, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Gateway:
    """The API, in front of the engines. Holds no model and takes little memory."""

    def __init__(self, engine: DeploymentHandle, options: ServeOptions):
        none = DeploymentUnavailableError, RayError
        self._backend = ReplicaBackend(engine, RayActorError, BackPressureError, none)
        self._options = options

    def __serve_build_asgi_app__(self) -> FastAPI:
        return application(self._backend, self._options, key_from_environment())


def app(args: dict[str, Any] | ServeOptions) -> Application:
    """The application. `serve deploy` calls it with `args`, named as the fields of ServeOptions;
    the default is the embedded pair, shared by strangers."""
    defaults = {"pair": "embedded", "shared": True}
    options = parse(ServeOptions, defaults | args) if isinstance(args, dict) else args
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas:
        limits = {
            "min_replicas": options.replicas,
            "max_replicas": max(options.replicas, options.max_replicas),
            "target_ongoing_requests": max(options.max_ongoing / 2, 1),
        }
        scaling = {"autoscaling_config": limits | SCALING}
    common = {
        "graceful_shutdown_timeout_s": options.drain_seconds,
        "graceful_shutdown_wait_loop_s": 1.0,
        "logging_config": {"enable_access_log": False},
    }
    engine = EngineReplica.options(  # type: ignore[attr-defined]  # ray is not followed
        **scaling,
        **common,
        ray_actor_options={"num_cpus": options.cpus_per_replica or 1},
        max_ongoing_requests=options.max_ongoing,
        max_queued_requests=options.max_waiting,
        health_check_period_s=2.0,
        health_check_timeout_s=20.0,
        max_constructor_retry_count=3,
    ).bind(options)
    gateway = Gateway.options(  # type: ignore[attr-defined]  # ray is not followed
        num_replicas=options.gateways, **common
    )
    return gateway.bind(engine, options)
