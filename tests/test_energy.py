"""The counters of energy, from a made-up folder of the system's."""

import pytest

from specdemo.host.hardware import EnergyMeter


def add_zone(folder, zone: str, name: str, used: int) -> None:
    (folder / zone).mkdir(exist_ok=True)
    for file, value in {"name": name, "energy_uj": used, "max_energy_range_uj": 999}.items():
        (folder / zone / file).write_text(f"{value}\n")


def test_the_joules_of_all_packages_are_counted_once_and_across_the_end_of_a_counter(tmp_path):
    zones = [("intel-rapl:0", "package-0", 950), ("intel-rapl:1", "package-1", 50)]
    zones += [("intel-rapl:0:0", "core", 990), ("intel-rapl:2", "psys", 990)]
    for zone, name, _ in zones:
        add_zone(tmp_path, zone, name, 900)
    meter = EnergyMeter(tmp_path)
    assert meter.joules == 0
    for zone in zones:
        add_zone(tmp_path, *zone)
    assert meter.joules == pytest.approx((50 + 150) * 1e-6)


@pytest.mark.parametrize("trouble", ["no folder", "no package", "not allowed"])
def test_where_the_counters_cannot_be_read_there_are_no_joules(tmp_path, trouble):
    if trouble == "not allowed":
        add_zone(tmp_path, "intel-rapl:0", "package-0", 1)
        (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
        (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()  # root may read every file
    if trouble == "no package":
        add_zone(tmp_path, "intel-rapl:0", "psys", 1)
    folder = tmp_path / "none" if trouble == "no folder" else tmp_path
    assert EnergyMeter(folder).joules is None
