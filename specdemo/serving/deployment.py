"""The service on Ray Serve: engines that each hold the pair, and a gateway that speaks the API in front of them.

`app` builds it, for `specdemo serve` and for `serve deploy` alike. Ray places, watches, restarts, scales and balances;
the gateway moves a request whose engine died before it said anything, and says so of one that was already speaking.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from specdemo.engine.trace import BaselineToken, Trace
from specdemo.serving.backend import Busy, LocalBackend, NotReady, Unavailable
from specdemo.serving.generation import (
    Description,
    Done,
    Event,
    Interrupted,
    Progress,
    Refused,
    Request,
    Started,
    Waits,
)
from specdemo.serving.metrics import merged
from specdemo.serving.openai_api import create_app
from specdemo.serving.options import ServeOptions, open_engine
from specdemo.serving.web import key_from_environment

NAME, ENGINE, GATEWAY = "specdemo", "Engine", "Gateway"

ATTEMPTS = 5
"""Replicas that a request which has not begun is sent to, one after another, before it is given up."""

REPORT_SECONDS = 2.0
"""How long a replica may take to say how it is."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How one engine is. `metrics` in the Prometheus text format."""

    replica: str
    node: str
    pid: int
    in_flight: int
    metrics: str


@serve.deployment(name=ENGINE)
class EngineReplica:
    """One pair with its engine, in a process of its own."""

    def __init__(self, options: ServeOptions):
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
        self._backend = ReplicaBackend(engine, start_seconds=options.start_seconds)
        self._options = options

    def __serve_build_asgi_app__(self) -> Starlette:
        return create_app(
            self._backend, key=key_from_environment(), default_limit=self._options.max_new_tokens, request_ids=False
        )


class ReplicaBackend:
    """A Backend whose answers come from whichever replica Serve chooses."""

    def __init__(self, engine: DeploymentHandle, *, start_seconds: float):
        self._engine = engine
        self._stream = engine.options(stream=True)
        self._start_seconds = start_seconds
        self._description: Description | None = None
        self._reported: tuple[float, list[ReplicaReport]] = (0.0, [])
        self._asking = asyncio.Lock()
        self._registry = CollectorRegistry()
        self._moved = Counter("specdemo_requests_moved", "Requests sent to another replica because theirs died",
                              registry=self._registry)  # fmt: skip
        self._cut = Counter("specdemo_requests_interrupted", "Answers cut off because their replica died",
                            registry=self._registry)  # fmt: skip

    async def describe(self) -> Description:
        if self._description is None:
            if not await self._reports():
                raise NotReady("No replica is ready yet; the model is being loaded.", 2)
            try:
                self._description = await asyncio.wait_for(self._engine.describe.remote(), REPORT_SECONDS)
            except (TimeoutError, RayError) as error:
                raise NotReady("No replica can be asked at the moment.", 2) from error
        return self._description

    async def health(self) -> dict[str, Any]:
        reports = await self._reports()
        status = "ready" if reports else "loading"
        return {"status": status, "replicas": len(reports), "in_flight": sum(one.in_flight for one in reports)}

    async def metrics(self) -> str:
        reports = await self._reports()
        return merged({one.replica: one.metrics for one in reports}) + generate_latest(self._registry).decode()

    async def _reports(self) -> list[ReplicaReport]:
        """What every replica that runs now says of itself; asked for at most twice a second."""
        async with self._asking:
            at, reports = self._reported
            now = time.monotonic()
            if now - at < 0.5:
                return reports
            try:
                response = self._engine.broadcast("report")
                answers = await response.results_async(timeout_s=REPORT_SECONDS, return_exceptions=True)
                reports = [one for one in answers if isinstance(one, ReplicaReport)]
            except TimeoutError:  # one that is slow to answer is not gone yet
                reports = reports if now - at < 5 * REPORT_SECONDS else []
            except (RayError, DeploymentUnavailableError):
                reports = []
            self._reported = (time.monotonic(), reports)
            return reports

    async def generate(self, request: Request) -> AsyncIterator[list[Event]]:
        started = False
        async with aclosing(self._events("generate", request)) as batches:
            async for batch in batches:
                if started:  # said again by the replica that took over
                    batch = [event for event in batch if not isinstance(event, Started)]
                started = True
                if batch:
                    yield batch
                    if isinstance(batch[-1], Done):
                        return

    async def baseline(self, trace: Trace) -> AsyncIterator[list[BaselineToken | Waits | Trace]]:
        async with aclosing(self._events("baseline", trace)) as batches:
            async for batch in batches:
                yield batch

    async def _events(self, method: str, argument: Any) -> AsyncIterator[list[Any]]:
        """What a replica yields; another one is asked when it dies before it has said anything of the answer."""
        said = False
        for _ in range(ATTEMPTS):
            response = getattr(self._stream, method).remote(argument)
            try:
                batch = await self._first(response)
                while True:
                    if isinstance(batch, Exception):
                        raise batch
                    said = said or any(isinstance(event, Progress | BaselineToken) for event in batch)
                    yield batch
                    try:
                        batch = await anext(response)
                    except StopAsyncIteration:
                        return
            except RayActorError as error:
                if said:
                    self._cut.inc()
                    raise Interrupted(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
                self._moved.inc()
            except BackPressureError as error:
                raise Busy("As many requests as may wait are waiting; try again in a moment.") from error
            except DeploymentUnavailableError as error:
                raise NotReady("The engine could not be deployed; its log says why.", 30) from error
            finally:
                response.cancel()
        raise NotReady(f"{ATTEMPTS} replicas died before they could begin this answer.", 5)

    async def _first(self, response: Any) -> Any:
        """The first that comes. Raises Busy or NotReady when nothing does for `start_seconds`."""
        try:
            return await asyncio.wait_for(anext(response), self._start_seconds)
        except TimeoutError as error:
            waited = f"No replica could begin this answer in {self._start_seconds:g} s"
            if await self._reports():
                raise Busy(f"{waited}; all are busy.", 5) from error
            raise NotReady(f"{waited}; none is ready.", 5) from error
        except StopAsyncIteration:
            raise Interrupted("The replica ended without an answer.") from None


def app(args: ServeOptions) -> Application:
    """The application. `serve deploy` calls it with the `args` of its config file, checked as ServeOptions."""
    scale: dict[str, Any] = {"num_replicas": args.least}
    if args.autoscaling:
        scale = {
            "autoscaling_config": {
                "min_replicas": args.least,
                "max_replicas": args.most,
                "target_ongoing_requests": args.target_ongoing or max(args.ongoing / 2, 1),
                "upscale_delay_s": args.upscale_seconds,
                "downscale_delay_s": args.downscale_seconds,
                "look_back_period_s": 10.0,
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
    return Gateway.options(num_replicas=args.gateways, logging_config={"enable_access_log": False}).bind(engine, args)
