"""Where one token by itself rounds differently from larger forwards, on processors without VNNI
(docs/reference/numerics.md): it runs unpadded, and its choice stands unless it was nearly a tie."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from .drafters import Forward, Reply
from .model import Run

REPEATED = 16
"""Tokens that a forward repeats at once."""


@dataclass(slots=True)
class Guard:
    """`margin` (logits) is many times the largest difference that was measured between a one-token
    forward and others: a choice that exceeds it is the same all the same. For any other, all tokens
    `since` the first unpadded one, from which on last bits differ, are run again."""

    margin: float
    since: int | None = None

    def doubts(self, run: Run, reply: Reply, position: int, margin: float) -> bool:
        """Whether the choices after this forward, of whose margins `margin` is the least, have to
        be made again; `position` is that of the forward's first token in the text."""
        if self.since is None and run.unpadded and reply.tokens == 1:
            self.since = position
        return self.since is not None and margin < self.margin

    def repeat(
        self, context: list[int], run: Run
    ) -> Generator[Forward, Reply, tuple[Reply, float]]:
        """Run again all that rounded differently, `run` (which follows `context`, all but its last
        token) the last; gives its reply and the seconds in all."""
        sequence = run.sequence
        sequence.truncate(self.since)
        seconds = 0.0
        for begin in range(self.since, len(context) - 1, REPEATED):
            tokens = context[begin : min(begin + REPEATED, len(context) - 1)]
            reply = yield Forward("target", Run(sequence, tokens, 1, stepwise=True))
            seconds += reply.seconds
        self.since = None
        reply = yield Forward("target", replace(run, unpadded=False))
        return reply, seconds + reply.seconds
