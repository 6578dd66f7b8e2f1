"""What this machine has to offer a model: memory and processors, as far as this process may use them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from specdemo.models.errors import BadChoice

KV_CACHES = ("auto", "f32", "f16", "bf16", "u8")
"""Precisions in which keys and values may be kept; "auto" leaves it to the numerics."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Memory that this process may fill: the machine's, or its container's limit where that is lower. Bytes."""
    import psutil

    total = psutil.virtual_memory().total
    for path in _CGROUP_LIMITS:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such control group, or "max"
            continue
    return total


def available_bytes() -> int:
    """Memory that this process could still fill now. Bytes."""
    import psutil

    return max(min(psutil.virtual_memory().available, memory_bytes() - own_bytes()), 0)


def own_bytes() -> int:
    """Memory of this process that is no mapped file's; where the system does not tell, all that is resident. Bytes."""
    import psutil

    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)


def processors() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """OpenVINO's names of the devices here, such as CPU and GPU, with AUTO, which chooses among them."""
    import openvino

    return [*openvino.Core().available_devices, "AUTO"]


def require_device(name: str, option: str) -> None:
    """Raise BadChoice, naming the `option` and what there is, if OpenVINO has no such device here."""
    if name == "CPU":  # always there; saves importing OpenVINO for it
        return
    there = devices()
    if name not in there and name.partition(":")[0] not in ("AUTO", "HETERO", "MULTI"):
        raise BadChoice(f"{option} {name!r} is not a device OpenVINO finds here; choose one of {', '.join(there)}.")


def describe() -> str:
    """The machine in one line: processor, count, memory."""
    return f"{_processor_name()}, {processors()} processors, {memory_bytes() / 1e9:.0f} GB"


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
