"""The command line: commands imported on demand, shared options, one sentence for a failure."""

from __future__ import annotations

import dataclasses
import errno
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from specdemo import __version__
from specdemo.errors import BadInput, SpecdemoError
from specdemo.terminal import progress_bar

if TYPE_CHECKING:
    from specdemo.models.load import LoadedPair
    from specdemo.models.registry import Pair
    from specdemo.settings import ModelChoice

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
UNWRITABLE = errno.ENOSPC, errno.EIO, errno.EPIPE

COMMANDS = {
    "pairs": ("specdemo.commands.models", "List the pairs: sizes, what fits, what is here."),
    "fetch": ("specdemo.commands.models", "Get a pair ready: download, check, convert."),
    "run": ("specdemo.commands.run", "Answer an instruction, tokens coloured by origin."),
    "page": ("specdemo.ui.server", "Serve the page on this machine, or on a Space."),
    "bench": ("specdemo.bench.command", "Measure prompts with and without speculative decoding."),
    "audit": ("specdemo.bench.command", "Test that speculative decoding is lossless."),
    "load": ("specdemo.serving.load", "Measure a server under load."),
    "export": ("specdemo.commands.models", "Make OpenVINO IR of a PyTorch checkpoint."),
    "train-draft": ("specdemo.training.settings", "Train a draft head for a target model."),
    "serve": ("specdemo.serving.server", "Serve an OpenAI-compatible API, with replicas."),
    "machine": ("specdemo.commands.models", "Show what was measured of models on this machine."),
    "tune": ("specdemo.commands.models", "Race a pair's drafts here, and keep the fastest."),
}
"""By name of a command: the module of its click command (named with `_` for `-`), and its help."""

CONTEXT = {"max_content_width": 100, "help_option_names": ["-h", "--help"], "show_default": True}


class _LazyGroup(click.Group):
    """A group whose commands are those of COMMANDS, imported on demand."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, summary = COMMANDS[name]
        command = getattr(importlib.import_module(module), name.replace("-", "_"))
        command.help = command.help or summary
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    no_args_is_help=False,
    context_settings=CONTEXT,
    epilog="Environment variables stand for options: the help of a command and of app.py names "
    "them. HF_HOME is the folder for models, SPECDEMO_API_KEY the key that a server wants, "
    "SPECDEMO_LOG the level of its log. SPECDEMO_TRUST_REMOTE_CODE=1 lets a model run Python "
    "code of its own, SPECDEMO_DEBUG=1 shows the stack trace of a failure.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Speculative decoding on OpenVINO: a draft model proposes tokens, a target verifies them."""


def main(
    arguments: Sequence[str] | None = None,
    command: click.Command = program,
    name: str = "specdemo",
) -> int:
    """Run one command. Returns its exit code: 0, 1 failure, 2 bad input, 130 interrupted."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # "?" for a character that the encoding lacks
            stream.reconfigure(errors="replace")
    try:
        return command.main(arguments, name, standalone_mode=False) or 0
    except click.Abort:
        message, code = "interrupted", INTERRUPTED
    except click.ClickException as error:
        hint = f" (see {error.ctx.command_path} --help)" if getattr(error, "ctx", None) else ""
        message, code = error.format_message().rstrip(".") + hint, error.exit_code
    except Exception as error:
        if os.environ.get("SPECDEMO_DEBUG"):
            raise
        message, code = str(error), getattr(error, "exit_code", FAILURE)
        if isinstance(error, OSError) and error.errno in UNWRITABLE and not error.filename:
            message = f"the output cannot be written: {error.strerror}"
        elif not isinstance(error, SpecdemoError):
            kind = type(error).__name__
            message = f"unexpected {kind}: {message[:300]} (SPECDEMO_DEBUG=1 shows where)"
    click.echo(f"{name}: {' '.join(message.split())}", err=True)
    return code


def _open_closed_streams() -> None:
    """Opens the null device for closed standard streams: a file opened later would get the number
    of one, and with it what is written to the stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def json_option(command: Callable) -> Callable:
    """Adds --json; passes `json_file`, None without it. Refuses a file that cannot be written."""
    return click.option(
        "--json",
        "json_file",
        metavar="FILE",
        callback=lambda context, param, value: check_output(value, "--json"),
        help="Write the result as JSON ('-' for standard output).",
    )(command)


def answer_options(command: Callable, kind: type | None = None) -> Callable:
    """Adds --json, and the options of ModelChoice (`choice`) and of Settings or its subclass `kind`
    (`settings`)."""
    from specdemo.settings import ModelChoice, Settings

    command = options_of(kind or Settings, "settings")(command)
    return json_option(options_of(ModelChoice, "choice")(command))


