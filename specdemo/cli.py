"""The command line: imports commands on demand, prints one sentence for a failure."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from specdemo import __version__
from specdemo.commands import CONTEXT, option_name
from specdemo.errors import BadInput, SpecdemoError, naming
from specdemo.machine.terminal import printable

FAILURE, INTERRUPTED = 1, 130
UNWRITABLE = errno.ENOSPC, errno.EIO, errno.EPIPE

COMMANDS = {
    "pairs": ("pairs", "List the pairs: sizes, what fits, what is here."),
    "fetch": ("pairs", "Get a pair ready: download, check, convert."),
    "run": ("run", "Answer an instruction, tokens coloured by origin."),
    "page": ("page", "Serve the page on this machine, or on a Space."),
    "bench": ("bench", "Measure prompts with and without speculative decoding."),
    "audit": ("audit", "Test that speculative decoding is lossless."),
    "export": ("pairs", "Make OpenVINO IR of a PyTorch checkpoint or a GGUF file."),
    "cache": ("pairs", "List or remove the models that were made here."),
    "train-draft": ("drafts", "Train a draft head for a target model."),
    "serve": ("serve", "Serve an OpenAI-compatible API, with replicas."),
    "machine": ("pairs", "Show what was measured of models on this machine."),
    "tune": ("drafts", "Race a pair's drafts here, and keep the fastest."),
}
"""The file in commands/ of the function of each command, and its help."""


class _LazyGroup(click.Group):
    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        file, help = COMMANDS[name]
        module = importlib.import_module(f"specdemo.commands.{file}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        command.help = command.help or help
        return command

    def list_commands(self, context: click.Context) -> list[str]:
        """For completion in a shell."""
        return list(COMMANDS)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    no_args_is_help=False,
    context_settings=CONTEXT,
    epilog="Environment variables stand for options: the help of a command and of app.py names "
    "them. HF_HOME is the folder for models, SPECDEMO_API_KEY the key that a server wants, "
    "SPECDEMO_LOG the level of its log. SPECDEMO_TRUST_REMOTE_CODE=1 lets a model run Python "
    "code of its own, SPECDEMO_TELEMETRY=1 lets the libraries send statistics of their use, "
    "SPECDEMO_DEBUG=1 shows the stack trace of a failure.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Speculative decoding on OpenVINO: a draft model proposes tokens, a target verifies them."""


def main(
    arguments: Sequence[str] | None = None,
    command: click.Command | str | None = None,
    name: str = "specdemo",
) -> int:
    """Run the command line, or only its `command`. Returns the exit code: 0, 1 failure, 2 bad
    input, 130 interrupted."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # "?" for a character that the encoding lacks
            stream.reconfigure(errors="replace")
    try:
        if isinstance(command, str):
            command = program.get_command(click.Context(program), command)
        with naming(option_name):
            code = (command or program).main(arguments, name, standalone_mode=False) or 0
        sys.stdout.flush()  # a full disk is a failure, while it can be reported
        return code
    except click.Abort:
        message, code = "interrupted", INTERRUPTED
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see {context.command_path} --help)" if context else ""
        message, code = error.format_message().rstrip(".") + hint, error.exit_code
    except Exception as error:
        if os.environ.get("SPECDEMO_DEBUG"):
            raise
        message, code = _sentence(error), getattr(error, "exit_code", FAILURE)
    # A chat template can raise a sentence of its own: no escape sequence reaches the terminal.
    click.echo(f"{name}: {printable(' '.join(message.split()))}", err=True)
    return code


def _sentence(error: Exception) -> str:
    from specdemo.machine.hardware import shortage  # imports psutil

    if isinstance(error, OSError) and error.errno in UNWRITABLE and not error.filename:
        return f"the output cannot be written: {error.strerror}"
    if not isinstance(error, BadInput) and (cause := shortage(error)):
        return cause
    if isinstance(error, SpecdemoError):
        return str(error)
    return f"unexpected {type(error).__name__}: {str(error)[:300]} (SPECDEMO_DEBUG=1 shows where)"


def _open_closed_streams() -> None:
    """Open the null device for closed standard streams: otherwise a file that is opened later gets
    the number of one, and what is written to the stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
