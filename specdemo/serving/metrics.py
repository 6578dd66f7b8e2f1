"""Figures of one engine for Prometheus: those of `specdemo.metrics`, and rounds and whole answers. Measures nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from specdemo import metrics
from specdemo.serving.generation import Done, Event, Progress

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics(metrics.Metrics):
    """The counters of one engine; `now` is asked for its gauges."""

    def __init__(self, now: Callable[[], metrics.Gauges] = metrics.Gauges):
        super().__init__(now)
        labels = {"registry": self.registry, "namespace": "specdemo"}
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts that were answered", **labels)
        self.rounds = Counter("rounds", "Draft-and-verify rounds", **labels)
        self.whole = Histogram("answer_seconds", "From the request to the end of its answer, waiting included",
                               buckets=SECONDS, **labels)  # fmt: skip


class Record(metrics.Record):
    """What one answer adds to the figures."""

    def __init__(self, of: Metrics):
        super().__init__(of, "answer", uuid.uuid4().hex[:8])
        self._of = of
        self._since = time.monotonic()

    def saw(self, event: Event) -> None:
        """Count an event; Done ends the record."""
        if isinstance(event, Progress):
            for one in event.rounds:
                self._of.rounds.inc()
                self.added(len(one.tokens))
                self.drafted(len(one.drafted), one.accepted)
        elif isinstance(event, Done):
            self._of.prompt_tokens.inc(event.trace.prompt_tokens)
            self._of.whole.observe(time.monotonic() - self._since)
            self.end(event.reason, event.trace)


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
