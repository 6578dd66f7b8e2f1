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
        self._begin = self._read()

    def _read(self) -> list[int] | None:
        """Each package's counter in microjoules."""
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones]
        except (OSError, ValueError):
            return None

    @property
    def joules(self) -> float | None:
        """Joules used so far; None where the counters cannot be read."""
        end = self._read()
        if not self._zones or self._begin is None or end is None:
            return None
        try:
            ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        except (OSError, ValueError):
            return None
        counters = zip(self._begin, end, ranges, strict=True)
        # A counter begins again at 0 after its range, an hour at 70 W.
        return sum((last - first) % (most + 1) for first, last, most in counters) * MICRO


def _is_package(zone: Path) -> bool:
    """Whether the zone is a whole package: parts have two colons, and `psys` counts packages
    again."""
    try:
        return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
    except OSError:
        return False
