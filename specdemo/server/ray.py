"""The API on Ray Serve: engines that each hold the pair, behind a gateway. Ray places, watches,
restarts, scales and balances the engines. The cluster that `on_ray` starts listens on 127.0.0.1,
but Serve's replicas open a port on every address; Ray has no setting for it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from specdemo.errors import BadInput, Busy, CacheFull, RequestFailed
from specdemo.host.hardware import processors
from specdemo.options import parse
from specdemo.server.backend import LocalBackend, Piece, ReplicaBackend
from specdemo.server.metrics import log_requests
from specdemo.server.openai_api import openai_application
from specdemo.server.request_guard import bound_socket, url_of
from specdemo.server.schema import CommonRequest
from specdemo.server.server_options import ServeOptions, key_from_environment

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
        return openai_application(self._backend, self._options, key_from_environment())


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


@contextlib.contextmanager
def on_ray(options: ServeOptions) -> Iterator[str]:
    """Starts the service on a cluster of its own; yields its URL once it is ready. At exit running
    answers are finished. Raises RequestFailed if the service does not start."""
    most, each = options.max_replicas or options.replicas, options.cpus_per_replica or 1
    if most * each > processors():  # Ray would wait for more for ever
        raise BadInput(
            f"{most} replicas of {each} cores each need {most * each} cores and this machine has "
            f"{processors()}; lower --replicas (or --max-replicas) or --cpus-per-replica."
        )
    bound_socket(options.host, options.port).close()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(
        num_cpus=processors(),
        include_dashboard=False,
        object_store_memory=100_000_000,  # bytes; messages between processes are far smaller
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        http = HTTPOptions(host=options.host, port=options.port)
        serve.start(http_options=http, proxy_location="HeadOnly")
        service = app(options)
        try:
            serve.run(service, name=NAME, route_prefix="/")
        except Exception as error:
            # Serve's report of a replica that did not start is mostly traceback.
            applications = serve.status().applications
            parts = applications[NAME].deployments.values() if NAME in applications else ()
            report = "\n".join(part.message for part in parts) or str(error)
            reason = (re.findall("could not be loaded: (.+)", report) or report.splitlines())[-1]
            raise RequestFailed(f"The service did not start: {reason[:400]}") from error
        yield url_of(options.host, options.port)
    finally:
        with contextlib.suppress(Exception):
            serve.delete(NAME)
        ray.shutdown()
