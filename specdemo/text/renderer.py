"""Renders chat templates in a child process of `sandbox.py`, which runs this file as a script. It
imports nothing of the project, and ends with its input or if a template takes too much."""

import faulthandler
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

PROCESSOR_SECONDS = 0.5  # a prompt, except on Windows; a conversation of 4 MB takes a fifth of it
WALL_SECONDS = 10.0 if hasattr(signal, "setitimer") else 2.0
MEMORY = (
    512 * 2**20
)  # bytes of addresses, on Linux; Python and Jinja take 24 MB, 4 MB of text 70 MB
MAX_TEXT = 32 * 2**20  # bytes of a rendered text
HEADER = struct.Struct(">?I")  # of an answer: text or reason why there is none, and bytes of it


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

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
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
