"""Keeps forwards of one token exact where they round differently from larger ones, as on processors
without VNNI (docs/reference/numerics.md). They run unpadded; a near tie is run again, padded."""

from collections.abc import Generator
from dataclasses import dataclass, replace

from .messages import Forward, Reply, Run

REPEATED = 16  # the most tokens that one repeated forward runs


@dataclass(slots=True)
class Guard:
    """`margin` (logits) is many times the largest measured difference between a one-token forward
    and others, so a choice with a larger margin is safe. For any other, all tokens from position
    `since` are run again: the first unpadded token, from which on last bits differ."""

    margin: float
    since: int | None = None

    def doubts(self, run: Run, reply: Reply, position: int, margin: float) -> bool:
        """Whether the choices after this forward must be made again. `margin` is the least of their
        margins; `position` is that of the forward's first token in the text."""
        if self.since is None and run.unpadded and reply.tokens == 1:
            self.since = position
        return self.since is not None and margin < self.margin

    def repeat(
        self, context: list[int], run: Run
    ) -> Generator[Forward, Reply, tuple[Reply, float]]:
        """Run all tokens from `since` again, then `run`, which begins with the last token of
        `context`. Gives the reply to `run` and the seconds of all forwards."""
        sequence = run.sequence
        assert self.since is not None, "only doubts make a choice be repeated"
        sequence.truncate(self.since)
        seconds = 0.0
        for begin in range(self.since, len(context) - 1, REPEATED):
            tokens = context[begin : min(begin + REPEATED, len(context) - 1)]
            reply = yield Forward("target", Run(sequence, tokens, 1, stepwise=True))
            seconds += reply.seconds
        self.since = None
        reply = yield Forward("target", replace(run, unpadded=False))
        return reply, seconds + reply.seconds
