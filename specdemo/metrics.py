"""What a server counts, for Prometheus: requests by outcome, tokens, queue, cache, times.

Knows no page and no model. Nothing of what a visitor wrote is kept or logged.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, Busy
from specdemo.trace import BaselineToken, Trace

if TYPE_CHECKING:
    from specdemo.session import Session

log = logging.getLogger("specdemo.requests")

FIRST_TOKEN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ANSWER_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server, thread safe. `session` and `visitors` are asked at each
    reading."""

    def __init__(
        self,
        session: Callable[[], Session | None] = lambda: None,
        visitors: Callable[[], int] = lambda: 0,
    ):
        self._session, self._visitors = session, visitors
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

    def collect(self) -> Iterable[Metric]:
        """The gauges; called by the registry."""
        session = self._session()
        load = session.load if session else None
        caches = session.cache_blocks() if session else {}
        for name, value, words in (
            ("visitors", self._visitors(), "Visitors with a request"),
            ("requests_active", load.active if load else 0, "Requests that share the models now"),
            ("requests_waiting", load.waiting if load else 0, "Requests that wait to be admitted"),
            ("engine_restarts", load.restarts if load else 0, "Restarts of the scheduler's thread"),
        ):
            yield GaugeMetricFamily(f"specdemo_{name}", words, value)
        blocks = "specdemo_cache_blocks"
        used = GaugeMetricFamily(f"{blocks}_used", "KV cache blocks in use", labels=["cache"])
        limit = GaugeMetricFamily(f"{blocks}_limit", "KV cache blocks there are", labels=["cache"])
        for name, use in caches.items():
            used.add_metric([name], use.used)
            if use.limit is not None:
                limit.add_metric([name], use.limit)
        yield used
        yield limit


class Record:
    """Counts one request, an answer with or without a baseline, and logs a line for each.

    `with` it around the request: `saw` every event. What leaves the block ends it, if `end` did
    not.
    """

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._name = uuid.uuid4().hex[:8]
        self._begun = time.monotonic()
        self._first: float | None = None
        self._answered: float | None = None  # when the baseline began
        self._tokens = {"answer": 0, "baseline": 0}
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BadInput | Busy):
            self.end("refused")
        elif isinstance(error, Exception):
            self.end("error", error=error)
        else:
            self.end("cancelled")

    def saw(self, event: Any) -> None:
        """Count a round or a baseline token. A Trace ends the record; others are ignored."""
        if isinstance(event, Round):
            self._metrics.rounds.inc()
            self._metrics.drafted.inc(len(event.drafted))
            self._metrics.accepted.inc(event.accepted)
            self._tokens["answer"] += len(event.tokens)
            if self._first is None:
                self._first = time.monotonic() - self._begun
                self._metrics.first_token.observe(self._first)
        elif isinstance(event, BaselineToken):
            self._tokens["baseline"] += 1
            self._answered = self._answered or time.monotonic()
        elif isinstance(event, Trace):
            self.end(event.finish_reason, event)

    def end(
        self, outcome: str, trace: Trace | None = None, error: BaseException | None = None
    ) -> None:
        """The request ended with its finish reason, "timeout", "refused" or "error". Only the first
        call counts."""
        if self._ended:
            return
        self._ended = True
        now = time.monotonic()
        if error is not None:
            self._metrics.errors.labels(type(error).__name__).inc()
        if trace is not None:
            self._metrics.prompt_tokens.inc(trace.prompt_tokens)
            self._metrics.whole.observe((self._answered or now) - self._begun)
        if self._answered is None:
            self._count("answer", outcome, trace, now - self._begun)
        else:
            answered = "length" if trace is None else trace.finish_reason
            self._count("answer", answered, trace, self._answered - self._begun)
            stopped = trace is not None and trace.identical is None
            self._count(
                "baseline", "cancelled" if stopped else outcome, trace, now - self._answered
            )

    def _count(self, kind: str, outcome: str, trace: Trace | None, seconds: float) -> None:
        self._metrics.requests.labels(kind, outcome).inc()
        self._metrics.tokens.labels(kind).inc(self._tokens[kind])
        log.info(
            "%s %s %s prompt=%s tokens=%d first_token=%s seconds=%.2f shared_with=%s",
            self._name,
            kind,
            outcome,
            "-" if trace is None else trace.prompt_tokens,
            self._tokens[kind],
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
