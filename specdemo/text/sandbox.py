"""Renders chat templates, which strangers wrote, in a child process that runs `renderer.py`. It is
kept: the first prompt takes 0.2 s, others less than a millisecond."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from specdemo.errors import BadInput, RequestFailed
from specdemo.host.turns import ShortestFirst
from specdemo.text import renderer

KEPT_VARIABLES = "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ"  # others may be secrets


class TemplateProcess:
    """Renders one template at a time, the shortest request first (thread safe). The child process
    starts when it is needed, ends with its parent, and is replaced if it has ended."""

    def __init__(self) -> None:
        self._turns = ShortestFirst()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The text of `template` (Jinja) with `variables` (JSON data). Raises BadInput if the
        template fails or takes too much, RequestFailed if there can be no process."""
        request = json.dumps([template, variables]).encode() + b"\n"
        with self._turns.turn(len(request)):
            try:
                requests, answers = self._running()
                requests.write(request)
                requests.flush()
                succeeded, text = _read(answers)
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

    def _running(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is not None and self._process.poll() is None:
            return _pipes(self._process)
        self._end()
        specs = filter(None, map(find_spec, ("jinja2", "markupsafe")))
        packages = {Path(spec.origin).parents[1] for spec in specs if spec.origin}
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", renderer.__file__, *map(str, packages)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                process_group=None if os.name == "nt" else 0,  # no Ctrl-C of the terminal
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
            _read(_pipes(process)[1])
        except OSError as error:
            why = f"The process that renders chat templates cannot be started: {error}."
            raise RequestFailed(why) from error
        return _pipes(process)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in _pipes(process):
                with suppress(OSError):  # what was not written yet
                    pipe.close()
            process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin and process.stdout
    return process.stdin, process.stdout


def _read(answers: IO[bytes]) -> tuple[bool, str]:
    """Whether an answer is a text, and the text or the reason. Raises OSError without an answer."""
    head = answers.read(renderer.HEADER.size).ljust(renderer.HEADER.size, b"\xff")
    succeeded, size = renderer.HEADER.unpack(head)
    text = answers.read(size) if size <= renderer.MAX_TEXT else b""
    if len(text) != size:
        raise OSError("it has ended")
    return succeeded, text.decode("utf-8", "surrogatepass")


@lru_cache
def _process_of(parent: int) -> TemplateProcess:
    return TemplateProcess()


def render(template: str, variables: Mapping[str, Any]) -> str:
    """`TemplateProcess.render`, by the one process that serves this one."""
    return _process_of(os.getpid()).render(template, variables)  # a fork has pipes of its own
