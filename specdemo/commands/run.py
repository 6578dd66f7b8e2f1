"""`specdemo run INSTRUCTION`: the answer, tokens coloured by origin, and the figures of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

from specdemo.cli import (
    Command,
    json_option,
    load_pair,
    model_options,
    settings_options,
    write_json,
)
from specdemo.errors import BadInput
from specdemo.terminal import printable, where

if TYPE_CHECKING:
    from specdemo.settings import ModelChoice, Settings
    from specdemo.trace import BaselineToken, Round, Trace

STYLES = {
    "accepted": ("accepted draft token", {"fg": "green"}),
    "correction": ("correction (underlined)", {"fg": "red", "underline": True}),
    "bonus": ("bonus token (bold)", {"fg": "cyan", "bold": True}),
    "first": ("first token (inverse)", {"fg": "yellow", "reverse": True}),
}
"""Origin of a token: its name in the legend; colour, and an attribute for the colour-blind. Tokens
without a draft are plain."""

CHECK_SECONDS = 2.0
"""How long to wait for the check of the models' files, which began when they were loaded."""

ENDINGS = {
    "stop": "the model ended its answer",
    "length": "the token limit was reached",
    "context": "the context is full",
    "cancelled": "stopped",
}


@click.command(cls=Command)
@click.argument("instruction", help="What to ask.")
@click.option("--baseline", is_flag=True, help="Also decode autoregressively, and compare.")
@json_option
@model_options
@settings_options
def run(
    instruction: str, baseline: bool, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    # Where the locale is not UTF-8, the bytes may be; those that are not are replaced.
    instruction = instruction.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not instruction.strip():
        raise BadInput("The instruction is empty; write what the model should answer.")
    loaded = load_pair(choice)

    from specdemo.answering import Question
    from specdemo.session import Session  # imports openvino: not before what may be refused
    from specdemo.trace import to_json

    screen = Screen(sys.stderr if json_file == "-" else sys.stdout)
    with Session(loaded, background=False) as session:
        screen.line(f"{session.info.target}, draft by {session.info.draft or 'n-gram lookup'}")
        if screen.styled:
            for origin, (name, _) in STYLES.items():
                screen.text(name, origin)
                screen.text("   ")
            screen.line("\n")
        asked = Question(instruction, settings, certify=not baseline, baseline=baseline)
        trace = show(session.ask(asked), screen)
        session.require_intact(CHECK_SECONDS)
    screen.line("\n" + "\n".join(report(trace)))
    if json_file:
        write_json(to_json(trace), json_file)


class Screen:
    """A stream with styles where it is a terminal that wants them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.styled = stream.isatty() and not plain

    def line(self, text: str = "") -> None:
        click.echo(text, file=self._stream)

    def text(self, text: str, origin: str = "plain") -> None:
        """Generated text, its control characters escaped: they could command the terminal."""
        text = printable(text)
        if text and self.styled and origin in STYLES:
            text = click.style(text, **STYLES[origin][1])
        click.echo(text, nl=False, file=self._stream, color=True)


def show(events: Iterable[Round | BaselineToken | Trace], screen: Screen) -> Trace:
    """Print a session's events as they come; returns the last, the trace."""
    from specdemo.trace import BaselineToken, Trace

    answering = True
    for event in events:
        if isinstance(event, Trace):
            trace = event
        elif isinstance(event, BaselineToken):
            if answering:
                screen.line("\n\nautoregressive decoding:")
            answering = False
            screen.text(event.text)
        else:
            for token in event.tokens:
                screen.text(token.text, getattr(token, "kind", "accepted"))
    screen.line()
    return trace


def report(trace: Trace) -> list[str]:
    """The figures of a run in a few lines."""
    from specdemo.trace import summarize

    figures = summarize(trace)
    lines = [
        f"{figures.tokens} tokens in {figures.rounds} rounds"
        f" after a prompt of {trace.prompt_tokens} ({ENDINGS[trace.finish_reason]})",
        f"time to first token {figures.time_to_first_token:.3f} s,"
        f" then {figures.tokens_per_second:.1f} tokens/s",
    ]
    if figures.acceptance_rate is not None:
        lines.append(
            f"acceptance rate {figures.acceptance_rate:.0%},"
            f" {figures.tokens_per_round:.2f} tokens per round;"
            f" drafting {figures.draft_seconds:.2f} s, verifying {figures.verify_seconds:.2f} s"
        )
    if trace.pair.numerics_found:
        lines.append(f"numerics {trace.pair.numerics_found}")
    if found := trace.certificate:
        if found.certified:
            verdict, chose = "certified", f"the same {found.checked} tokens"
        else:
            verdict, chose = "not certified", f"another token at position {found.first_difference}"
        lines.append(f"{verdict}: one parallel pass over the finished answer chose {chose}")
    if figures.baseline_tokens_per_second is not None:
        lines.append(f"autoregressive decoding: {figures.baseline_tokens_per_second:.1f} tokens/s")
    if figures.speedup is not None:
        lines.append(f"speed-up {figures.speedup:.2f}x")
    if trace.identical:
        lines.append("the two answers are identical, token for token")
    elif trace.identical is False:
        found = where(trace.difference) or "one of them ends before the other"
        lines.append(f"the two answers differ: {found}")
    return lines
