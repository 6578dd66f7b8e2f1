"""Run a module that may crash, hang or be killed in a child process that dies with this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import specdemo

# Linux only: the kernel kills the child when its parent dies, so that a killed fetch leaves no
# process writing behind it. Elsewhere the child runs to its end, and the next fetch removes what it
# wrote.
_PRELUDE = """
import os, runpy, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
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
    watch: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Run `python -m module arguments`; returns its exit code and its output, kept in `log`.

    `watch` is called about five times a second. The child is killed if this function is left early.
    """
    command = [sys.executable, "-c", _PRELUDE, str(os.getpid()), module, *arguments]
    package_root = str(Path(specdemo.__file__).parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}
    with open(log, "wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
        )
        try:
            while child.poll() is None:
                watch()
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
    return child.returncode, log.read_text(encoding="utf-8", errors="replace")


def reason(code: int, output: str) -> str:
    """Why a child failed: its last line, or the signal that ended it."""
    if code < 0:
        return f"the process was killed (signal {-code}), which usually means that memory ran out."
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {code}."
