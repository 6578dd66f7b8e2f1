"""The API on Ray Serve: engines that each hold the pair, behind a gateway. Ray places, watches,
restarts, scales and balances the engines. The cluster that `on_ray` starts listens on 127.0.0.1,
but Serve's replicas open a port on every address; Ray has no setting for it."""

import asyncio
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ray
from fastapi import FastAPI
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, CacheFull, RequestFailed
from specdemo.machine.hardware import processors
from specdemo.options import parse
from specdemo.runs.trace import Trace
from specdemo.server import metrics  # a module, since Ray cannot pickle a ContextVar
from specdemo.server.backend import LocalBackend, NotReady, Piece
from specdemo.server.openai_api import openai_application
from specdemo.server.schema import AnswerRequest
from specdemo.server.server_options import ServeOptions, key_from_environment
from specdemo.server.web_server import bound_socket, url_of

NAME, ENGINE = "specdemo", "Engine"

ATTEMPTS = 5  # replicas to try, one after another, while an answer has not begun
START_SECONDS = 60.0  # how long a request may wait for a replica to begin
UNAVAILABLE: tuple[type[Exception], ...] = (TimeoutError, DeploymentUnavailableError, RayError)

STARTED = "RUNNING", "DEPLOY_FAILED"

SCALING = {"upscale_delay_s": 10.0, "downscale_delay_s": 300.0, "look_back_period_s": 15.0}


@serve.deployment(name=ENGINE)
class EngineReplica:
    """One pair with its engine, in a process of its own."""

    def __init__(self, options: ServeOptions):
        metrics.log_requests(options.log_format)
        options = replace(options, cpus_per_replica=options.cpus_per_replica or 1)
        self._backend = LocalBackend(options)
        self._backend.load(options).result()  # Serve reports an error and tries again

    def __del__(self) -> None:
        self._backend.close()

    async def answer(
        self, request: AnswerRequest, request_id: str = "-"
    ) -> AsyncIterator[Piece | Exception | None]:
        """The events of an answer. Yields an error: Ray would wrap a raised one in a traceback."""
        metrics.REQUEST_ID.set(request_id)
        try:
            async with aclosing(self._backend.answer(request)) as events:
                async for event in events:
                    yield event
        except (BadInput, Busy, CacheFull, RequestFailed) as error:
            yield error

    async def check_health(self) -> None:
        """Raises if a damaged model could not be loaded again; Serve then replaces the replica."""
        if self._backend.state.kind == "failed":
            raise RequestFailed(self._backend.state.line)

    async def report(self) -> dict[str, Any]:
        """`metrics` in the Prometheus text format; `model` is its entry in /v1/models."""
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "pid": os.getpid(),
            "in_flight": (await self._backend.health())["in_flight"],
            "metrics": await self._backend.metrics(),
            "model": await self._backend.model(),
        }


