"""The command line: parses, prints, and turns every failure into one sentence with an exit code. No
model code here.

Each command lives in a module that is imported only when that command is called, so `--help`
answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from specdemo.trace import Settings
    from specdemo.models.load import LoadedPair
    from specdemo.models.pairs import Pair

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True, slots=True)
class Command:
    """`module` offers `add_arguments(parser)` and `main(args) -> exit code`; importing it must be
    cheap."""

    name: str
    summary: str
    module: str


COMMANDS = (
    Command("pairs", "list the pairs of models: sizes, what fits this machine, what is already here",
            "specdemo.commands.pairs"),
    Command("fetch", "get a pair ready: download, check, convert", "specdemo.commands.fetch"),
    Command("run", "answer an instruction in the terminal, tokens coloured by origin", "specdemo.commands.run"),
    Command("bench", "measure prompts with and without speculation", "specdemo.bench.command"),
    Command("audit", "measure that speculation loses nothing", "specdemo.bench.audit_command"),
    Command("load", "visitors for a server: what they get together, and what they leave behind",
            "specdemo.commands.load"),
    Command("export", "make OpenVINO IR of a PyTorch checkpoint", "specdemo.commands.export"),
    Command("train-draft", "distil a draft for a target from the target's own text", "specdemo.training.command"),
    Command("serve", "answer over an OpenAI-compatible API, with replicas on Ray Serve", "specdemo.serving.command"),
    Command("rehearse", "try a pair's real shapes with made-up weights: memory and time a step",
            "specdemo.commands.rehearse"),
)  # fmt: skip


_VARIABLES = """environment variables, for a Space's variables page say; an option goes before its variable:
  SPECDEMO_PAIR, SPECDEMO_MODEL, SPECDEMO_ASSISTANT_MODEL, SPECDEMO_WEIGHT_FORMAT    which models
  SPECDEMO_DEVICE, SPECDEMO_DRAFT_DEVICE, SPECDEMO_KV_CACHE                          where and how they run
  SPECDEMO_MAX_NEW_TOKENS, SPECDEMO_DRAFT_TOKENS, SPECDEMO_DRAFTER, SPECDEMO_TEMPERATURE, SPECDEMO_TOP_P,
  SPECDEMO_TOP_K, SPECDEMO_SEED, SPECDEMO_COUPLING, SPECDEMO_NUMERICS                how to answer
  SPECDEMO_HOME                                          the folder for what is fetched and made
  SPECDEMO_DEBUG                                         1: failures with their stack trace
  SPECDEMO_HOST, SPECDEMO_PORT, SPECDEMO_SHARE, SPECDEMO_ENGINE, SPECDEMO_API_KEY, SPECDEMO_VISITORS,
  SPECDEMO_EXCLUSIVE, SPECDEMO_CACHE_MB, SPECDEMO_LOG    of the page (app.py --help) and of serve
  HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY, NO_PROXY              as huggingface_hub reads them
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0, 1 for a failure, 2 for bad input."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parse(argv)
        return args.main(args)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output left, `head` say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        if os.environ.get("SPECDEMO_DEBUG"):
            raise
        return _fail(_sentence(error), _exit_code(error))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = OneSentenceParser(
        prog="specdemo",
        description="Watch a small draft model and a large target model answer faster than the target alone.",
        epilog=_VARIABLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.summary, description=_capital(command.summary) + ".")
        if command.name == asked:
            module = _import(command)
            module.add_arguments(sub)
            sub.set_defaults(main=module.main)
    return parser.parse_args(argv)


def _import(command: Command) -> Any:
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name and command.module.startswith(error.name):
            sys.exit(_fail(f"the command {command.name} is not part of this installation", FAILURE))
        raise


class OneSentenceParser(argparse.ArgumentParser):
    """Argument errors are one sentence on stderr, without the usage lines."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        command = f"{self.prog} --help"
        sys.exit(_fail(f"{message.removeprefix('argument ').rstrip('.')} (see {command})", BAD_INPUT))


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, help="print the version and leave", **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import specdemo

        print(f"specdemo {specdemo.__version__}")
        parser.exit()


# Options that several commands share.


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number from `least`, up to `most` if given."""

    def parse(text: str) -> int:
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
        return number

    return parse


