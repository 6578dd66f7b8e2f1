"""What several commands share: options from dataclasses, the chosen pair, JSON and tables."""

import dataclasses
import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from specdemo.commands import option_name
from specdemo.errors import BadInput, SpecdemoError, naming
from specdemo.machine.disk import replacing
from specdemo.machine.terminal import Table, progress_bar, show, size
from specdemo.options import file_text, parse
from specdemo.pairs import loading, registry
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import as_json

Command = Callable[..., Any]  # the function of a command, with click's options as parameters

SECTIONS = dict.fromkeys((field.name for field in dataclasses.fields(ModelChoice)), "Models")
SECTIONS |= dict.fromkeys((field.name for field in dataclasses.fields(Settings)), "Answers")
"""Titles of options in a help, by their names."""


class SectionedCommand(click.Command):
    """Its help lists options in sections."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(context):
            record = param.get_help_record(context)
            if record and isinstance(param, click.Option):
                sections.setdefault(SECTIONS.get(param.name, "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


sectioned = functools.partial(click.command, cls=SectionedCommand)


def json_option(command: Command) -> Command:
    """Adds --json; passes `json_file`, None without it. Refuses a file that cannot be written."""
    return click.option(
        "--json",
        "json_file",
        metavar="FILE",
        callback=lambda context, param, value: check_output(value, "--json"),
        shell_complete=completing("file"),
        help="Write the result as JSON ('-' for standard output).",
    )(command)


def answer_options(command: Command, kind: type | None = None) -> Command:
    """Adds --threads, --json, and the options of ModelChoice (`choice`) and of Settings or its
    subclass `kind` (`settings`)."""
    command = options_of(kind or Settings, "settings")(command)
    command = json_option(options_of(ModelChoice, "choice")(command))
    return click.option(
        "--threads",
        type=click.IntRange(1, 256),
        metavar="N",
        show_default="all",
        help="Processor threads of an inference.",
    )(command)


def options_of(
    kind: type, argument: str, *, variables: bool = True
) -> Callable[[Command], Command]:
    """A decorator: adds an option for every field of the dataclass `kind` that `options.option`
    made, and with `variables` an environment variable SPECDEMO_NAME. The command gets one checked
    instance as `argument`; BadInput names the option or the variable."""
    fields = [field for field in dataclasses.fields(kind) if "help" in field.metadata]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def checked(*args: Any, **values: Any) -> Any:
            options = {field.name: values.pop(field.name) for field in fields}
            return command(*args, **values, **{argument: _parse(kind, options)})

        for field in reversed(fields):
            checked = _option(kind, field, variables)(checked)
        return checked

    return add


def _option(kind: type, field: dataclasses.Field[Any], variable: bool) -> Command:
    metadata, hint = field.metadata, get_type_hints(kind)[field.name]
    several, required = get_origin(hint) is tuple, field.default is dataclasses.MISSING
    default = None if several or field.default == "" else field.default
    flag, name = hint is bool or "off" in metadata, option_name(field.name)
    shown = default if flag or default is None else str(default)
    usual: dict[str, Any] = {} if required else {"default": shown}
    return click.option(
        f"{name}/--{metadata['off']}" if "off" in metadata else name,
        field.name,
        envvar=_variable(field.name) if variable else None,
        show_envvar=True,
        show_default=metadata.get("unset", True),
        required=required,
        is_flag=flag,
        multiple=several,
        **usual,
        metavar=None if flag else metadata.get("metavar") or _metavar(hint),
        shell_complete=completing(field.name, metadata.get("metavar") or _metavar(hint)),
        help=metadata["help"][0].upper() + metadata["help"][1:] + ".",
    )


def _metavar(hint: Any) -> str:
    kinds = hint, *get_args(hint)
    if values := sum((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ()):
        return "|".join(values)
    return "N" if int in kinds else "X" if float in kinds else "NAME"


def completing(name: str, metavar: str = "") -> Callable[..., list[CompletionItem]]:
    """What a shell proposes for the field `name`: pairs, models, files, or the words of its
    `metavar`."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        if name in ("model", "assistant_model", "file") or metavar in ("FILE", "DIR"):
            return [CompletionItem(begun, type="file")]
        words = [word for word in metavar.split("|") if word.islower()] if "|" in metavar else []
        if name in ("pair", "target"):
            words = [pair.name for pair in registry.PAIRS]
        return [CompletionItem(word) for word in words if word.startswith(begun)]

    return complete


