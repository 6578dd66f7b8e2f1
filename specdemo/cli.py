"""The command line: parses, prints, and turns every failure into one sentence with an exit code. No model code here.

Each command lives in a module that is imported only when that command is called, so `--help` answers at once.
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
    from specdemo.engine.trace import Settings
    from specdemo.zoo.load import LoadedPair
    from specdemo.zoo.pairs import Pair

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True, slots=True)
class Command:
    """`module` offers `add_arguments(parser)` and `main(args) -> exit code`; importing it must be cheap."""

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
    Command("export", "make OpenVINO IR of a PyTorch checkpoint", "specdemo.commands.export"),
    Command("train-draft", "distil a draft for a target from the target's own text", "specdemo.training.command"),
    Command("rehearse", "try a pair's real shapes with made-up weights: memory and time a step",
            "specdemo.commands.rehearse"),
)  # fmt: skip


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


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """--pair, or --model with --assistant-model, and the devices."""
    group = parser.add_argument_group("which models")
    group.add_argument("--pair", metavar="NAME", default=os.environ.get("SPECDEMO_PAIR") or None,
                       help="a pair that `pairs` lists (default: the largest Dolly pair that fits if the Hub answers, "
                       "else embedded; SPECDEMO_PAIR sets it)")  # fmt: skip
    group.add_argument("--model", metavar="DIR_OR_REPO", help="your own target: a folder or a Hub repository")
    group.add_argument("--assistant-model", metavar="DIR_OR_REPO", help="the draft that goes with --model")
    group.add_argument("--weight-format", choices=("int8", "int4", "fp16"), default="int8",
                       help="for a PyTorch checkpoint: how it is exported (default int8)")  # fmt: skip
    group.add_argument("--device", metavar="NAME", default=os.environ.get("SPECDEMO_DEVICE") or "CPU",
                       help="OpenVINO device of the target (default CPU; SPECDEMO_DEVICE sets it)")  # fmt: skip
    group.add_argument("--draft-device", metavar="NAME", default=os.environ.get("SPECDEMO_DRAFT_DEVICE") or "CPU",
                       help="OpenVINO device of the draft (default CPU)")  # fmt: skip


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """What `settings_from` reads."""
    group = parser.add_argument_group("how to answer")
    group.add_argument("--max-new-tokens", type=whole_number(1), metavar="N", default=None,
                       help="longest answer, in tokens (default 100; SPECDEMO_MAX_NEW_TOKENS sets it)")  # fmt: skip
    group.add_argument("--draft-tokens", type=auto_or_count, metavar="auto|K", default=None,
                       help="tokens drafted a round: a number, or auto: adapts to what it measures")  # fmt: skip
    group.add_argument("--drafter", choices=("model", "lookup", "auto"), default="auto",
                       help="who drafts: the draft model, lookup in the prompt, or whichever pays")  # fmt: skip
    group.add_argument("--temperature", type=real_number(0, 10), metavar="T", default=0.0,
                       help="0 takes the likeliest token; above it, sample (default 0)")  # fmt: skip
    group.add_argument("--top-p", type=real_number(0, 1, open_below=True), metavar="P", default=1.0,
                       help="sample among the likeliest tokens that hold probability P (default 1)")  # fmt: skip
    group.add_argument("--top-k", type=whole_number(0), metavar="K", default=0,
                       help="sample among the K likeliest tokens (default 0: all)")  # fmt: skip
    group.add_argument("--seed", type=whole_number(0, 2**63 - 1), metavar="S", default=0, help="of the sampling")
    group.add_argument("--coupling", choices=("shared", "maximal"), default="shared",
                       help="of draft and target when sampling: shared noise (same seed, same answer as plain sampling), "
                       "or the classic rule min(1, q/p), which accepts a little more often")
    group.add_argument("--numerics", choices=("exact", "fast"), default="exact",
                       help="exact: the same tokens as plain decoding; fast: the plugin's own defaults")  # fmt: skip


def settings_from(args: argparse.Namespace) -> Settings:
    """The Settings that the options of `add_decoding_arguments` ask for. Raises BadChoice for a bad variable."""
    from specdemo.engine.trace import Settings

    limit = args.max_new_tokens or from_environment("SPECDEMO_MAX_NEW_TOKENS", whole_number(1), 100)
    return Settings(
        max_new_tokens=limit,
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
    """The value of an environment variable, `default` if it is unset or empty. Raises BadChoice naming it."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        from specdemo.zoo.errors import BadChoice

        raise BadChoice(f"The environment variable {variable}: {error}.") from None


def pair_from(args: argparse.Namespace) -> Pair:
    """The pair that the options of `add_pair_arguments` name; which one is taken unasked is said on stderr.

    Raises BadChoice for an unknown pair or options that do not go together.
    """
    from specdemo.zoo import catalogue, models, pairs
    from specdemo.zoo.errors import BadChoice

    if args.model:
        target = models.source_of(args.model, "--model", args.weight_format)
        draft = None
        if args.assistant_model:
            draft = models.source_of(args.assistant_model, "--assistant-model", args.weight_format)
        return pairs.own_pair(target, draft)
    if args.assistant_model:
        raise BadChoice("--assistant-model needs --model beside it: it is the draft for a target of your own.")
    if args.pair:
        return pairs.find_pair(args.pair)
    choice = catalogue.default_pair()
    print(f"pair {choice.why}", file=sys.stderr)
    return choice.pair


def load_from(args: argparse.Namespace) -> LoadedPair:
    """The pair and the devices that `args` name, fetched with a progress bar on stderr, ready for a Session."""
    import dataclasses

    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.zoo.load import load_pair
    from specdemo.zoo.machine import require_device

    for option, device in (("--device", args.device), ("--draft-device", args.draft_device)):
        require_device(device, option)
    pair = pair_from(args)
    bar = ProgressBar()
    try:
        loaded = load_pair(pair, progress=bar)
    finally:
        bar.close()
    return dataclasses.replace(loaded, device=args.device, draft_device=args.draft_device)


def write_json(text: str, destination: str) -> None:
    """Write to the file `destination`, or to standard output for '-'. Raises ZooError if it cannot be written."""
    if destination == "-":
        print(text, flush=True)
        return
    try:
        with open(destination, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        from specdemo.zoo.errors import ZooError

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