def options_of(kind: type, argument: str, *, variables: bool = True) -> Callable:
    """A decorator: adds an option for every field of the dataclass `kind` that `settings.option`
    made; with `variables` the environment variable SPECDEMO_NAME sets it too. The command gets one
    checked instance as `argument`; BadInput names the option or the variable."""
    shown = [field for field in dataclasses.fields(kind) if "help" in field.metadata]
    hints = get_type_hints(kind)

    def add(command: Callable) -> Callable:
        @functools.wraps(command)
        def checked(*args: Any, **values: Any) -> Any:
            given = {field.name: values.pop(field.name) for field in shown}
            return command(*args, **values, **{argument: _parse(kind, given)})

        for field in reversed(shown):
            about, hint, default = field.metadata, hints[field.name], field.default
            several = get_origin(hint) is tuple
            flag = hint is bool or "off" in about
            required = default is dataclasses.MISSING
            if required or several or default == "":
                default = None
            name = option_name(kind, field.name)
            checked = click.option(
                f"{name}/--{about['off']}" if "off" in about else name,
                field.name,
                envvar=_variable(name) if variables else None,
                show_envvar=True,
                show_default=about.get("unset", True),
                required=required,
                is_flag=flag,
                multiple=several,
                default=default if flag or default is None else str(default),
                metavar=None if flag else about.get("metavar") or _metavar(hint),
                help=about["help"][0].upper() + about["help"][1:] + ".",
            )(checked)
        return checked

    return add


def _metavar(hint: Any) -> str:
    kinds = hint, *get_args(hint)
    if values := sum((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ()):
        return "|".join(values)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def option_name(kind: type, field: str) -> str:
    """The option of a field of the dataclass `kind`: --draft-tokens for draft_tokens."""
    name = kind.__dataclass_fields__[field].metadata.get("name", field)
    return "--" + name.replace("_", "-")


def _variable(option: str) -> str:
    return option.replace("--", "SPECDEMO_").replace("-", "_").upper()


def _parse(kind: type, given: dict[str, Any]) -> Any:
    from specdemo.settings import parse

    source = click.get_current_context().get_parameter_source
    variables = {name for name in given if source(name) is ParameterSource.ENVIRONMENT}
    # An option that names models overrides the variables that do.
    if any(source(name) is ParameterSource.COMMANDLINE for name in ("pair", "target")):
        given |= dict.fromkeys(variables & {"pair", "target", "draft"})
    for field in dataclasses.fields(kind):
        if "file" in field.metadata and given.get(field.name):
            given[field.name] = _text_of(given[field.name], option_name(kind, field.name))
    try:
        return parse(kind, {name: value for name, value in given.items() if value is not None})
    except BadInput as error:
        name = option_name(kind, error.param)
        name = _variable(name) if error.param in variables else name
        raise BadInput(str(error).replace(error.param, name, 1), error.param) from None


def _text_of(path: str, option: str) -> str:
    """The text of a file. Raises BadInput, which names `option`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{option} {path} cannot be read: {reason}.") from None


def chosen_pair(choice: ModelChoice) -> Pair:
    """The pair that `choice` names, else the default one, reported on stderr. Raises BadInput."""
    from specdemo.models import registry
    from specdemo.settings import ModelChoice

    def default() -> Pair:
        found = registry.default_pair()
        click.echo(f"pair {found.why}", err=True)
        return found.pair

    return registry.chosen_pair(choice, functools.partial(option_name, ModelChoice), default)


def load_pair(choice: ModelChoice) -> LoadedPair:
    """The models of `choice`, fetched with a progress bar on stderr, ready for a Session."""
    from specdemo.models import load

    pair = chosen_pair(choice)
    with progress_bar() as report:
        return load.load_pair(pair, choice=choice, progress=report)


def check_output(destination: str | None, option: str) -> str | None:
    """`destination`: None, '-', or a writable file. Raises BadInput naming `option`."""
    if destination not in (None, "-"):
        new = not os.path.lexists(destination)
        try:
            open(destination, "a").close()  # permissions are not enough: the disk may be read only
            if new:
                os.unlink(destination)  # an interrupted command leaves no empty file
        except OSError as error:
            raise BadInput(f"{option} {destination} cannot be written: {error.strerror}.") from None
    return destination


def write_json(text: str, destination: str | None) -> None:
    """Write UTF-8 and a line end to the file `destination`, '-' for standard output."""
    try:
        with click.open_file(destination, "wb") as file:
            file.write(text.encode("utf-8", "replace") + b"\n")
    except OSError as error:
        raise SpecdemoError(f"{destination} cannot be written: {error.strerror}.") from error
