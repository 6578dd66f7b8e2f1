"""The energy that the processors report, where the system lets this process read it."""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")  # Linux only; most systems let only root read the counters
PACKAGES = "intel-rapl:[0-9]*/energy_uj"  # those of AMD's processors have this name too
MICRO = 1e-6


class EnergyMeter:
    """Counts from the moment it is made what the processor packages of the machine used, for
    whatever program."""

    def __init__(self, folder: Path = POWERCAP):
        self._zones = [path.parent for path in folder.glob(PACKAGES) if _is_package(path.parent)]
        self._begin = self._read("energy_uj")

    def _read(self, name: str) -> list[int]:
        """The number in this file of each package, in microjoules; none if one is unreadable."""
        try:
            return [int((zone / name).read_text()) for zone in self._zones]
        except (OSError, ValueError):
            return []

    @property
    def joules(self) -> float | None:
        """Joules used so far; None where the counters cannot be read."""
        end, ranges = self._read("energy_uj"), self._read("max_energy_range_uj")
        counters = list(zip(self._begin, end, ranges, strict=False))
        # A counter begins again at 0 after its range, an hour at 70 W.
        used = sum((last - first) % (most + 1) for first, last, most in counters)
        return used * MICRO if counters else None


def _is_package(zone: Path) -> bool:
    """Whether the zone is a whole package: parts have two colons, and `psys` counts packages
    again."""
    try:
        return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
    except OSError:
        return False
