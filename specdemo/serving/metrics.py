"""Figures of one replica for Prometheus: requests, tokens, rounds, waiting. Counts; measures and serves nothing.

Names begin with `specdemo_`; a registry of its own keeps several engines in one process apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specdemo.serving.generation import Done, Event, Progress

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The counters of one engine."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("specdemo_requests", "Requests by how they ended", ["outcome"], registry=registry)
        self.in_flight = Gauge("specdemo_requests_in_flight", "Requests that are being answered", registry=registry)
        self.tokens = Counter("specdemo_tokens", "Tokens of answers", registry=registry)
        self.prompt_tokens = Counter("specdemo_prompt_tokens", "Tokens of prompts", registry=registry)
        self.rounds = Counter("specdemo_rounds", "Draft-and-verify rounds", registry=registry)
        self.drafted = Counter("specdemo_draft_tokens", "Tokens drafted", registry=registry)
        self.accepted = Counter("specdemo_draft_tokens_accepted", "Draft tokens accepted", registry=registry)
        self.first = Histogram("specdemo_time_to_first_token_seconds", "From the request to the first token",
                               buckets=SECONDS, registry=registry)  # fmt: skip
        self.whole = Histogram("specdemo_answer_seconds", "From the request to the end of its answer",
                               buckets=SECONDS, registry=registry)  # fmt: skip

    def begin(self) -> Record:
        """A request has begun; `end` the record when it has ended."""
        return Record(self)

    def text(self) -> str:
        """In the Prometheus text format."""
        return generate_latest(self.registry).decode()


class Record:
    """What one request adds to the figures."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._since = time.monotonic()
        self._waiting = True
        self._outcome: str | None = None
        self._ended = False
        metrics.in_flight.inc()

    def saw(self, event: Event) -> None:
        metrics = self._metrics
        if isinstance(event, Progress):
            if self._waiting and event.rounds:
                self._waiting = False
                metrics.first.observe(time.monotonic() - self._since)
            metrics.rounds.inc(len(event.rounds))
            metrics.tokens.inc(sum(len(one.tokens) for one in event.rounds))
            metrics.drafted.inc(sum(len(one.drafted) for one in event.rounds))
            metrics.accepted.inc(sum(one.accepted for one in event.rounds))
        elif isinstance(event, Done):
            metrics.prompt_tokens.inc(event.trace.prompt_tokens)
            self._outcome = "finished" if event.reason != "cancelled" else "cancelled"

    def end(self, outcome: str) -> None:
        """The request has ended so, unless its answer was finished before: readers leave after the last event."""
        if self._ended:
            return
        self._ended = True
        outcome = self._outcome or outcome
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(outcome).inc()
        if outcome == "finished":
            self._metrics.whole.observe(time.monotonic() - self._since)


def merged(texts: Mapping[str, str]) -> str:
    """The metrics of several replicas, by name, as one text in which each sample has the label `replica`."""
    families: dict[str, list[str]] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            name = family.name + "_total" if family.type == "counter" else family.name
            head = [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"]
            lines = families.setdefault(name, head)
            lines += [_line(sample.name, {**sample.labels, "replica": replica}, sample.value)
                      for sample in family.samples]  # fmt: skip
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{{{','.join(_label(*one) for one in labels.items())}}} {value!r}"


def _label(name: str, value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{value}"'
