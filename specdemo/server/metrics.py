"""A server's metrics for Prometheus: requests by outcome, tokens, queue, cache, times. No text of a
request is kept or logged."""

import json
import logging
import os
import time
from collections import Counter as Counts
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, Busy
from specdemo.options import shown
from specdemo.runs.trace import BaselineToken, Trace

log = logging.getLogger("specdemo.requests")

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")
"""Set by the RequestGuard; in each line of the log, and a header of the response."""

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The counters of one server (thread safe)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry, namespace="specdemo")
        gauge = partial(Gauge, registry=self._registry, namespace="specdemo")
        histogram = partial(
            Histogram, registry=self._registry, namespace="specdemo", buckets=SECONDS
        )
        self.requests = counter("requests", "Requests by kind and outcome", ["kind", "outcome"])
        self.tokens = counter("tokens", "Tokens of answers", ["kind"])
        self.prompt_tokens = counter("prompt_tokens", "Tokens of answered prompts")
        self.rounds = counter("rounds", "Draft-and-verify rounds")
        self.drafted = counter("draft_tokens", "Draft tokens proposed")
        self.accepted = counter("draft_tokens_accepted", "Draft tokens accepted")
        self.errors = counter("errors", "Failures by kind of exception", ["exception"])
        self.first_token_seconds = histogram(
            "time_to_first_token_seconds", "From the request to its first token, waiting included"
        )
        self.answer_seconds = histogram(
            "answer_seconds", "From the request to the end of its answer, waiting included"
        )
        self._blocks = {
            "used": gauge("cache_blocks_used", "KV cache blocks in use", ["cache"]),
            "limit": gauge("cache_blocks_limit", "Blocks there are", ["cache"]),
        }
        self._load = {
            "in_flight": gauge("visitors", "Visitors with a request"),
            "active": gauge("requests_active", "Requests that share the models now"),
            "queue": gauge("requests_waiting", "Requests that wait to be admitted"),
            "restarts": gauge("engine_restarts", "Restarts of the scheduler's thread"),
        }

    def text(self, health: Mapping[str, Any]) -> str:
        """All metrics, and the figures of `Host.health`, in the Prometheus text format."""
        for name, gauge in self._load.items():
            gauge.set(health[name])
        for name, gauge in self._blocks.items():
            gauge.clear()
            for cache, use in health["cache_blocks"].items():
                gauge.labels(cache).set(use[name])
        return generate_latest(self._registry).decode()


class Record(AbstractContextManager["Record"]):
    """Counts one request, with or without a baseline, and logs a line for it. Use it in a `with`
    around the request, and call `count` with every event. The block's end calls `end`."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._request = REQUEST_ID.get()  # a generator's steps may each have another context
        self._begun = time.monotonic()
        self._answered: float | None = None  # when the baseline began
        self._tokens = Counts(answer=0, baseline=0)
        self._ended = False

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        outcome = "cancelled"
        if isinstance(error, BadInput | Busy):
            outcome = "refused"
        elif isinstance(error, Exception):
            self._metrics.errors.labels(type(error).__name__).inc()
            outcome = "error"
        self.end(outcome)

    def count(self, event: Any) -> None:
        """Count a round or a baseline token. A Trace ends the record; other events are ignored."""
        if isinstance(event, Round):
            self._metrics.rounds.inc()
            self._metrics.drafted.inc(len(event.drafted))
            self._metrics.accepted.inc(event.accepted)
            if not self._tokens["answer"]:
                self._metrics.first_token_seconds.observe(time.monotonic() - self._begun)
            self._tokens["answer"] += len(event.tokens)
        elif isinstance(event, BaselineToken):
            self._tokens["baseline"] += 1
            self._answered = self._answered or time.monotonic()
        elif isinstance(event, Trace):
            self.end(event.finish_reason, event)

    def end(self, outcome: str, trace: Trace | None = None) -> None:
        """End the record with a finish reason, "timeout", "refused" or "error"; later calls do
        nothing."""
        if self._ended:
            return
        self._ended = True
        seconds = (self._answered or time.monotonic()) - self._begun
        kind = "baseline" if self._tokens["baseline"] else "answer"
        self._metrics.requests.labels(kind, outcome).inc()
        for name, count in self._tokens.items():
            self._metrics.tokens.labels(name).inc(count)
        if trace is not None:
            self._metrics.prompt_tokens.inc(trace.prompt_tokens)
            self._metrics.answer_seconds.observe(seconds)
        figures = {
            "kind": kind,
            "outcome": outcome,
            "prompt": trace.prompt_tokens if trace else None,
            "tokens": dict(self._tokens),
            "seconds": round(seconds, 3),
        }
        line = "%(kind)s %(outcome)s prompt=%(prompt)s tokens=%(tokens)s seconds=%(seconds).2f"
        log.info(line, figures, extra={"request": self._request})


def add_request(record: logging.LogRecord) -> bool:
    """A filter that gives a line of the log the id of its request, "-" if there is none."""
    vars(record).setdefault("request", REQUEST_ID.get())
    return True


class JsonLines(logging.Formatter):
    """A line of the log as a JSON object, with the figures of a request as fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "request": vars(record)["request"],
            "message": record.getMessage(),
            **(record.args if isinstance(record.args, dict) else {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def announce(line: str, file: TextIO | None = None) -> None:
    """Print a line about the server itself; with `--log-format json` it is a line of the log."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    if any(isinstance(formatter, JsonLines) for formatter in formatters):
        logging.getLogger("specdemo.server").info(line)
    else:
        print(line, file=file, flush=True)


LEVELS = "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"


def log_requests(log_format: Literal["text", "json"] = "text") -> None:
    """Log to standard error, with a line for each request, from level SPECDEMO_LOG on (INFO).
    Raises BadInput for a level that there is not."""
    level = os.environ.get("SPECDEMO_LOG", "").strip() or "INFO"
    if level.upper() not in LEVELS:
        raise BadInput(f"SPECDEMO_LOG is {shown(level)}; it must be one of {', '.join(LEVELS)}.")
    handler = logging.StreamHandler()
    handler.addFilter(add_request)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s [%(request)s] %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else text)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("specdemo").setLevel(level.upper())
