"""`specdemo run "INSTRUCTION"`: the answer in the terminal, tokens coloured by origin, and what speculation saved."""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from specdemo.trace import DraftToken, EmittedToken, Round, Trace
    from specdemo.session import Session

# Origin: ANSI codes (a colour, and an attribute for those who do not see colours) and the word of the legend.
STYLES = {
    "accepted": ("32", "guessed by the draft and accepted"),
    "correction": ("31;4", "correction by the target, underlined"),
    "bonus": ("36;1", "bonus token of the target, bold"),
    "first": ("33;7", "first token, inverse"),
    "plain": ("0", "the target alone: nothing was drafted"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import add_decoding_arguments, add_pair_arguments

    parser.add_argument("instruction", metavar="INSTRUCTION", help="what to ask")
    parser.add_argument("--baseline", action="store_true", help="also run the target alone and compare")
    parser.add_argument("--json", metavar="FILE", help="write the trace as JSON ('-' for standard output)")
    add_pair_arguments(parser)
    add_decoding_arguments(parser)


def main(args: argparse.Namespace) -> int:
    from specdemo.cli import check_output, load_from, settings_from, write_json
    from specdemo.trace import to_json
    from specdemo.models.errors import BadChoice

    if not args.instruction.strip():
        raise BadChoice("The instruction is empty; write what the model should answer.")
    check_output(args.json, "--json")
    settings = settings_from(args)
    loaded = load_from(args)

    from specdemo.session import Session  # openvino is imported here, after the cheap refusals above

    # With the trace on standard output, what a person reads goes to standard error.
    screen = Screen(sys.stderr if args.json == "-" else sys.stdout)
    session = Session(loaded)
    try:
        trace = answer(session, args, settings, screen)
    finally:
        session.close()
    if args.json:
        write_json(to_json(trace), args.json)
    return 0


def answer(session: Session, args: argparse.Namespace, settings, screen: Screen) -> Trace:
    """Stream the answer, and the baseline if it is asked for; returns the finished trace."""
    from specdemo.trace import BaselineToken, Trace

    pair = session.info
    screen.line(f"{pair.target}, drafting with {pair.draft or 'prompt lookup'}")
    screen.legend()
    trace = None
    for event in session.answer(args.instruction, settings):
        if isinstance(event, Trace):
            trace = event
        else:
            screen.round(event)
    screen.line()
    if args.baseline:
        screen.line("\nthe target alone:")
        for event in session.baseline(trace):
            if isinstance(event, BaselineToken):
                screen.text(event.text)
            elif isinstance(event, Trace):
                trace = event
        screen.line()
    screen.line("\n" + "\n".join(report(trace)))
    return trace


class Screen:
    """A stream with ANSI styles where it is a terminal and NO_COLOR is not set, without them elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._styled = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def line(self, text: str = "") -> None:
        print(text, file=self._stream, flush=True)

    def text(self, text: str, style: str = "plain") -> None:
        """Generated text: control characters, which could command the terminal, are shown as what they are."""
        text = printable(text)
        if self._styled and text and style != "plain":
            text = f"\x1b[{STYLES[style][0]}m{text}\x1b[0m"
        print(text, end="", file=self._stream, flush=True)

    def round(self, round_: Round) -> None:
        for token in round_.tokens:
            self.text(token.text, origin(token))

    def legend(self) -> None:
        if self._styled:
            for style in ("accepted", "correction", "bonus", "first"):
                self.text(STYLES[style][1], style)
                self.text("   ")
            self.line("\n")


def origin(token: DraftToken | EmittedToken) -> str:
    """Which of STYLES a token of the answer takes."""
    return getattr(token, "kind", "accepted")


def printable(text: str) -> str:
    """`text` with every control character but newline and tab written as an escape."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf") or char == "\u200d"
        else char.encode("unicode_escape").decode()
        for char in text
    )  # fmt: skip


def report(trace: Trace) -> list[str]:
    """The figures of a run in a few lines."""
    from specdemo.trace import summarize

    figures = summarize(trace)
    lines = [
        f"{figures.tokens} tokens in {figures.rounds} rounds after a prompt of {trace.prompt_tokens}"
        f" ({_ENDINGS[trace.finish_reason]})",
        f"time to first token {figures.time_to_first_token:.3f} s, then {figures.tokens_per_second:.1f} tokens/s",
    ]
    if figures.acceptance_rate is not None:
        lines.append(
            f"acceptance rate {figures.acceptance_rate:.0%}, {figures.tokens_per_round:.2f} tokens per round; "
            f"drafting {figures.draft_seconds:.2f} s, verifying {figures.verify_seconds:.2f} s"
        )
    if trace.pair.numerics_found:
        lines.append(f"numerics {trace.pair.numerics_found}")
    if trace.certificate:
        lines.append(_certificate(trace))
    if trace.baseline and figures.baseline_tokens_per_second is not None:
        lines.append(f"the target alone: {figures.baseline_tokens_per_second:.1f} tokens/s")
    if figures.speedup is not None:
        lines.append(f"speed-up {figures.speedup:.2f}x")
    if trace.identical is not None:
        lines.append("the two answers are identical, token for token" if trace.identical else "the two answers differ")
    if trace.baseline:
        lines += [
            f"at token {tie.position} the one-token baseline rounds a near tie the other way"
            f" (margin {tie.margin:.3f} logits)"
            for tie in trace.baseline.near_ties
        ]
    return lines


_ENDINGS = {
    "stop": "the model ended its answer",
    "length": "the token limit was reached",
    "context": "the context is full",
    "cancelled": "stopped",
}


def _certificate(trace: Trace) -> str:
    certificate = trace.certificate
    if certificate.certified:
        return f"certified: one parallel forward chooses the same {certificate.checked} tokens"
    return f"not certified: one parallel forward chooses another token at position {certificate.first_difference}"