def _variable(field: str) -> str:
    return f"SPECDEMO_{field.upper()}"


def _parse(kind: type, options: dict[str, Any]) -> Any:
    source = click.get_current_context().get_parameter_source
    variables = {name for name in options if source(name) is ParameterSource.ENVIRONMENT}
    # An option that names models overrides the variables that do.
    if any(source(name) is ParameterSource.COMMANDLINE for name in ("pair", "model")):
        options |= dict.fromkeys(variables & {"pair", "model", "assistant_model"})
    for field in dataclasses.fields(kind):
        if "file" in field.metadata and options.get(field.name):
            options[field.name] = file_text(options[field.name], option_name(field.name))
    with naming(lambda name: _variable(name) if name in variables else option_name(name)):
        return parse(kind, {name: value for name, value in options.items() if value is not None})


def chosen_pair(choice: ModelChoice) -> registry.Pair:
    """The pair that `choice` names, else the default one, reported on stderr. Raises BadInput."""

    def default() -> registry.Pair:
        pair, why = registry.default_pair()
        click.echo(f"pair {why}", err=True)
        return pair

    return registry.chosen_pair(choice, default)


def load_pair(choice: ModelChoice) -> loading.LoadedPair:
    """The models of `choice`, fetched with a progress bar on stderr, ready for a Session."""
    pair = chosen_pair(choice)
    with progress_bar() as report:
        return loading.load_pair(pair, report)


def check_output(destination: str | None, option: str) -> str | None:
    """`destination`: None, a writable file, or '-' for JSON. Raises BadInput naming `option`."""
    if destination == "-" and option != "--json":  # it would be the name of a file
        raise BadInput(f"{option} is '-'; it must be a file.")
    if destination not in (None, "-"):
        new = not os.path.lexists(destination)
        try:
            open(destination, "a").close()  # os.access does not know a disk that is read only
            if new:
                os.unlink(destination)  # an interrupted command leaves no empty file
        except OSError as error:
            raise BadInput(f"{option} {destination} cannot be written: {error.strerror}.") from None
    return destination


def write_file(text: str, destination: str) -> None:
    """Write UTF-8 and a line end to the file `destination`, '-' for standard output. A file keeps
    what it has where the disk is full or the process is killed."""
    content = text.encode("utf-8", "replace") + b"\n"
    try:
        if destination != "-" and os.path.isfile(destination):
            try:
                with replacing(Path(destination).resolve()) as made:
                    made.write_bytes(content)
                    shutil.copymode(destination, made)
                return
            except OSError as error:  # a folder of others, or a file that is mounted
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EBUSY):
                    raise
        with click.open_file(destination, "wb") as file:
            file.write(content)
            file.flush()  # raises for a full disk
    except OSError as error:
        raise SpecdemoError(f"{destination} cannot be written: {error.strerror}.") from error


def write_report(figures: Any, json_file: str | None, tables: Mapping[str, Table]) -> None:
    """Print the tables, each below its title, on stderr if standard output gets JSON. Write
    `figures` as JSON to `json_file`, if any."""
    out = sys.stderr if json_file == "-" else sys.stdout
    if json_file == "-":
        write_file(as_json(figures), json_file)
    try:
        for title, rows in tables.items():
            click.echo(title, file=out)
            show([dict(map(_readable, row, row.values())) for row in rows], out)
    finally:  # a full disk must not lose the tables, nor a reader that leaves the file
        if json_file and json_file != "-":
            write_file(as_json(figures), json_file)


def _readable(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), size(value)
    return name, ", ".join(value) if isinstance(value, list) else value
