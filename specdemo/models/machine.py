"""This machine: memory, disk, processors and devices, and the folder in which models are kept."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from specdemo.errors import BadInput, FetchError
from specdemo.models import checkpoints
from specdemo.models.progress import size

log = logging.getLogger(__name__)
Result = TypeVar("Result")


def memory_bytes() -> int:
    """Bytes that this process may fill: the machine's memory or its container's."""
    import psutil

    total = psutil.virtual_memory().total
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such control group, or "max"
            total = min(total, int(Path("/sys/fs/cgroup", path).read_text()))
    return total


def require_memory(needed: int, what: str) -> None:
    """Raise FetchError if this machine has fewer than `needed` bytes of memory for `what`."""
    memory = memory_bytes()
    if needed > memory:
        raise FetchError(
            f"{what} needs {needed / 1e9:.1f} GB of memory and this machine has "
            f"{memory / 1e9:.1f} GB; choose a smaller pair (`specdemo pairs` lists them)."
        )


def available_bytes() -> int:
    """Memory that this process could still fill now. Bytes."""
    import psutil

    return max(min(psutil.virtual_memory().available, memory_bytes() - own_bytes()), 0)


def own_bytes() -> int:
    """Resident memory of this process without mapped files, where the system tells them apart."""
    import psutil

    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)


def processors() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lower_priority() -> None:
    """Let everything else go before this thread, where the system can."""
    with suppress(AttributeError, OSError):  # a thread's own priority: Linux only
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def in_background(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, done in a thread that lets everything else go before it. Not
    for work that starts threads: those would inherit its priority and keep it."""
    result: Future[Result] = Future()

    def run() -> None:
        lower_priority()
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result.result()


def devices() -> list[str]:
    """The device that OpenVINO runs on here: others do not keep a KV cache in main memory."""
    return ["CPU"]


def require_device(name: str, option: str) -> None:
    """Raise BadInput, naming the `option` and the devices here, if there is no device `name`."""
    if name == "CPU":  # always there; saves importing OpenVINO
        return
    if checkpoints.on_torch(name):
        return checkpoints.require_device(name, option)
    there = devices()
    if name not in there and name.partition(":")[0] not in ("AUTO", "HETERO", "MULTI"):
        known = ", ".join(there)
        raise BadInput(
            f"{option} {name!r} is not a device OpenVINO finds here; choose one of {known}."
        )


def describe() -> str:
    """The machine in one line: processor, count, memory."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # Linux says more in this file
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{name}, {processors()} processors, {memory_bytes() / 1e9:.0f} GB"


def cache_home() -> Path:
    """The folder for everything this program keeps: SPECDEMO_HOME, else in the user's cache folder.
    It need not exist yet."""
    if chosen := os.environ.get("SPECDEMO_HOME", "").strip():
        return Path(chosen).expanduser().absolute()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "").strip())
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "specdemo"


def measured_folder() -> Path:
    """The folder for what was measured and counted on this machine."""
    return cache_home() / "profiles"


def replace_file(path: Path, content: bytes) -> None:
    """Write the file in one step: whoever reads it, or is killed meanwhile, finds the old one or
    the new one. A disk that is full or read only is left alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        log.info("%s is not kept: %s", path, error)
        with suppress(OSError, UnboundLocalError):
            os.unlink(file.name)


def make_folder(folder: Path) -> Path:
    """Create `folder` with its parents. Raises FetchError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"The cache folder {folder} cannot be created ({error.strerror}); "
            "set SPECDEMO_HOME to a folder you can write to."
        ) from error
    return folder


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise FetchError if the disk of `folder` has fewer than `needed` bytes free for `what`."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise FetchError(
            f"{what} needs {size(needed)} of disk in {there} and {size(free)} are free; free some "
            "space, or set SPECDEMO_HOME (HF_HOME for Hub models) to a larger disk."
        )


@contextmanager
def exclusive_scratch(home: Path) -> Iterator[Path]:
    """Hold the lock of `home` and yield a new scratch folder in it, which is removed at the end;
    those of killed holders are removed first."""
    import filelock

    with filelock.FileLock(make_folder(home) / "lock"):
        for leftover in home.glob("scratch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            prefix="scratch-", dir=home, ignore_cleanup_errors=True
        ) as scratch:
            yield Path(scratch)


def file_size(path: Path) -> int:
    """Size of the file at `path` in bytes, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
