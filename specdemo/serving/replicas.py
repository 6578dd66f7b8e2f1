"""A Backend whose answers come from replicas: asks one, and another when that dies.

Knows a handle and what its failures look like, not Ray (`deployment` does), so that what happens
when replicas die, are full or are missing is tested without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdemo.engine.handle import Waiting
from specdemo.errors import Busy, RequestFailed
from specdemo.serving.backend import Event, NotReady
from specdemo.serving.schema import Job

ATTEMPTS = 5  # replicas that a request which has not begun is sent to, one after another

REPORT_SECONDS = 2.0  # how long a replica may take to report


@dataclass(frozen=True, slots=True)
class Failures:
    """The exceptions that mean: a replica `died`, the queue is `full`, the deployment is
    `impossible`, and `any` other that a call may raise."""

    died: type[Exception]
    full: type[Exception]
    impossible: type[Exception]
    any: type[Exception]


Report = dict[str, Any]
"""What EngineReplica reports of itself (`deployment`)."""


class ReplicaBackend:
    """`engine` is a handle of Ray Serve: `options`, `METHOD.remote`, `broadcast`."""

    def __init__(self, engine: Any, failures: Failures, *, start_seconds: float):
        self._failures = failures
        self._engine = engine
        self._stream = engine.options(stream=True)
        self._start_seconds = start_seconds
        self._model: dict[str, Any] | None = None
        self._reported: tuple[float, list[Report]] = (0.0, [])
        self._asking = asyncio.Lock()
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry, namespace="specdemo")
        self._moved = counter("requests_moved", "Requests sent to another: their replica died")
        self._cut = counter("requests_interrupted", "Answers cut off: their replica died")

    async def model(self) -> dict[str, Any]:
        if self._model is None:
            reports = await self._reports()
            if not reports:
                raise NotReady("No replica is ready yet; the model is being loaded.")
            self._model = reports[0]["model"]
        return self._model

    async def health(self) -> dict[str, Any]:
        reports = await self._reports()
        in_flight = sum(one["in_flight"] for one in reports)
        status = "ready" if reports else "loading"
        return {"status": status, "replicas": len(reports), "in_flight": in_flight}

    async def metrics(self) -> str:
        texts = {one["replica"]: one["metrics"] for one in await self._reports()}
        return merged(texts) + generate_latest(self._registry).decode()

    async def _reports(self) -> list[Report]:
        """What every running replica reports; asked for at most twice a second."""
        async with self._asking:
            at, reports = self._reported
            now = time.monotonic()
            if now - at < 0.5:
                return reports
            try:
                # All are asked, not one: a full replica would let the question wait.
                told = await self._engine.broadcast("report").results_async(
                    timeout_s=REPORT_SECONDS, return_exceptions=True
                )
                reports = [one for one in told if isinstance(one, dict)]
            except TimeoutError:  # a slow one is not gone yet
                reports = reports if now - at < 5 * REPORT_SECONDS else []
            except (self._failures.any, self._failures.impossible):
                reports = []
            self._reported = (time.monotonic(), reports)
            return reports

    async def answer(self, job: Job) -> AsyncIterator[Event]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun = started = False
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(job)
            try:
                event = await asyncio.wait_for(anext(response), self._start_seconds)
                while True:
                    if isinstance(event, Exception):
                        raise event
                    begun = begun or not isinstance(event.what, int | Waiting)
                    if not (started and isinstance(event.what, int)):  # another replica repeats it
                        yield event
                    started = True
                    if event.reason:
                        return
                    event = await anext(response)
            except StopAsyncIteration:
                raise RequestFailed("The replica ended without an answer.") from None
            except self._failures.died as error:
                if begun:
                    self._cut.inc()
                    raise RequestFailed(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
                self._moved.inc()
            except self._failures.full as error:
                raise Busy("The queue is full; try again in a moment.") from error
            except self._failures.impossible as error:
                raise NotReady("The engine could not be deployed; see its log.") from error
            except TimeoutError as error:
                waited = f"No replica could begin this answer in {self._start_seconds:g} s"
                if await self._reports():
                    raise Busy(f"{waited}; all are busy.") from error
                raise NotReady(f"{waited}; none is ready.") from error
            finally:
                with contextlib.suppress(Exception):  # a failed call raises its failure again
                    response.cancel()
        raise NotReady(f"{ATTEMPTS} replicas died before they could begin this answer.")


def merged(texts: Mapping[str, str]) -> str:
    """The metrics of replicas, by name, as one text; each sample gets the label `replica`."""
    found: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            new = Metric(family.name, family.documentation, family.type)
            one = found.setdefault(family.name, new)
            for sample in family.samples:
                one.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    return generate_latest(SimpleNamespace(collect=found.values)).decode()
