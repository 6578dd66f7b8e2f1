"""A Backend whose answers come from replicas: asks one, and another when that dies.

Knows a handle and what its failures look like, not Ray (`deployment` does), so that what happens
when replicas die, are full or are missing is tested without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdemo.engine.scheduler import Waiting
from specdemo.errors import Busy, RequestFailed
from specdemo.serving.backend import Event, NotReady
from specdemo.serving.schema import CommonRequest

ATTEMPTS = 5  # replicas that a request which has not begun is sent to, one after another

START_SECONDS = 60.0  # how long a request may wait for a replica to begin

REPORT_SECONDS = 5.0  # how long replicas may take to report


class Failures(NamedTuple):
    """The exceptions of a call: a replica `died`, the queue is `full`, there is `none` to ask."""

    died: type[Exception]
    full: type[Exception]
    none: tuple[type[Exception], ...]


class ReplicaBackend:
    """`engine` is a handle of Ray Serve: `options`, `METHOD.remote`, `broadcast`."""

    def __init__(self, engine: Any, failures: Failures):
        self._failures = failures
        self._engine = engine
        self._stream = engine.options(stream=True)
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
        in_flight = sum(one["in_flight"] for one in reports)
        status = "ready" if reports else "loading"
        return {"status": status, "replicas": len(reports), "in_flight": in_flight}

    async def metrics(self) -> str:
        return merged({one["replica"]: one["metrics"] for one in await self._reports()})

    async def _reports(self) -> list[dict[str, Any]]:
        """What every running replica reports (`deployment.EngineReplica.report`). All are asked,
        not one: a full replica would let the question wait."""
        try:
            told = await self._engine.broadcast("report").results_async(
                timeout_s=REPORT_SECONDS, return_exceptions=True
            )
        except (TimeoutError, *self._failures.none):
            return []
        return [one for one in told if isinstance(one, dict)]

    async def answer(self, asked: CommonRequest) -> AsyncIterator[Event | None]:
        """As LocalBackend.answer. Another replica is asked when one dies before the first round."""
        begun = False
        for _ in range(ATTEMPTS):
            response = self._stream.answer.remote(asked)
            try:
                event = await asyncio.wait_for(anext(response), START_SECONDS)
                while True:
                    if isinstance(event, Exception):
                        raise event
                    begun = begun or bool(event and not isinstance(event.what, int | Waiting))
                    yield event
                    if event and event.reason:
                        return
                    event = await anext(response)
            except StopAsyncIteration:
                raise RequestFailed("The replica ended without an answer.") from None
            except self._failures.died as error:
                if begun:
                    raise RequestFailed(
                        "The replica that was giving this answer has died; send the request again."
                    ) from error
            except self._failures.full as error:
                raise Busy("The queue is full; try again in a moment.") from error
            except (TimeoutError, *self._failures.none) as error:
                raise NotReady("No replica could begin this answer; try again later.") from error
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
