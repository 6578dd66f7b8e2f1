"""This machine: memory, processors, devices, energy."""

import errno
import importlib
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import psutil

from specdemo.engine.cost_measurement import waiting_times
from specdemo.engine.pair_files import TORCH
from specdemo.errors import TORCH_FIRST, FetchError, InvalidOption, MissingPackage, install
from specdemo.machine.terminal import counted, size

Result = TypeVar("Result")

TORCH_KINDS = ("cpu", "cuda", "xpu", "mps", "hpu")

OUT_OF_MEMORY = re.compile(
    "bad_alloc|out.of.memory|(cannot|failed to) allocate|failed to map segment|start new thread",
    re.IGNORECASE,
)
"""Messages of libraries that could not allocate memory."""

NEARLY = 0.85
"""Share of the limit on addresses above which any failure counts as a lack of memory: a library
that cannot be mapped leads to many kinds of errors."""

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # Linux only

POWERCAP = Path("/sys/class/powercap")  # Linux only; most systems let only root read the counters
PACKAGES = "intel-rapl:[0-9]*/energy_uj"  # AMD's processors have this name too


def memory_bytes() -> int:
    """Bytes of memory of this machine, or the limit of the container or the shell."""
    total: int = min(psutil.virtual_memory().total, _address_limit() or sys.maxsize)
    limits = [*_group_limits("", "memory.max"), *_group_limits("memory", "memory.limit_in_bytes")]
    return min([total, *(limit for [limit] in limits)])


def require_memory(needed: int, what: str) -> None:
    """Raise FetchError if this machine has fewer than `needed` bytes of memory for `what`, or this
    process fewer addresses: short of these a library may end it."""
    total, has = memory_bytes(), "this machine has"
    if limit := _address_limit():
        total = min(total, limit - psutil.Process().memory_info().vms)
        has = "this process may still use (`ulimit -v`)"
    if needed > total:
        raise FetchError(
            f"{what} needs {size(needed)} of memory and {has} {size(max(total, 0))}; "
            "choose a smaller pair (`specdemo pairs` lists them)."
        )


def available_bytes() -> int:
    """Bytes of memory that this process could still allocate now."""
    free: int = min(psutil.virtual_memory().available, memory_bytes() - own_bytes())
    if limit := _address_limit():
        free = min(free, limit - psutil.Process().memory_info().vms)
    return max(free, 0)


def _address_limit() -> int | None:
    """The limit that `ulimit -v` sets, in bytes; None if unlimited."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def shortage(error: BaseException) -> str | None:
    """A sentence if a lack of memory, threads or open files raised `error` or an error that led to
    it; else None."""
    limit, errors = _address_limit(), [error]
    while cause := errors[-1].__cause__ or errors[-1].__context__:
        errors.append(cause)
    numbers = {getattr(error, "errno", None) for error in errors}
    texts = " ".join(map(str, errors))
    if numbers & {errno.EMFILE, errno.ENFILE}:
        return "Too many files are open; raise the limit (`ulimit -n`)."
    if not limit and "start new thread" in texts:
        return "No further thread can be started; raise the limit on processes (`ulimit -u`)."
    memory = errno.ENOMEM in numbers or any(isinstance(error, MemoryError) for error in errors)
    if limit and (memory or OUT_OF_MEMORY.search(texts) or _peak_addresses() > NEARLY * limit):
        return (
            f"Memory ran out: this process may use {size(limit)} of addresses (`ulimit -v`); raise "
            "that limit, or choose a smaller model."
        )
    if memory or OUT_OF_MEMORY.search(texts):
        free, total = size(psutil.virtual_memory().available), size(memory_bytes())
        return f"Memory ran out: {free} of {total} are free; choose a smaller model or free memory."
    return None


def _peak_addresses() -> int:
    """The most bytes of addresses that this process has used; 0 if unknown."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmPeak"))
    return 0


def own_bytes() -> int:
    """Resident bytes of this process, without mapped files where the system counts them."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def processors() -> int:
    """How many this process may use at once: those of its affinity, but no more than its quota of
    processor time pays for. One thread more stops all of them once the quota is spent."""
    quota = _quota()
    return visible_processors() if quota is None else min(visible_processors(), max(int(quota), 1))


def visible_processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usual_share() -> float:
    """The most of the time of `processors()` that this process can get: less than 1 where its quota
    is less than one processor."""
    quota = _quota()
    return 1.0 if quota is None else min(1.0, quota / processors())


def share_left(cpu: float, waited: float, seconds: float) -> float:
    """The share of the processor time that work of so many `seconds` could use and other programs
    left it. Its threads used `cpu` seconds and `waited` for a processor, also for each other."""
    usable = min(cpu + waited, processors() * seconds)
    return min(1.0, cpu / usable / usual_share()) if usable else 1.0


def measured_share(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` returns, and `share_left` of it and of the processes that this one started."""
    (cpu, waited), began = _used(), perf_counter()
    result = work()
    seconds, (used, waits) = perf_counter() - began, _used()
    return result, share_left(used - cpu, (waits - waited).total() / 1e9, seconds)


