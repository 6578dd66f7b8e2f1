"""What the page remembers of runs: how to stop those in progress, and finished ones for links.

Bounded, in memory only: all is gone when the server ends.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from specdemo.trace import Trace, from_json, to_json


class Running:
    """The stop signals of the runs in progress, by browser session and kind of run."""

    def __init__(self):
        self._stops: dict[tuple[str, str], threading.Event] = {}

    @contextmanager
    def run(self, session: str | None, kind: str) -> Iterator[threading.Event]:
        """The stop signal of a new run, which ends an earlier run of the same session and kind. It
        is set when the run is left, however that happens."""
        self.stop(session, kind)
        stop = threading.Event()
        if session is not None:
            self._stops[session, kind] = stop
        try:
            yield stop
        finally:
            stop.set()
            if self._stops.get((session, kind)) is stop:
                del self._stops[session, kind]

    def stop(self, session: str | None, *kinds: str) -> None:
        """Stop the session's runs of these kinds; of every kind if none is named."""
        for key, stop in list(self._stops.items()):
            if key[0] == session and (not kinds or key[1] in kinds):
                stop.set()


class Finished:
    """Traces by id for links to them, the oldest dropped first. Thread safe."""

    def __init__(self, max_runs: int = 500, max_bytes: int = 20_000_000):
        self._max_runs, self._max_bytes = max_runs, max_bytes
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, run: str, trace: Trace) -> None:
        packed = zlib.compress(to_json(trace).encode(), 1)
        with self._lock:
            self._packed[run] = packed
            while (
                len(self._packed) > self._max_runs
                or sum(map(len, self._packed.values())) > self._max_bytes
            ):
                self._packed.popitem(last=False)

    def get(self, run: str) -> Trace | None:
        """The trace, or None when it was never here or has been dropped."""
        with self._lock:
            packed = self._packed.get(run)
        return None if packed is None else from_json(zlib.decompress(packed))
