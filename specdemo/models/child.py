"""Run work that may crash, hang or be killed in a child process that dies with this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import specdemo

# Linux only: ask the kernel to kill the child when the parent goes, however it goes, so that a killed fetch leaves
# no process writing behind it. Elsewhere the child runs to its end and its leftovers are swept by the next fetch.
_PRELUDE = """
import os, runpy, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != parent:
        sys.exit(1)
module = sys.argv.pop(1)
sys.path[0:1] = []
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run_module(
    module: str,
    arguments: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """Run `python -m module arguments` and return its exit code and all it printed (kept in the file `log`).

    `watch` is called about five times a second meanwhile. The child is killed if this function is left early.
    """
    command = [sys.executable, "-c", _PRELUDE, str(os.getpid()), module, *arguments]
    package_root = str(Path(specdemo.__file__).parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}
    with open(log, "wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=variables
        )
        try:
            while child.poll() is None:
                if watch:
                    watch()
                time.sleep(0.2 if watch else 0.05)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    return child.returncode, log.read_text(encoding="utf-8", errors="replace")