def _used() -> tuple[float, Counter[str]]:
    """Seconds of processor time and `waiting_times` of this process and those that it started."""
    own, seconds, waited = psutil.Process(), 0.0, Counter[str]()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            seconds += times.user + times.system
            waited += waiting_times(process.pid)
    return seconds, waited


def _quota() -> float | None:
    """Processors that the control groups of this process pay for (`docker run --cpus`, systemd's
    CPUQuota); None without a limit."""
    limits = [*_group_limits("", "cpu.max")]
    limits += _group_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    quotas = [quota / period for quota, period in limits if quota > 0 and period > 0]
    return min(quotas, default=None)


def _group_limits(controller: str, *files: str) -> Iterator[list[int]]:
    """The numbers in `files` of this process's control groups: of its own and of all that contain
    it. Version 1 has a hierarchy for each `controller`, version 2 a single one (""). In a container
    the path of the own group may be that of the host, and the groups begin at the root."""
    with suppress(OSError, ValueError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            for root in {CGROUPS / controllers, CGROUPS / controller}:
                group = root.joinpath(path.lstrip("/"))
                for folder in (group, *group.parents):
                    if folder.is_relative_to(root):
                        # A group without such a limit: no file, "max", or (version 1) -1.
                        with suppress(OSError, ValueError):
                            texts = [(folder / file).read_text() for file in files]
                            yield [*map(int, " ".join(texts).split())]


def on_torch(device: str) -> bool:
    return device.startswith(TORCH)


def require_device(name: str, field: str) -> None:
    """Raise InvalidOption or MissingPackage unless the device that a `field` names (CPU, or one of
    torch's) exists here."""
    if name == "CPU":
        return
    kind, _, number = name.removeprefix(TORCH).partition(":")
    if not on_torch(name) or kind not in TORCH_KINDS or (number and not number.isdecimal()):
        devices = ", ".join(TORCH + kind for kind in TORCH_KINDS)
        wrong = "{} {name!r} is not a device; choose CPU or one of {devices}."
        raise InvalidOption(wrong, field, name=name, devices=devices)
    package, advice = "torch", f"run {install('torch')}, {TORCH_FIRST}"
    if kind == "hpu":
        package = "habana_frameworks"
        advice = "install Intel's Gaudi software, then `pip install optimum-habana`"
    if find_spec(package) is None:
        raise MissingPackage(f"The device {name} needs {package}, not installed here; {advice}.")
    if kind == "hpu":  # this import adds torch.hpu
        importlib.import_module("habana_frameworks.torch")
    import torch

    backend = getattr(torch, kind, None)
    if kind != "cpu" and (backend is None or int(number or 0) >= backend.device_count()):
        wrong = "{} {name}: torch {version} finds no such device here."
        raise InvalidOption(wrong, field, name=name, version=torch.__version__)


def describe() -> str:
    """The machine in one line: processor, count, memory."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # Linux says more in this file
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{name}, {counted(processors(), 'processor')}, {memory_bytes() / 1e9:.0f} GB"


class EnergyMeter:
    """Measures the energy that the processor packages of the machine use, for all its programs."""

    def __init__(self, folder: Path = POWERCAP):
        self._zones = [path.parent for path in folder.glob(PACKAGES) if _is_package(path.parent)]
        self._begin = self._read("energy_uj")

    def _read(self, name: str) -> list[int]:
        """A number of each package, in microjoules; none if one is unreadable."""
        try:
            return [int((zone / name).read_text()) for zone in self._zones]
        except (OSError, ValueError):
            return []

    @property
    def joules(self) -> float | None:
        """Joules since the meter was made; None where the counters cannot be read."""
        end, ranges = self._read("energy_uj"), self._read("max_energy_range_uj")
        counters = list(zip(self._begin, end, ranges, strict=False))
        # A counter begins again at 0 after its range, an hour at 70 W.
        used = sum((last - first) % (largest + 1) for first, last, largest in counters)
        return used * 1e-6 if counters else None


def _is_package(zone: Path) -> bool:
    # The names of parts have two colons, and `psys` counts packages again.
    try:
        return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
    except OSError:
        return False
