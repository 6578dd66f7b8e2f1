"""Draft tokens by a draft head, and by an EAGLE-3 head."""

from collections.abc import Generator
from typing import Any

import numpy as np

from .adjustment import Adjustment
from .cache import KVSequence
from .constraint import Mask
from .cost_model import LARGEST
from .logits_drafter import LogitsDrafter
from .messages import DEPTH, PREFILL_CHUNK, Forward, HeadStep, Proposal, Reply, Run
from .policy import READING_SHARE, Policy
from .prefixes import common
from .rounds import Source
from .sampling import Sampling


class HeadDrafter(LogitsDrafter):
    """Proposes with a draft head. The head reads the target's hidden state that gave the last
    verified token, that token, and the draft tokens after it."""

    name: Source = "head"
    depth = DEPTH

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self._hidden: Any = None if states is None else states[-1]
        self._read = 0
        self._state: np.ndarray | None = None

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        seconds = 0.0
        for token in [context[-1], *drafted][self._read :]:
            run = HeadStep(self._hidden, self._state, (token,))
            reply = yield Forward("draft", run)
            self._state = reply.logits.last_state()
            seconds += reply.seconds
        self._read = len(drafted) + 1
        return self.choose(reply.logits, context, drafted, mask), seconds

    def cost(self, drafted: list[int]) -> float:
        return (len(drafted) + 1 - self._read) * self.policy.draft.forward(1)


class EagleDrafter(LogitsDrafter):
    """Proposes with an EAGLE-3 head. Each row of `sequence` pairs the target's states of a token of
    the text with the token after it. The rows of a chain come from the head's own states; once the
    target has verified a draft, they are dropped and written anew from its states.

    Rows may begin anywhere in the text, since a shift of all positions changes nothing."""

    name: Source = "eagle3"
    depth = DEPTH

    def __init__(
        self,
        sequence: KVSequence,
        policy: Policy,
        sampling: Sampling,
        head_tokens: np.ndarray,
        adjustment: Adjustment | None = None,
    ):
        super().__init__(policy, sampling, head_tokens, adjustment)
        self.sequence = sequence
        self._first = 0  # position in the text of the first row
        self._rows = sequence.length  # without those of a chain
        self._states = np.zeros((0, 0), np.float32)  # of the text's tokens that have no row yet

    def reads_prompt(self, tokens: int, most: int) -> bool:
        """Whether reading a prompt of `tokens` tokens is expected to pay for an answer of at most
        `most` tokens."""
        plan = self.policy.plan(tokens, most)
        if plan.fixed is not None:
            return True
        expected, forward = self.policy.accepted(self.name).total.upper_bound, self.policy.draft
        pays = plan.gain(0, 1.0, expected, forward.forward(1)) > 0
        return pays and forward.forward(tokens) <= READING_SHARE * plan.remaining * plan.pace

    def read_prompt(
        self, tokens: tuple[int, ...], end: int, states: np.ndarray
    ) -> Generator[Forward, Reply, None]:
        """Write the rows of those prompt `tokens` before position `end` that have `states` and a
        token after them."""
        begin = self._continue(end - len(states))
        following = tokens[begin + 1 : end + 1]
        if following:
            added = states[len(states) - (end - begin) :][: len(following)]
            yield Forward("draft", Run(self.sequence, following, 0, states=added))
            self._rows = self.sequence.length

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        """How many rows of the sequence a later request with this prompt can use."""
        rows = tuple(self.sequence.tokens[: self._rows])
        return 0 if self._first else common(tokens[1:], rows)

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        assert states is not None, "a target model for a head gives its states"
        self.sequence.truncate(self._rows)
        waiting = [*self._states, *states][-PREFILL_CHUNK:]
        self._states = np.array(waiting)
        self._continue(len(context) - 1 - len(waiting))
        self._read = 0

    def _continue(self, position: int) -> int:
        """The position in the text of the next row, which is to be `position` or later: without the
        rows between, the sequence begins anew."""
        if self._first + self._rows < position:
            self.sequence.truncate(0)
            self._first, self._rows = position, 0
        return self._first + self._rows

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        seconds = 0.0
        waiting = len(self._states)
        if waiting:
            run = Run(self.sequence, context[-waiting:], 1, waiting <= LARGEST, states=self._states)
            reply = yield Forward("draft", run)
            seconds += reply.seconds
            self._states, self._rows = self._states[:0], self.sequence.length
            self._chained = reply.logits.last_state()[None]
        for token in drafted[self._read :]:
            run = Run(self.sequence, [token], 1, True, chained=self._chained)
            reply = yield Forward("draft", run)
            seconds += reply.seconds
            self._chained = reply.logits.last_state()[None]
        self._read = len(drafted)
        return self.choose(reply.logits, context, drafted, mask), seconds

    def cost(self, drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, min(len(self._states), LARGEST)
        chain = (len(drafted) - self._read) * forward(1)
        return chain + forward(waiting) if waiting else chain

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, len(self._states)
        return forward(waiting) - forward(LARGEST) if waiting > LARGEST else 0.0
