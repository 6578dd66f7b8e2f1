"""Joules that the processor packages took, from the counters Linux keeps (RAPL), where this process may read them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/class/powercap")


class Meter:
    """Sums the package counters. `available` is false where there are none (most virtual machines) or where only
    root may read them; `joules()` is then None."""

    def __init__(self, root: Path = ROOT):
        self._counters: list[_Counter] = []
        for zone in sorted(root.glob("intel-rapl:*")):
            try:
                # Sub-zones (cores, DRAM) are named intel-rapl:0:1; packages alone already contain the cores.
                if (zone / "name").read_text().startswith("package"):
                    self._counters.append(_Counter(zone))
            except (OSError, ValueError):
                continue

    @property
    def available(self) -> bool:
        return bool(self._counters)

    def joules(self) -> float | None:
        """Joules since this meter was made. Call at least every few minutes: the counters wrap around."""
        if not self._counters:
            return None
        try:
            return sum(counter.joules() for counter in self._counters)
        except (OSError, ValueError):
            self._counters = []
            return None


class _Counter:
    def __init__(self, zone: Path):
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self._last = int(self._file.read_text())
        self._total = 0

    def joules(self) -> float:
        now = int(self._file.read_text())
        self._total += (now - self._last) % (self._range + 1)
        self._last = now
        return self._total / 1e6
