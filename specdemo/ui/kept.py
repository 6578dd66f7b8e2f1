"""Finished runs that a shared link can show again, while this server runs. Bounded in number and in bytes; not on disk."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict

from specdemo.trace import Trace, from_json, to_json

MOST_RUNS = 500
MOST_BYTES = 20_000_000


class Kept:
    """Traces by id, the oldest dropped first. Thread safe."""

    def __init__(self, most_runs: int = MOST_RUNS, most_bytes: int = MOST_BYTES):
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, run: str, trace: Trace) -> None:
        packed = zlib.compress(to_json(trace).encode(), 1)
        with self._lock:
            self._packed[run] = packed
            while len(self._packed) > self._most_runs or self._bytes() > self._most_bytes:
                self._packed.popitem(last=False)

    def get(self, run: str) -> Trace | None:
        """The trace, or None when it was never here or has been dropped."""
        with self._lock:
            packed = self._packed.get(run)
        return None if packed is None else from_json(zlib.decompress(packed))

    def _bytes(self) -> int:
        return sum(map(len, self._packed.values()))
