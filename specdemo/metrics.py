"""What the server counts: requests by outcome, tokens, acceptance, queue, cache, times; in
Prometheus text format.

Knows no page and no model. Nothing of what a visitor wrote is kept or logged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from specdemo.trace import Trace

log = logging.getLogger("specdemo.requests")

OUTCOMES = ("stop", "length", "context", "cancelled", "timeout", "refused", "error")
"""How a request ended: as its answer did, or stopped, over its time, not taken, or failed."""

FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Gauges:
    """What holds right now. `blocks` are name, used, kept for prompts, and limit (or None) of each
    KV cache."""

    visitors: int = 0
    active: int = 0
    waiting: int = 0
    restarts: int = 0
    blocks: tuple[tuple[str, int, int, int | None], ...] = ()


class Metrics:
    """The counters of one server, thread safe. `now` is asked for the gauges whenever somebody
    reads."""

    def __init__(self, now: Callable[[], Gauges] = Gauges):
        self.registry = CollectorRegistry()
        labels = {"registry": self.registry, "namespace": "specdemo"}
        self.requests = Counter("requests", "Requests by kind and outcome", ["kind", "outcome"], **labels)
        self.tokens = Counter("tokens", "Tokens of answers", ["kind"], **labels)
        self.drafted = Counter("draft_tokens", "Draft tokens proposed", **labels)
        self.accepted = Counter("draft_tokens_accepted", "Draft tokens accepted", **labels)
        self.errors = Counter("errors", "Failures by the kind of exception", ["exception"], **labels)
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From the request to its first token, waiting included",
            buckets=FIRST_TOKEN_SECONDS, **labels)  # fmt: skip
        self.registry.register(_Now(now))

    def text(self) -> bytes:
        """All of it, in Prometheus text format."""
        return generate_latest(self.registry)


class _Now(Collector):
    def __init__(self, now: Callable[[], Gauges]):
        self._now = now

    def describe(self):
        return []

    def collect(self):
        now = self._now()
        for name, value, words in (
            ("visitors", now.visitors, "Visitors with a request"),
            ("requests_active", now.active, "Requests that share the models now"),
            ("requests_waiting", now.waiting, "Requests that wait for their turn"),
            ("engine_restarts", now.restarts, "Times that the engine's loop had to be restarted"),
        ):
            yield GaugeMetricFamily(f"specdemo_{name}", words, value)
        used = GaugeMetricFamily("specdemo_cache_blocks_used", "KV cache blocks in use", labels=["cache"])
        limit = GaugeMetricFamily("specdemo_cache_blocks_limit", "KV cache blocks there are", labels=["cache"])
        for name, count, _, most in now.blocks:
            used.add_metric([name], count)
            if most is not None:
                limit.add_metric([name], most)
        yield used
        yield limit


class Record:
    """One request's counts, from its beginning to `end`; a log line sums it up. Times by the
    monotonic clock."""

    def __init__(self, metrics: Metrics, kind: str, request: str):
        self._metrics, self._kind, self._request = metrics, kind, request
        self._begun = time.monotonic()
        self._first: float | None = None
        self._tokens = 0
        self._ended = False

    def added(self, tokens: int) -> None:
        """`tokens` more of the answer were made."""
        self._tokens += tokens
        if self._first is None:
            self._first = time.monotonic() - self._begun
            if self._kind == "answer":
                self._metrics.first_token.observe(self._first)

    def drafted(self, drafted: int, accepted: int) -> None:
        self._metrics.drafted.inc(drafted)
        self._metrics.accepted.inc(accepted)

    def end(self, outcome: str, trace: Trace | None = None, error: BaseException | None = None) -> None:
        """The request ended with one of OUTCOMES. Only the first call counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.monotonic() - self._begun
        self._metrics.requests.labels(self._kind, outcome).inc()
        self._metrics.tokens.labels(self._kind).inc(self._tokens)
        if error is not None:
            self._metrics.errors.labels(type(error).__name__).inc()
        log.info(
            "%s %s %s prompt=%s tokens=%d first_token=%s seconds=%.2f shared_with=%s",
            self._request, self._kind, outcome, "-" if trace is None else trace.prompt_tokens, self._tokens,
            "-" if self._first is None else f"{self._first:.3f}", seconds,
            "-" if trace is None else trace.shared_with,
        )  # fmt: skip


def log_requests() -> None:
    """Write a line for each request on standard error. SPECDEMO_LOG names another level than INFO.
    """
    level = os.environ.get("SPECDEMO_LOG", "INFO").upper()
    logger = logging.getLogger("specdemo")
    logger.setLevel(level if isinstance(logging.getLevelName(level), int) else "INFO")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
