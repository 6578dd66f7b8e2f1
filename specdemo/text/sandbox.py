"""Chat templates come from strangers, so `renderer.py` renders them in a process of its own. It is
kept: the first prompt waits 0.2 s for it, the others less than a millisecond."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdemo.errors import BadInput, RequestFailed
from specdemo.text import renderer
from specdemo.text.turns import Turns

KEPT_VARIABLES = "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ"
"""What Python may need to start, and the time zone. Others may be secrets."""


class TemplateProcess:
    """Renders one template after another (thread safe), the shortest request first. Its process
    starts when it is needed, ends with this one, and is replaced if it has ended."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The text of `template` (Jinja) with `variables` (JSON data). Raises BadInput if the
        template fails or takes too much, RequestFailed if there can be no process."""
        request = json.dumps([template, variables]).encode() + b"\n"
        with self._turns.turn(len(request)):
            try:
                process = self._running()
                process.stdin.write(request)
                process.stdin.flush()
                succeeded, text = self._read(process)
            except OSError:
                self._end()
                succeeded, text = False, "it takes too much time or memory"
            except BaseException:  # the process may still be writing an answer that nobody reads
                self._end()
                raise
        if not succeeded:
            why = f"The model's chat template refuses this conversation: {text}"
            raise BadInput(why, "messages")
        return text

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        packages = {Path(find_spec(name).origin).parents[1] for name in ("jinja2", "markupsafe")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", renderer.__file__, *map(str, packages)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                process_group=None if os.name == "nt" else 0,  # no Ctrl-C of the terminal
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
            self._read(self._process)
        except OSError as error:
            why = f"The process that renders chat templates cannot be started: {error}."
            raise RequestFailed(why) from error
        return self._process

    @staticmethod
    def _read(process: subprocess.Popen[bytes]) -> tuple[bool, str]:
        """An answer: whether it is a text, and the text. Raises OSError if there is none."""
        head = process.stdout.read(renderer.HEADER.size).ljust(renderer.HEADER.size, b"\xff")
        succeeded, size = renderer.HEADER.unpack(head)
        text = process.stdout.read(size) if size <= renderer.MAX_TEXT else b""
        if len(text) != size:
            raise OSError("it has ended")
        return succeeded, text.decode("utf-8", "surrogatepass")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what was not written yet
                    pipe.close()
            process.wait()


@lru_cache
def _process_of(parent: int) -> TemplateProcess:
    return TemplateProcess()


def render(template: str, variables: Mapping[str, Any]) -> str:
    """`TemplateProcess.render`, by the one process that serves this one."""
    return _process_of(os.getpid()).render(template, variables)  # a fork has pipes of its own
