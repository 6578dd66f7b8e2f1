"""The command line: the commands, the options they share, and one sentence for every failure.

A command's module is imported only when the command is called or asked for its help: `--help` is
quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from specdemo import __version__
from specdemo.errors import BadInput, SpecdemoError

if TYPE_CHECKING:
    from specdemo.models.load import LoadedPair
    from specdemo.models.progress import Progress, Report
    from specdemo.models.registry import Pair
    from specdemo.settings import ModelChoice

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130

COMMANDS = {
    "pairs": ("specdemo.commands.models", "List the pairs: sizes, what fits, what is here."),
    "fetch": ("specdemo.commands.models", "Get a pair ready: download, check, convert."),
    "run": ("specdemo.commands.run", "Answer an instruction, tokens coloured by origin."),
    "bench": ("specdemo.bench.command", "Measure prompts with and without speculative decoding."),
    "audit": ("specdemo.bench.command", "Test that speculative decoding is lossless."),
    "load": ("specdemo.serving.load", "Measure a server under load, and what stays behind."),
    "export": ("specdemo.commands.models", "Make OpenVINO IR of a PyTorch checkpoint."),
    "train-draft": ("specdemo.training.command", "Distil a draft model for a target model."),
    "serve": ("specdemo.serving.command", "Serve an OpenAI-compatible API, with replicas."),
    "machine": ("specdemo.commands.models", "Show what was measured of models on this machine."),
    "tune": ("specdemo.commands.models", "Race a pair's drafts here, and keep the fastest."),
    "rehearse": ("specdemo.commands.models", "Measure memory and time with made-up weights."),
}
"""Name: the module with the click command of that name (`-` as `_`), and its help."""

VARIABLES = """\b
Environment variables, for a Space's variables page say; an option goes before its variable:
  SPECDEMO_PAIR, SPECDEMO_MODEL, SPECDEMO_ASSISTANT_MODEL, SPECDEMO_WEIGHT_FORMAT,
  SPECDEMO_DEVICE, SPECDEMO_DRAFT_DEVICE, SPECDEMO_KV_CACHE,
  SPECDEMO_TRUST_REMOTE_CODE                                       which models, and where
  SPECDEMO_MAX_NEW_TOKENS, SPECDEMO_DRAFT_TOKENS, SPECDEMO_DRAFTER, SPECDEMO_TEMPERATURE,
  SPECDEMO_TOP_P, SPECDEMO_TOP_K, SPECDEMO_SEED, SPECDEMO_COUPLING, SPECDEMO_NUMERICS
                                                                   how to answer
  SPECDEMO_HOST, SPECDEMO_PORT, SPECDEMO_SHARE, SPECDEMO_ENGINE, SPECDEMO_API_KEY,
  SPECDEMO_VISITORS, SPECDEMO_EXCLUSIVE, SPECDEMO_CACHE_MB, SPECDEMO_LOG, SPECDEMO_NO_FETCH,
  SPECDEMO_LEARN_NGRAMS
                                                                   the page (app.py) and serve
  SPECDEMO_NAME for each --name of serve                           how many replicas, and so on
  SPECDEMO_HOME                                                    the folder for models
  SPECDEMO_DEBUG=1                                                 failures show their stack trace
  HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY, NO_PROXY    read by huggingface_hub
"""


class _LazyGroup(click.Group):
    """A group whose commands are those of COMMANDS, imported on demand."""

    def get_command(self, context: click.Context, name: str) -> click.Command:
        if name not in COMMANDS:
            raise click.UsageError(
                f"{name!r} is not a command; choose one of {', '.join(COMMANDS)}", context
            )
        module, summary = COMMANDS[name]
        command = getattr(importlib.import_module(module), name.replace("-", "_"))
        command.help = command.help or summary
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


CONTEXT = {
    "max_content_width": 100,
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}


@click.group(cls=_LazyGroup, epilog=VARIABLES, no_args_is_help=False, context_settings=CONTEXT)
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Speculative decoding on OpenVINO: a draft model proposes tokens, a target verifies them."""


