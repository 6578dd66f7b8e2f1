"""Starts the command line. From here on an interrupt ends the process with one word and exit code
130, also while packages are imported, so this module imports next to nothing itself."""

import os
import sys

TYPE_CHECKING = False  # a type checker takes it for true; importing typing would take longer
if TYPE_CHECKING:
    from types import FrameType
    from typing import TextIO


def start(name: str = "specdemo", command: str | None = None) -> int:
    """Run the command line, or only its `command`, under the program's `name`. Returns the exit
    code, but ends the process at once if it was interrupted, if its output cannot be written (the
    interpreter would end with 120), or if a thread still runs: one that loads a model cannot be
    stopped, and would abort the interpreter."""

    def interrupt(number: int, frame: "FrameType | None") -> None:
        """Raises KeyboardInterrupt, but ends the process during an import: extension modules turn
        the exception into others, and some callers catch these."""
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                _end(f"{name}: interrupted\n")
            frame = frame.f_back
        raise KeyboardInterrupt

    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from specdemo.cli import INTERRUPTED, main

        code = main(name=name, command=command)
    except KeyboardInterrupt:
        _end(f"{name}: interrupted\n")
    import threading

    left = any(thread.daemon for thread in threading.enumerate())
    if code != INTERRUPTED and (left or not _flushed(sys.stdout)):
        import atexit

        atexit._run_exitfuncs()
        _end(code=code)
    if code == INTERRUPTED:
        _end()
    return code


def _flushed(stream: "TextIO") -> bool:
    """Whether what is buffered could be written. It cannot if the stream is closed, its disk is
    full, or an interrupt came meanwhile."""
    try:
        stream.flush()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return False
    return True


def _end(message: str = "", code: int = 130) -> None:
    """End the process without waiting for its threads, which may be compiling for seconds."""
    _flushed(sys.stdout)
    _flushed(sys.stderr)
    try:
        os.write(2, message.encode())
    finally:
        os._exit(code)