def real_number(least: float, most: float, *, open_below: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number from `least` (not itself if `open_below`) to `most`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (least <= number <= most) or (open_below and number == least):
            above = "above " if open_below else "from "
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {above}{least:g} to {most:g}")
        return number

    return parse


def auto_or_count(text: str) -> int | None:
    """An argparse type: "auto" (None) or how many tokens to draft a round."""
    return None if text == "auto" else _count_or_auto(text)


def _count_or_auto(text: str) -> int:
    try:
        return whole_number(1, 64)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} or auto") from None


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """An argparse type: one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def add_option(group: Any, name: str, parse: Callable[[str], Any], default: Any, *, help: str, metavar: str) -> None:
    """An option whose default comes from the environment variable SPECDEMO_NAME where that is set.

    Raises BadChoice if the variable holds what the option would not accept.
    """
    variable = "SPECDEMO_" + name.removeprefix("--").replace("-", "_").upper()
    value = from_environment(variable, parse, default)
    group.add_argument(name, type=parse, default=value, metavar=metavar, help=f"{help}; {variable} sets it")


def add_choice(group: Any, name: str, choices: Sequence[str], *, help: str) -> None:
    """`add_option` for one of `choices`, the first of which is the default."""
    text = f"{help} (default {choices[0]})"
    add_option(group, name, one_of(choices), choices[0], help=text, metavar="|".join(choices))


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """--pair, or --model with --assistant-model; the devices and the KV cache they run with."""
    from specdemo.models.export import WEIGHT_FORMATS
    from specdemo.models.machine import KV_CACHES

    group = parser.add_argument_group("which models")
    group.add_argument("--pair", metavar="NAME",
                       help="a pair that `pairs` lists (default: the largest Dolly pair that fits if the Hub answers, "
                       "else embedded); SPECDEMO_PAIR sets it")  # fmt: skip
    group.add_argument("--model", metavar="DIR_OR_REPO",
                       help="your own target: a folder or a Hub repository; SPECDEMO_MODEL sets it")  # fmt: skip
    group.add_argument("--assistant-model", metavar="DIR_OR_REPO",
                       help="the draft that goes with --model; SPECDEMO_ASSISTANT_MODEL sets it")  # fmt: skip
    add_choice(group, "--weight-format", WEIGHT_FORMATS, help="for a PyTorch checkpoint: how it is exported")
    group = parser.add_argument_group("where and how they run")
    add_option(group, "--device", str, "CPU", metavar="NAME", help="OpenVINO device of the target (default CPU)")
    add_option(group, "--draft-device", str, "CPU", metavar="NAME", help="OpenVINO device of the draft (default CPU)")
    add_choice(group, "--kv-cache", KV_CACHES, help="precision of the KV cache; whatever it is, what it does to "
               "exactness is measured and said")  # fmt: skip


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """What `settings_from` reads."""
    group = parser.add_argument_group("how to answer")
    add_option(
        group, "--max-new-tokens", whole_number(1), 100, metavar="N", help="longest answer, tokens (default 100)"
    )
    add_option(group, "--draft-tokens", auto_or_count, None, metavar="auto|K",
               help="tokens drafted a round: a number, or auto (default): adapts to what it measures")  # fmt: skip
    add_choice(group, "--drafter", ("auto", "model", "lookup"),
               help="who drafts: the draft model, lookup in the prompt, or whichever pays")  # fmt: skip
    add_option(group, "--temperature", real_number(0, 10), 0.0, metavar="T",
               help="0 takes the likeliest token; above it, sample (default 0)")  # fmt: skip
    add_option(group, "--top-p", real_number(0, 1, open_below=True), 1.0, metavar="P",
               help="sample among the likeliest tokens that hold probability P (default 1)")  # fmt: skip
    add_option(group, "--top-k", whole_number(0), 0, metavar="K",
               help="sample among the K likeliest tokens (default 0: all)")  # fmt: skip
    add_option(group, "--seed", whole_number(0, 2**63 - 1), 0, metavar="S", help="of the sampling (default 0)")
    add_choice(group, "--coupling", ("shared", "maximal"),
               help="of draft and target when sampling: shared noise (same seed, same answer as plain sampling), "
               "or the classic rule min(1, q/p), which accepts a little more often")  # fmt: skip
    add_choice(group, "--numerics", ("exact", "fast"),
               help="exact: the same tokens as plain decoding; fast: the plugin's own defaults")  # fmt: skip


def settings_from(args: argparse.Namespace) -> Settings:
    """The Settings that the options of `add_decoding_arguments` ask for."""
    from specdemo.trace import Settings

    return Settings(
        max_new_tokens=args.max_new_tokens,
        draft_tokens=args.draft_tokens,
        drafter=args.drafter,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        numerics=args.numerics,
        coupling=args.coupling,
    )


def from_environment(variable: str, parse: Callable[[str], Any], default: Any) -> Any:
    """The value of an environment variable, `default` if it is unset or empty. Raises BadChoice
    naming it."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        from specdemo.models.errors import BadChoice

        raise BadChoice(f"The environment variable {variable}: {error}.") from None