class ReplicaBackend:
    """Asks the engines through `engine`. If one dies before it has begun an answer, another one is
    asked."""

    def __init__(self, engine: DeploymentHandle):
        self._engine, self._stream = engine, engine.options(stream=True)
        self._model: dict[str, Any] | None = None

    async def model(self) -> dict[str, Any]:
        if self._model is None:
            reports = await self._reports()
            if not reports:
                raise NotReady("No replica is ready yet; the model is being loaded.")
            self._model = reports[0]["model"]
        return self._model

    async def health(self) -> dict[str, Any]:
        reports = await self._reports()
        in_flight = sum(report["in_flight"] for report in reports)
        status = "ready" if reports else "loading"
        return {"status": status, "replicas": len(reports), "in_flight": in_flight}

    async def metrics(self) -> str:
        """The metrics of all replicas; each sample has the label `replica`."""
        merged: dict[str, Metric] = {}
        for report in await self._reports():
            for family in text_string_to_metric_families(report["metrics"]):
                new = Metric(family.name, family.documentation, family.type)
                metric = merged.setdefault(family.name, new)
                for sample in family.samples:
                    labels = {**sample.labels, "replica": report["replica"]}
                    metric.add_sample(sample.name, labels, sample.value)
        return generate_latest(SimpleNamespace(collect=merged.values)).decode()

    async def _reports(self) -> list[dict[str, Any]]:
        """The reports of all running replicas (EngineReplica.report)."""
        try:  # a call to one would wait if that replica is full
            responses = self._engine.broadcast("report")
            reports = await responses.results_async(timeout_s=5.0, return_exceptions=True)
        except UNAVAILABLE:
            return []
        return [report for report in reports if isinstance(report, dict)]

    async def answer(self, request: AnswerRequest) -> AsyncGenerator[Piece | None, None]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun, unfinished = False, request.answers
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(request, metrics.REQUEST_ID.get())
            try:
                piece = await asyncio.wait_for(anext(response), START_SECONDS)
                while True:
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
                    if piece is not None:
                        begun = begun or not isinstance(piece.event, Waiting)
                        unfinished -= isinstance(piece.event, Trace)
                    if not unfinished:
                        return
                    piece = await anext(response)
            except StopAsyncIteration:
                raise RequestFailed("The replica ended without an answer.") from None
            except RayActorError as error:
                if begun:
                    raise RequestFailed(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
            except BackPressureError as error:
                raise Busy("The queue is full; try again in a moment.") from error
            except UNAVAILABLE as error:
                raise NotReady("No replica could begin this answer; try again later.") from error
            finally:
                with suppress(Exception):  # a failed call raises its failure again
                    response.cancel()
        raise NotReady(f"{ATTEMPTS} replicas died before they could begin this answer.")


@serve.deployment(name="Gateway", max_ongoing_requests=2000, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Gateway:
    """The API, in front of the engines. Holds no model and takes little memory."""

    def __init__(self, engine: DeploymentHandle, options: ServeOptions):
        self._backend, self._options = ReplicaBackend(engine), options

    def __serve_build_asgi_app__(self) -> FastAPI:
        metrics.log_requests(self._options.log_format)
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


@contextmanager
def on_ray(options: ServeOptions, ended: threading.Event) -> Iterator[str]:
    """Starts the service on a cluster of its own; yields its URL once it is ready. SIGINT and
    SIGTERM set `ended`; before it is ready that is a KeyboardInterrupt. At exit running answers are
    finished. Raises RequestFailed if the service does not start."""
    replicas, cores = options.max_replicas or options.replicas, options.cpus_per_replica or 1
    if replicas * cores > processors():  # Ray would wait for more for ever
        raise BadInput(
            f"{replicas} replicas of {cores} cores each need {replicas * cores} cores and this "
            f"machine has {processors()}; lower --replicas (or --max-replicas) or "
            "--cpus-per-replica."
        )
    bound_socket(options.host, options.port).close()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(
            "local",  # not a cluster that runs, or ran, on this machine
            num_cpus=processors(),
            include_dashboard=False,
            object_store_memory=100_000_000,  # bytes; messages between processes are far smaller
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="ERROR",
        )
        # In place of Ray's handlers: an exception from one would abort the process.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        _start(options, ended)
        try:
            yield url_of(options.host, options.port)
        finally:
            with suppress(Exception):
                serve.delete(NAME)
    except SystemExit:  # by Ray's handler of SIGTERM
        raise KeyboardInterrupt from None
    finally:
        ray.shutdown()


def _start(options: ServeOptions, ended: threading.Event) -> None:
    http = HTTPOptions(host=options.host, port=options.port)
    target = serve.RunTarget(app(options), name=NAME, route_prefix="/")
    try:
        serve.start(http_options=http, proxy_location="HeadOnly")
        serve.run_many([target], wait_for_applications_running=False)
        while (service := serve.status().applications[NAME]).status not in STARTED:
            if ended.wait(0.2):
                raise KeyboardInterrupt
    except Exception as error:
        *_, last = str(error).strip().split("\n")  # Ray's begin with a traceback
        raise RequestFailed(f"The service did not start: {last[:400]}") from error
    if service.status == "DEPLOY_FAILED":
        # Serve's report of a replica that did not start is mostly traceback.
        parts = [*service.deployments.values(), service]
        report = "\n".join(part.message for part in parts)
        reason = (re.findall("could not be loaded: (.+)", report) or report.splitlines())[-1]
        raise RequestFailed(f"The service did not start: {reason[:400]}")
