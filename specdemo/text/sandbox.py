"""Renders chat templates, which strangers wrote, in a child process. It is kept: the first prompt
takes 0.2 s, others less than a millisecond. It runs this file as a script, which imports nothing of
the project, and ends with its input or if a template takes too much."""

import faulthandler
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

if __name__ != "__main__":
    from specdemo.errors import BadInput, RequestFailed
    from specdemo.machine.threads import ShortestFirst

KEPT_VARIABLES = "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ"  # others may be secrets
PROCESSOR_SECONDS = 0.5  # a prompt, except on Windows; a conversation of 4 MB takes a fifth of it
WALL_SECONDS = 10.0 if hasattr(signal, "setitimer") else 2.0
MEMORY = 512 * 2**20  # bytes of addresses (Linux); Python and Jinja take 24 MB, 4 MB of text 70
MAX_TEXT = 32 * 2**20  # bytes of a rendered text
HEADER = struct.Struct(">?I")  # of an answer: text or reason why there is none, and bytes of it


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
                [sys.executable, "-I", "-S", __file__, *map(str, packages)],
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
    head = answers.read(HEADER.size).ljust(HEADER.size, b"\xff")
    succeeded, size = HEADER.unpack(head)
    text = answers.read(size) if size <= MAX_TEXT else b""
    if len(text) != size:
        raise OSError("it has ended")
    return succeeded, text.decode("utf-8", "surrogatepass")


@lru_cache
def _process_of(parent: int) -> TemplateProcess:
    return TemplateProcess()


def render(template: str, variables: Mapping[str, Any]) -> str:
    """`TemplateProcess.render`, by the one process that serves this one."""
    return _process_of(os.getpid()).render(template, variables)  # a fork has pipes of its own


def environment() -> Any:
    """The Jinja environment in which transformers renders chat templates."""
    from jinja2 import TemplateError, ext, nodes, sandbox

    class Generation(ext.Extension):
        """`{% generation %}` encloses the text of an assistant's turn; training uses it."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

        def text(self, caller: Callable[[], str]) -> str:
            return caller()

    def to_json(  # with the parameters of transformers, by position too
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        options: dict[str, Any] = {"indent": indent, "separators": separators}
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys, **options)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def main() -> None:
    """Answer requests, a JSON line [template, variables] each, until the input ends."""
    for name in ("SIGINT", "SIGTERM"):  # the parent may still need prompts while it drains
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    compiled = lru_cache(8)(environment().from_string)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    nowhere = open(os.devnull, "w")  # noqa: SIM115
    sys.stdout.buffer.write(HEADER.pack(True, 0))  # ready
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        template, variables = json.loads(line)
        faulthandler.dump_traceback_later(WALL_SECONDS, exit=True, file=nowhere)
        limit_processor_time(PROCESSOR_SECONDS)
        try:
            answer = True, compiled(template).render(variables).encode("utf-8", "surrogatepass")
        except MemoryError:
            os._exit(1)
        except BaseException as error:  # a template may raise anything
            answer = False, f"{error}"[:300].encode("utf-8", "replace")
        limit_processor_time(0.0)
        faulthandler.cancel_dump_traceback_later()
        if len(answer[1]) > MAX_TEXT:
            os._exit(1)
        sys.stdout.buffer.write(HEADER.pack(answer[0], len(answer[1])) + answer[1])
        sys.stdout.buffer.flush()


def limit_processor_time(seconds: float) -> None:
    """End this process after so much processor time from now on; 0.0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends a process


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    main()