def pair_from(args: argparse.Namespace) -> Pair:
    """The pair that the options of `add_pair_arguments` name; which one is taken unasked is said on
    stderr.

    Raises BadChoice for an unknown pair or options that do not go together.
    """
    from specdemo.models import catalogue, models, pairs
    from specdemo.models.errors import BadChoice

    name, model, assistant = args.pair, args.model, args.assistant_model
    if not (name or model):  # the variables stand back behind any option that names models
        name, model = from_environment("SPECDEMO_PAIR", str, None), from_environment("SPECDEMO_MODEL", str, None)
        if model:
            assistant = assistant or from_environment("SPECDEMO_ASSISTANT_MODEL", str, None)
    if model:
        target = models.source_of(model, "--model", args.weight_format)
        draft = models.source_of(assistant, "--assistant-model", args.weight_format) if assistant else None
        return pairs.own_pair(target, draft)
    if assistant:
        raise BadChoice("--assistant-model needs --model beside it: it is the draft for a target of your own.")
    if name:
        return pairs.find_pair(name)
    choice = catalogue.default_pair()
    print(f"pair {choice.why}", file=sys.stderr)
    return choice.pair


def load_from(args: argparse.Namespace) -> LoadedPair:
    """The pair and the devices that `args` name, fetched with a progress bar on stderr, ready for a
    Session."""
    import dataclasses

    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models.load import load_pair
    from specdemo.models.machine import require_device

    for option, device in (("--device", args.device), ("--draft-device", args.draft_device)):
        require_device(device, option)
    pair = pair_from(args)
    bar = ProgressBar()
    try:
        loaded = load_pair(pair, progress=bar)
    finally:
        bar.close()
    return dataclasses.replace(loaded, device=args.device, draft_device=args.draft_device, kv_cache=args.kv_cache)


def check_output(destination: str | None, option: str) -> None:
    """Refuse a file that cannot be written before minutes of measuring, not after. Raises
    BadChoice."""
    from pathlib import Path

    from specdemo.models.errors import BadChoice

    if destination in (None, "-"):
        if option == "--html" and destination == "-":
            raise BadChoice("--html writes a page of some megabytes: name a file for it, not '-'.")
        return
    path = Path(destination)
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.parent}"
        raise BadChoice(f"{option} {destination} {reason}.")


def write_json(text: str, destination: str) -> None:
    """Write to the file `destination`, or to standard output for '-'. Raises ZooError if it cannot
    be written."""
    if destination == "-":
        print(text, flush=True)
        return
    try:
        with open(destination, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        from specdemo.models.errors import ZooError

        raise ZooError(f"--json {destination} cannot be written: {error.strerror or error}.") from error


def _fail(sentence: str, code: int) -> int:
    print(f"specdemo: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _sentence(error: Exception) -> str:
    if _is_for_the_user(error):
        return str(error)
    return f"unexpected {type(error).__name__}: {str(error)[:300]} (SPECDEMO_DEBUG=1 shows where)"


def _exit_code(error: Exception) -> int:
    if hasattr(error, "exit_code"):
        return error.exit_code
    return BAD_INPUT if _is_for_the_user(error) and isinstance(error, ValueError) else FAILURE


def _is_for_the_user(error: Exception) -> bool:
    """Whether the message was written as a sentence for the user: the project's own exceptions."""
    return type(error).__module__.startswith("specdemo.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
