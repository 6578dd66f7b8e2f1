"""`specdemo run INSTRUCTION`: the answer, tokens coloured by origin, and the figures of the run."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial

import click
from rich.console import Console

from specdemo.commands.shared import answer_options, load_pair, sectioned, write_file
from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.machine.terminal import Progress, printable, progress_bar
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.judge import MIN_RACES
from specdemo.runs.question import Question, SessionEvent
from specdemo.runs.race import ENOUGH_SECONDS, enough
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace, describe_difference, summarize

STYLES = {
    "accepted": "green",
    "forced": "magenta",
    "correction": "red underline",
    "bonus": "cyan bold",
    "first": "yellow reverse",
}
"""By the origin of a token: a colour, mostly with an attribute for colour-blind readers."""

MAX_BYTES = 10_000_000  # read from the standard input; no context holds as many
CHECK_SECONDS = 2.0  # wait for the check of the models' files, which began when they were loaded
PREPARING = "Compiling and measuring what makes answers fast"
AGAIN = f"The same race again: at least {MIN_RACES} decide"
PRINTED_CONTROLS = "\n\t\u200d"  # control characters that an answer may print: the last joins emoji


@sectioned()
@click.argument("instruction", help="What to ask; - reads the standard input.")
@click.option("--baseline", is_flag=True, help="Also decode autoregressively, and compare.")
@click.option("--quiet", is_flag=True, help="Print the answer alone.")
@answer_options
def run(
    instruction: str,
    baseline: bool,
    quiet: bool,
    threads: int | None,
    json_file: str | None,
    choice: ModelChoice,
    settings: Settings,
) -> None:
    if instruction == "-":
        instruction = sys.stdin.buffer.read(MAX_BYTES).decode("utf-8", "replace")
    # The bytes may be UTF-8 even where the locale is not; invalid bytes are replaced.
    instruction = instruction.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not instruction.strip():
        raise BadInput("The instruction is empty; write what the model should answer.")
    loaded = load_pair(choice)

    from specdemo.runs.session import compiled_session  # imports openvino, so after the checks

    out = sys.stderr if json_file == "-" else sys.stdout
    console = partial(Console, markup=False, highlight=False, emoji=False, soft_wrap=True)
    screen, notes = console(file=out), console(stderr=True, quiet=quiet)
    with progress_bar() as report:
        session = compiled_session(loaded, report, background=False, threads=threads)
    with session:
        notes.print(f"{session.info.target}, draft by {session.info.draft or 'n-gram lookup'}")
        if screen.is_terminal:
            for origin, style in STYLES.items():
                notes.print(origin, style=style, end="   ")
            notes.print("\n")
        repeat = 0.0 if quiet else ENOUGH_SECONDS
        events = session.ask(Question(instruction, settings, baseline=baseline, repeat=repeat))
        trace = show(after_preparation(events), screen)
        loaded.check.require(CHECK_SECONDS)
    notes.print("\n" + "\n".join(figures_of(trace)))
    if json_file:
        write_file(trace.to_json(), json_file)


def after_preparation(events: Iterator[SessionEvent]) -> Iterator[SessionEvent]:
    """The events after those that come while models are compiled, which are shown as progress."""
    with progress_bar() as report:
        for event in events:
            if not isinstance(event, Waiting):
                break
            report(Progress(PREPARING))
    yield event
    yield from events


def show(events: Iterable[SessionEvent], screen: Console) -> Trace:
    """Print a session's events as they come, and that a race is repeated; returns the last, the
    trace."""
    baseline_begun = False
    with progress_bar() as report:
        for event in events:
            if isinstance(event, Round):
                for token in event.tokens:
                    text = printable(token.text, PRINTED_CONTROLS)
                    screen.print(text, style=STYLES.get(token.kind), end="")
            elif isinstance(event, BaselineToken):
                if not baseline_begun:
                    screen.print("\n\nautoregressive decoding:")
                baseline_begun = True
                screen.print(printable(event.text, PRINTED_CONTROLS), end="")
            elif isinstance(event, Trace) and not enough(event):
                report(Progress(AGAIN))
    screen.print()
    assert isinstance(event, Trace)
    return event


def figures_of(trace: Trace) -> list[str]:
    """The figures of a run in a few lines."""
    figures = summarize(trace)
    lines = [
        f"{figures.tokens} tokens in {figures.rounds} rounds"
        f" after a prompt of {trace.prompt_tokens} (ended by: {trace.finish_reason})",
        f"time to first token {figures.time_to_first_token:.3f} s,"
        f" then {figures.tokens_per_second:.1f} tokens/s",
        f"numerics {trace.pair.numerics_found}",
    ]
    if figures.acceptance_rate is not None:
        lines.append(
            f"acceptance rate {figures.acceptance_rate:.0%},"
            f" {figures.tokens_per_round:.2f} tokens per round;"
            f" drafting {figures.draft_seconds:.2f} s, verifying {figures.verify_seconds:.2f} s"
        )
    if verdict := trace.verdict:
        lines.append(f"autoregressive decoding: {figures.baseline_tokens_per_second:.1f} tokens/s")
        lines.append(verdict.sentence)
    if trace.identical:
        lines.append("the two answers are identical, token for token")
    elif trace.identical is False:
        lines.append(f"the two answers differ: {describe_difference(trace)}")
    return lines
