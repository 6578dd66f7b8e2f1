"""`specdemo run INSTRUCTION`: the answer, tokens coloured by origin, and the figures of the run."""

import sys
from collections.abc import Iterable

import click
from rich.console import Console

from specdemo.commands.shared import answer_options, load_pair, write_json
from specdemo.errors import BadInput
from specdemo.host.terminal import printable
from specdemo.pairs.choice import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Round, Trace, summarize, to_json, where

STYLES = {
    "accepted": "green",
    "forced": "magenta",
    "correction": "red underline",
    "bonus": "cyan bold",
    "first": "yellow reverse",
}
"""The style of a token by its origin: a colour, mostly with an attribute for colour-blind readers.
Tokens of a round without a draft have no style."""

CHECK_SECONDS = 2.0
"""How long to wait for the check of the models' files, which began when they were loaded."""

KEPT = "\n\t\u200d"  # control characters that an answer may print: the last joins emoji


@click.command()
@click.argument("instruction", help="What to ask.")
@click.option("--baseline", is_flag=True, help="Also decode autoregressively, and compare.")
@answer_options
def run(
    instruction: str, baseline: bool, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    # The bytes may be UTF-8 even where the locale is not; invalid bytes are replaced.
    instruction = instruction.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not instruction.strip():
        raise BadInput("The instruction is empty; write what the model should answer.")
    loaded = load_pair(choice)

    from specdemo.runs.session import Session  # imports openvino, so only after the checks

    out = sys.stderr if json_file == "-" else sys.stdout
    screen = Console(file=out, markup=False, highlight=False, emoji=False, soft_wrap=True)
    with Session(loaded, background=False) as session:
        screen.print(f"{session.info.target}, draft by {session.info.draft or 'n-gram lookup'}")
        if screen.is_terminal:
            for origin, style in STYLES.items():
                screen.print(origin, style=style, end="   ")
            screen.print("\n")
        trace = show(session.answer(instruction, settings, baseline=baseline), screen)
        loaded.check.require(CHECK_SECONDS)
    screen.print("\n" + "\n".join(report(trace)))
    if json_file:
        write_json(to_json(trace), json_file)


def show(events: Iterable[Round | BaselineToken | Trace], screen: Console) -> Trace:
    """Print a session's events as they come; returns the last, the trace."""
    answering = True
    for event in events:
        if isinstance(event, Round):
            for token in event.tokens:
                style = STYLES.get(token.kind)
                screen.print(printable(token.text, KEPT), style=style, end="")
        elif isinstance(event, BaselineToken):
            if answering:
                screen.print("\n\nautoregressive decoding:")
            answering = False
            screen.print(printable(event.text, KEPT), end="")
    screen.print()
    return event


def report(trace: Trace) -> list[str]:
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
    if figures.speedup is not None:
        lines.append(f"autoregressive decoding: {figures.baseline_tokens_per_second:.1f} tokens/s")
        lines.append(f"speed-up {figures.speedup:.2f}x")
    if trace.identical:
        lines.append("the two answers are identical, token for token")
    elif trace.identical is False:
        lines.append(f"the two answers differ: {where(trace.difference)}")
    return lines
