"""What a server counts, for Prometheus: requests by outcome, tokens, queue, cache, times.

Knows no page and no model. Nothing of what a visitor wrote is kept or logged.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specdemo.engine.rounds import Round
from specdemo.trace import BaselineToken, Trace

if TYPE_CHECKING:
    from specdemo.session import Session

log = logging.getLogger("specdemo.requests")

OUTCOMES = ("stop", "length", "context", "cancelled", "timeout", "refused", "error")
"""How a request ended: as its answer did, stopped, over its time, not taken on, or failed."""

FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ANSWER_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Gauges:
    """What holds now. `blocks`: name, used, kept for prompts, limit or None of each KV cache."""

    visitors: int = 0
    active: int = 0
    waiting: int = 0
    restarts: int = 0
    blocks: tuple[tuple[str, int, int, int | None], ...] = ()

    @classmethod
    def of(cls, session: Session | None, visitors: int = 0) -> Gauges:
        """The gauges of a session, None while there is none."""
        if session is None:
            return cls(visitors)
        load, caches = session.load, session.cache_blocks().items()
        blocks = tuple((name, use.used, use.kept, use.limit) for name, use in caches)
        return cls(visitors, load.active, load.waiting, load.restarts, blocks)


class Metrics(Collector):
    """The counters of one server, thread safe. `now` is asked for the gauges at each reading."""

    def __init__(self, now: Callable[[], Gauges] = Gauges):
        self._now = now
        self.registry = CollectorRegistry()
        common = {"registry": self.registry, "namespace": "specdemo"}
        labels = ["kind", "outcome"]
        self.requests = Counter("requests", "Requests by kind and outcome", labels, **common)
        self.tokens = Counter("tokens", "Tokens of answers", ["kind"], **common)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of answered prompts", **common)
        self.rounds = Counter("rounds", "Draft-and-verify rounds", **common)
        self.drafted = Counter("draft_tokens", "Draft tokens proposed", **common)
        self.accepted = Counter("draft_tokens_accepted", "Draft tokens accepted", **common)
        self.errors = Counter("errors", "Failures by kind of exception", ["exception"], **common)
        self.first_token = Histogram(
            "time_to_first_token_seconds",
            "From the request to its first token, waiting included",
            buckets=FIRST_TOKEN_SECONDS,
            **common,
        )
        self.whole = Histogram(
            "answer_seconds",
            "From the request to the end of its answer, waiting included",
            buckets=ANSWER_SECONDS,
            **common,
        )
        self.registry.register(self)

    def text(self) -> bytes:
        """All of it, in Prometheus text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        """The gauges; called by the registry."""
        now = self._now()
        for name, value, words in (
            ("visitors", now.visitors, "Visitors with a request"),
            ("requests_active", now.active, "Requests that share the models now"),
            ("requests_waiting", now.waiting, "Requests that wait to be admitted"),
            ("engine_restarts", now.restarts, "Restarts of the scheduler's thread"),
        ):
            yield GaugeMetricFamily(f"specdemo_{name}", words, value)
        used = GaugeMetricFamily(
            "specdemo_cache_blocks_used", "KV cache blocks in use", labels=["cache"]
        )
        limit = GaugeMetricFamily(
            "specdemo_cache_blocks_limit", "KV cache blocks there are", labels=["cache"]
        )
        for name, count, _, most in now.blocks:
            used.add_metric([name], count)
            if most is not None:
                limit.add_metric([name], most)
        yield used
        yield limit


class Record:
    """Counts one request, an answer with or without a baseline, and logs a line for each.

    `saw` every event, then `end`. Times are of the monotonic clock.
    """

    def __init__(self, metrics: Metrics, request: str | None = None, kind: str = "answer"):
        self._metrics, self._kind = metrics, kind
        self._request = request or uuid.uuid4().hex[:8]
        self._begun = time.monotonic()
        self._first: float | None = None
        self._tokens = 0
        self._ended = False
        self._baseline: Record | None = None

    def saw(self, event: Any) -> None:
        """Count a round or a baseline token. A Trace ends the record; others are ignored."""
        if isinstance(event, Round):
            self._metrics.rounds.inc()
            self._metrics.drafted.inc(len(event.drafted))
            self._metrics.accepted.inc(event.accepted)
            self._added(len(event.tokens))
        elif isinstance(event, BaselineToken):
            if self._kind == "answer" and self._baseline is None:
                self._baseline = Record(self._metrics, self._request, "baseline")
            (self._baseline or self)._added(1)
        elif isinstance(event, Trace):
            self.end(event.finish_reason, event)

    def _added(self, tokens: int) -> None:
        self._tokens += tokens
        if self._first is None:
            self._first = time.monotonic() - self._begun
            if self._kind == "answer":
                self._metrics.first_token.observe(self._first)

    def end(
        self, outcome: str, trace: Trace | None = None, error: BaseException | None = None
    ) -> None:
        """The request ended with one of OUTCOMES. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        baseline = self._baseline
        if baseline is None:
            self._count(outcome, trace, error, time.monotonic())
        else:  # the answer had ended before its baseline began
            answered = "length" if trace is None else trace.finish_reason
            self._count(answered, trace, None, baseline._begun)
            stopped = trace is not None and trace.identical is None
            baseline.end("cancelled" if stopped else outcome, trace, error)

    def _count(
        self, outcome: str, trace: Trace | None, error: BaseException | None, ended: float
    ) -> None:
        seconds = ended - self._begun
        if trace is not None and self._kind == "answer":
            self._metrics.prompt_tokens.inc(trace.prompt_tokens)
            self._metrics.whole.observe(seconds)
        self._metrics.requests.labels(self._kind, outcome).inc()
        self._metrics.tokens.labels(self._kind).inc(self._tokens)
        if error is not None:
            self._metrics.errors.labels(type(error).__name__).inc()
        log.info(
            "%s %s %s prompt=%s tokens=%d first_token=%s seconds=%.2f shared_with=%s",
            self._request,
            self._kind,
            outcome,
            "-" if trace is None else trace.prompt_tokens,
            self._tokens,
            "-" if self._first is None else f"{self._first:.3f}",
            seconds,
            "-" if trace is None else trace.shared_with,
        )


def log_requests() -> None:
    """Write a line for each request on standard error. SPECDEMO_LOG names a level but INFO."""
    level = os.environ.get("SPECDEMO_LOG", "INFO").upper()
    logger = logging.getLogger("specdemo")
    logger.setLevel(level if isinstance(logging.getLevelName(level), int) else "INFO")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
