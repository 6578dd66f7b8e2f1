"""The service on Ray Serve: engines that each hold the pair, and a gateway that speaks the API in front of them.

`app` builds it, for `specdemo serve` and for `serve deploy` alike. Ray places, watches, restarts, scales and balances;
what becomes of a request whose engine dies is decided in `replicas`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from specdemo.trace import BaselineToken, Trace
from specdemo.metrics import log_requests
from specdemo.serving.backend import LocalBackend, Unavailable
from specdemo.serving.generation import (
    Description,
    Event,
    Interrupted,
    Refused,
    Request,
    Waits,
)
from specdemo.serving.openai_api import create_app
from specdemo.serving.options import ServeOptions, open_engine
from specdemo.serving.replicas import Failures, ReplicaBackend, ReplicaReport
from specdemo.serving.web import key_from_environment

NAME, ENGINE, GATEWAY = "specdemo", "Engine", "Gateway"

FAILURES = Failures(RayActorError, BackPressureError, DeploymentUnavailableError, RayError)


@serve.deployment(name=ENGINE)
class EngineReplica:
    """One pair with its engine, in a process of its own."""

    def __init__(self, options: ServeOptions):
        log_requests()
        threads = options.cpus_per_replica or 1
        # Whoever sends more than `ongoing` is the router's fault: those wait here rather than fail.
        self._backend = LocalBackend(lambda report: open_engine(options, report, threads), ongoing=options.ongoing,
                                     waiting=options.ongoing)  # fmt: skip
        self._backend.load()
        self._backend.ready_engine()  # raises: Serve then says why, and tries again

    def __del__(self):
        self._backend.close()

    async def generate(self, request: Request) -> AsyncIterator[list[Event] | Exception]:
        """The events; what is refused comes as data, because Ray would wrap an exception in a traceback."""
        try:
            async with aclosing(self._backend.generate(request)) as batches:
                async for batch in batches:
                    yield batch
        except (Refused, Unavailable, Interrupted) as error:
            yield error

    async def baseline(self, trace: Trace) -> AsyncIterator[list[BaselineToken | Waits | Trace] | Exception]:
        try:
            async with aclosing(self._backend.baseline(trace)) as batches:
                async for batch in batches:
                    yield batch
        except (Refused, Unavailable, Interrupted) as error:
            yield error

    async def describe(self) -> Description:
        return await self._backend.describe()

    async def report(self) -> ReplicaReport:
        context = serve.get_replica_context()
        metrics = await self._backend.metrics()
        return ReplicaReport(context.replica_id.unique_id, os.uname().nodename, os.getpid(), self._backend.in_flight,
                             metrics)  # fmt: skip

    def check_health(self) -> None:
        """Called by Serve every few seconds; a replica that raises is replaced."""
        if self._backend.stalled():
            raise RuntimeError("An answer makes no progress any more.")


@serve.deployment(name=GATEWAY, max_ongoing_requests=2000, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Gateway:
    """The API, in front of the engines. Holds no model; takes next to no memory."""

    def __init__(self, engine: DeploymentHandle, options: ServeOptions):
        self._backend = ReplicaBackend(engine, FAILURES, start_seconds=options.start_seconds)
        self._options = options

    def __serve_build_asgi_app__(self) -> Starlette:
        return create_app(
            self._backend, key=key_from_environment(), default_limit=self._options.max_new_tokens, request_ids=False
        )


def app(args: dict[str, Any] | ServeOptions) -> Application:
    """The application. `serve deploy` calls it with the `args` of its config file, which must be those of ServeOptions."""
    args = ServeOptions.model_validate(args)
    scale: dict[str, Any] = {"num_replicas": args.least}
    if args.autoscaling:
        scale = {
            "autoscaling_config": {
                "min_replicas": args.least,
                "max_replicas": args.most,
                "target_ongoing_requests": args.target_ongoing or max(args.ongoing / 2, 1),
                "upscale_delay_s": args.upscale_seconds,
                "downscale_delay_s": args.downscale_seconds,
                "look_back_period_s": 15.0,
            }
        }
    engine = EngineReplica.options(
        **scale,
        ray_actor_options={"num_cpus": args.cpus_per_replica or 1},
        max_ongoing_requests=args.ongoing,
        max_queued_requests=args.waiting,
        graceful_shutdown_timeout_s=args.drain_seconds,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=2.0,
        health_check_timeout_s=20.0,
        max_constructor_retry_count=3,
        logging_config={"enable_access_log": False},
    ).bind(args)
    gateway = Gateway.options(
        num_replicas=args.gateways,
        graceful_shutdown_timeout_s=args.drain_seconds,
        graceful_shutdown_wait_loop_s=1.0,
        logging_config={"enable_access_log": False},
    )
    return gateway.bind(engine, args)
