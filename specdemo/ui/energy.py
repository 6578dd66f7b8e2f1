"""Joules of one race, where the processor's counters can be read: from each run's first token to its last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from specdemo.trace import BaselineToken, Round


class Tally:
    """Joules a token of one run, or None. `meter` is bench.energy.Meter or another that makes such a thing."""

    def __init__(self, meter: Any = None):
        self._make = meter
        self.joules: float | None = None
        self._tokens = 0

    def watch(self, events: Iterable[Any]) -> Iterator[Any]:
        """The events, unchanged; the counters are read when one of decoding passes."""
        meter = None
        for event in events:
            if isinstance(event, (Round, BaselineToken)):
                if meter is None:
                    meter = self._new_meter()
                else:
                    self._tokens += len(event.tokens) if isinstance(event, Round) else 1
                    self.joules = meter.joules()
            yield event

    @property
    def per_token(self) -> float | None:
        return None if self.joules is None or not self._tokens else self.joules / self._tokens

    def _new_meter(self):
        if self._make is None:
            from specdemo.bench.energy import Meter

            self._make = Meter
        return self._make()


def tallies(session: Any) -> tuple[Tally, Tally]:
    """Of a race on `session`, its two runs; one that runs elsewhere brings a meter of its own."""
    meter = getattr(session, "meter", None)
    return Tally(meter), Tally(meter)


def figures(speculative: Tally, plain: Tally) -> dict[str, float | None] | None:
    """Joules a token of both runs for the page, None where there are none to show."""
    if speculative.per_token is None and plain.per_token is None:
        return None
    return {"speculative": speculative.per_token, "plain": plain.per_token}
