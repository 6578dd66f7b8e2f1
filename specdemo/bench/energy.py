"""Energy of the processor packages in joules, from Linux's RAPL counters if they are readable."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/class/powercap")


class Meter:
    """Sums the package counters. `joules()` is None if there are none (most virtual machines) or if
    only root may read them."""

    def __init__(self) -> None:
        self._ranges: dict[Path, int] = {}
        self._last: dict[Path, int] = {}
        self._microjoules = 0
        # Sub-zones (cores, DRAM) are named intel-rapl:0:1; packages contain the cores.
        for zone in ROOT.glob("intel-rapl:*"):
            with suppress(OSError):
                if (zone / "name").read_text().startswith("package"):
                    self._ranges[zone] = int((zone / "max_energy_range_uj").read_text()) + 1
                    self._last[zone] = int((zone / "energy_uj").read_text())

    def joules(self) -> float | None:
        """Joules since this meter was made. Call every few minutes: the counters wrap around."""
        for zone, before in self._last.items():
            now = self._last[zone] = int((zone / "energy_uj").read_text())
            self._microjoules += (now - before) % self._ranges[zone]
        return self._microjoules / 1e6 if self._last else None
