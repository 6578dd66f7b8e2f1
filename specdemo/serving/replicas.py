"""A Backend whose answers come from replicas: asks whichever its handle chooses, and another one when that dies.

Knows a handle and how its failures look, not who makes either (`deployment` does, with Ray), so that what happens when
replicas die, are full or are not there is tested without any.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest

from specdemo.trace import BaselineToken, Trace
from specdemo.serving.backend import Busy, NotReady
from specdemo.serving.generation import Description, Done, Event, Interrupted, Progress, Request, Started, Waits
from specdemo.serving.metrics import merged

ATTEMPTS = 5
"""Replicas that a request which has not begun is sent to, one after another, before it is given up."""

REPORT_SECONDS = 2.0
"""How long a replica may take to say how it is."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The exceptions that tell that a replica `died`, that the queue is `full`, that the deployment is `impossible`;
    `any` is what else a call may raise."""

    died: type[Exception]
    full: type[Exception]
    impossible: type[Exception]
    any: type[Exception]


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How one engine is. `metrics` in the Prometheus text format."""

    replica: str
    node: str
    pid: int
    in_flight: int
    metrics: str


class ReplicaBackend:
    """`engine` is a handle as Ray Serve has them: `options`, `METHOD.remote`, `broadcast`."""

    def __init__(self, engine: Any, failures: Failures, *, start_seconds: float):
        self._failures = failures
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
            # Told by all, rather than asked of one: a replica that is full would let the question wait.
            try:
                found = [one for one in await self._told("describe") if isinstance(one, Description)]
            except TimeoutError as error:
                raise NotReady("No replica can be asked at the moment.", 2) from error
            if not found:
                raise NotReady("No replica is ready yet; the model is being loaded.", 2)
            self._description = found[0]
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
                reports = [one for one in await self._told("report") if isinstance(one, ReplicaReport)]
            except TimeoutError:  # one that is slow to answer is not gone yet
                reports = reports if now - at < 5 * REPORT_SECONDS else []
            self._reported = (time.monotonic(), reports)
            return reports

    async def _told(self, method: str) -> list[Any]:
        """What every replica says when it is asked for `method`, the exceptions of those that cannot among it."""
        try:
            response = self._engine.broadcast(method)
            return await response.results_async(timeout_s=REPORT_SECONDS, return_exceptions=True)
        except (self._failures.any, self._failures.impossible) as error:
            if isinstance(error, TimeoutError):
                raise
            return []

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
            except self._failures.died as error:
                if said:
                    self._cut.inc()
                    raise Interrupted(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
                self._moved.inc()
            except self._failures.full as error:
                raise Busy("As many requests as may wait are waiting; try again in a moment.") from error
            except self._failures.impossible as error:
                raise NotReady("The engine could not be deployed; its log says why.", 30) from error
            finally:
                with contextlib.suppress(Exception):  # of a call that has failed it raises that failure once more
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
