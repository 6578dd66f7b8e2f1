"""Gives memory back to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_DONT_NEED = 4  # MADV_DONTNEED of madvise(2)


def release_file(path: Path) -> None:
    """Drop the pages of a file that this process has mapped for reading; one that is touched again
    is mapped again. Compiled instances hold their own copy of most weights. Linux only."""
    if sys.platform != "linux":
        return
    name = str(path.resolve())
    with suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        for line in Path("/proc/self/maps").read_text().splitlines():
            bounds, access, *_, mapped = line.split(maxsplit=5)
            if mapped == name and "w" not in access:
                begin, end = (int(bound, 16) for bound in bounds.split("-"))
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONT_NEED)