def main(
    arguments: Sequence[str] | None = None,
    command: click.Command = program,
    name: str = "specdemo",
) -> int:
    """Run one command; returns its exit code: 0, 1 failure, 2 bad input, 130 interrupted."""

    def fail(sentence: str, code: int) -> int:
        click.echo(f"{name}: {' '.join(sentence.split())}", err=True)
        return code

    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where the encoding lacks a character: "?"
            stream.reconfigure(errors="replace")
    try:
        with command.make_context(name, words) as context:
            return command.invoke(context) or 0
    except click.exceptions.Exit as leaving:  # --help, --version
        return leaving.exit_code
    except click.ClickException as error:
        hint = f" (see {error.ctx.command_path} --help)" if getattr(error, "ctx", None) else ""
        return fail(error.format_message().rstrip(".") + hint, error.exit_code)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output left, `head` say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        if os.environ.get("SPECDEMO_DEBUG"):
            raise
        if isinstance(error, SpecdemoError):
            return fail(str(error), error.exit_code)
        return fail(
            f"unexpected {type(error).__name__}: {str(error)[:300]} (SPECDEMO_DEBUG=1 shows where)",
            FAILURE,
        )


class Command(click.Command):
    """A command whose help lists the options of `options_of` in their sections."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(context):
            record = param.get_help_record(context)
            if record and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Option(click.Option):
    def __init__(self, *args: Any, section: str, **options: Any):
        super().__init__(*args, **options)
        self.section = section


# Options that several commands share.


def json_option(command: Callable) -> Callable:
    """Adds --json; passes `json_file`, None without it. Refuses a file that cannot be written."""
    return click.option(
        "--json",
        "json_file",
        metavar="FILE",
        callback=lambda context, param, value: check_output(value, "--json"),
        help="Write the result as JSON ('-' for standard output).",
    )(command)


def model_options(command: Callable) -> Callable:
    """Adds the options of which models and where they run; passes `choice`, a ModelChoice."""
    from specdemo.models.checkpoints import TRUST
    from specdemo.settings import ModelChoice

    def trust(context: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            os.environ[TRUST] = "1"

    command = click.option(
        "--trust-remote-code",
        is_flag=True,
        envvar=TRUST,
        show_envvar=True,
        expose_value=False,
        callback=trust,
        help="On torch devices, let a model run Python code of its own.",
    )(command)
    return options_of(ModelChoice, "choice")(command)


def settings_options(command: Callable) -> Callable:
    """Adds the options of how to answer; passes `settings`, a Settings."""
    from specdemo.settings import Settings

    return options_of(Settings, "settings")(command)


def options_of(kind: type, argument: str, *, variables: bool = True) -> Callable:
    """A decorator that adds an option for every field that `settings.option` made in the dataclass
    `kind`; with `variables` the variable SPECDEMO_NAME stands behind each. A tuple's option can be
    given several times; `off` names the option that sets a flag to False.

    The command gets one checked instance as `argument`; BadInput names the option or the variable.
    """
    from specdemo.settings import bounds

    shown = [field for field in dataclasses.fields(kind) if "help" in field.metadata]
    hints, title, titles = get_type_hints(kind), "Options", {}
    for field in shown:
        title = titles[field.name] = field.metadata.get("section", title)

    def add(command: Callable) -> Callable:
        @functools.wraps(command)
        def checked(*args: Any, **values: Any) -> Any:
            given = {field.name: values.pop(field.name) for field in shown}
            return command(*args, **values, **{argument: _parse(kind, given)})

        for field in reversed(shown):
            about = field.metadata
            default = None if field.default is None else str(field.default) or None
            required = field.default is dataclasses.MISSING
            off = f"/--{about['off']}" if "off" in about else ""
            flag = bool(off) or hints[field.name] is bool
            several = get_origin(hints[field.name]) is tuple
            checked = click.option(
                option_name(kind, field.name) + off,
                field.name,
                cls=_Option,
                section=titles[field.name],
                envvar=_variable(kind, field.name) if variables else None,
                show_envvar=True,
                show_default=about.get("unset", True),
                required=required,
                is_flag=flag,
                multiple=several,
                default=field.default if flag else None if required or several else default,
                metavar=None if flag else about.get("metavar") or _metavar(hints[field.name]),
                help=about["help"][0].upper() + about["help"][1:] + "." + bounds(kind, field.name),
            )(checked)
        return checked

    return add


def _metavar(hint: Any) -> str:
    kinds = hint, *get_args(hint)
    if values := [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]:
        return "|".join(values)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def _name(kind: type, field: str) -> str:
    """What the command line calls a field of the dataclass `kind`."""
    return kind.__dataclass_fields__[field].metadata.get("name", field)


def option_name(kind: type, field: str) -> str:
    return "--" + _name(kind, field).replace("_", "-")


def _variable(kind: type, field: str) -> str:
    return "SPECDEMO_" + _name(kind, field).upper()


def _parse(kind: type, given: dict[str, str | None]) -> Any:
    from specdemo.settings import parse

    source = click.get_current_context().get_parameter_source
    variables = {name for name in given if source(name) is ParameterSource.ENVIRONMENT}
    # An option that names models overrides the variables that do.
    if any(source(name) is ParameterSource.COMMANDLINE for name in ("pair", "target")):
        given |= dict.fromkeys(variables & {"pair", "target", "draft"})
    asked = {
        name: text.strip() if isinstance(text, str) else text
        for name, text in given.items()
        if text is not None and (name not in variables or str(text).strip())
    }
    try:
        return parse(kind, asked)
    except BadInput as error:
        if error.param not in given:
            raise
        name = (_variable if error.param in variables else option_name)(kind, error.param)
        raise BadInput(str(error).replace(error.param, name, 1), error.param) from None


def chosen_pair(choice: ModelChoice) -> Pair:
    """The pair of `choice`. The default pair is reported on stderr. Raises BadInput."""
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


@contextlib.contextmanager
def progress_bar() -> Iterator[Report]:
    """A Report that shows progress on stderr: a bar on a terminal, one line a step elsewhere."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    bar, step = tqdm(disable=True), ""

    def show(progress: Progress) -> None:
        nonlocal bar, step
        if progress.text != step:
            step = progress.text
            bar.close()
            bar = tqdm(
                desc=step,
                total=progress.total,
                initial=progress.done,
                unit="B",
                unit_scale=True,
                bar_format=None if progress.total else "{desc}",
                disable=not terminal,
            )
            if not terminal:
                click.echo(step, err=True)
        bar.update(progress.done - bar.n)

    try:
        yield show
    finally:
        bar.close()


def check_output(destination: str | None, option: str) -> str | None:
    """`destination`: None, a file that can be written, or for --json '-' (standard output).

    Raises BadInput naming `option`, so that minutes of measuring are not lost afterwards.
    """
    if destination == "-" and option != "--json":
        raise BadInput(f"{option} writes a file: name one in place of '-'.")
    if destination in (None, "-"):
        return destination
    path = Path(destination)
    new = not path.exists()
    try:
        open(path, "a").close()  # permissions do not tell: the disk may be read only
        if new:
            path.unlink()
    except OSError as error:
        raise BadInput(f"{option} {destination} cannot be written: {error.strerror}.") from None
    return destination


def write_json(text: str, destination: str) -> None:
    """Write UTF-8 to the file `destination`, '-' for standard output. Raises SpecdemoError."""
    content = text.encode("utf-8", "replace") + b"\n"
    if destination == "-":
        click.echo(content, nl=False)
        return
    try:
        Path(destination).write_bytes(content)
    except OSError as error:
        raise SpecdemoError(f"{destination} cannot be written: {error.strerror}.") from error
