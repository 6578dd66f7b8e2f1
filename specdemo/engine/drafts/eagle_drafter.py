"""The drafters of EAGLE-3 heads (arXiv 2503.01840) and of models' own prediction layers, which have
a KV cache of their own."""

import numpy as np

from ..cost_model import LARGEST
from ..forwards import PREFILL_CHUNK, Forward, Run
from ..prefixes import common
from ..rounds import Source
from .draft_sources import DraftRequest, DraftSource, Reading
from .model_drafters import HeadDrafter

READING_SHARE, LIKELY_TOKENS = 0.1, 50
"""A prompt is read if that takes at most this share of the time of an answer of so many tokens."""


class EagleDrafter(HeadDrafter):
    """Proposes with an EAGLE-3 head. Each row of `sequence` pairs the target's states of a token of
    the text with the token after it. The rows of a chain come from the head's own states; once the
    target has verified a draft, they are dropped and written anew from its states. The prompt is
    read if that is expected to pay for the answer.

    Rows may begin anywhere in the text, since a shift of all positions changes nothing."""

    name: Source = "eagle3"
    longest_text_run, first_read = PREFILL_CHUNK, 1

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self._first = 0  # position in the text of the first row
        size = len(request.prompt)
        plan = self.policy.plan(size)
        likely_tokens = min(LIKELY_TOKENS, request.max_tokens - size)
        expected = self.policy.accepted(self.name).total.upper_bound
        pays = plan.gain(0, 1.0, expected, self.costs.forward(1)) > 0
        pays &= self.costs.forward(size) <= READING_SHARE * likely_tokens * plan.pace
        self._reads_prompt = pays or plan.fixed is not None

    def read_prompt(self, tokens: tuple[int, ...], end: int, states: np.ndarray) -> Reading:
        """Write the rows of those prompt `tokens` before position `end` that have `states` and a
        token after them."""
        if not self._reads_prompt:
            return
        self._continue(end - len(states))
        following = tokens[end - len(states) + 1 : end + 1]
        if following:
            added = states[: len(following)]
            yield Forward("draft", Run(self.sequence, following, 0, states=added))

    @property
    def _rows(self) -> int:
        """The number of rows without those of a chain."""
        return self.sequence.length - max(self._runs - 1, 0)

    def reusable(self, text: list[int]) -> int:
        return 0 if self._first else common(text[1:], self.sequence.tokens[: self._rows])

    def reach(self, text: list[int]) -> int:
        # Where a row is missing, later ones would begin anew.
        return self.reusable(text) or len(text)

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self.sequence.truncate(self._rows)
        super().start(context, states)
        self._continue(len(context) - 1 - len(self._states))

    def _continue(self, position: int) -> None:
        """Keep the rows before `position` in the text. If one is missing, the sequence begins anew
        there. Later ones, from another request, would tell by the time what it asked."""
        if self._first + self._rows < position:
            self._first = position
        self.sequence.truncate(position - self._first)

    def run_of(self, text: list[int], drafted: list[int]) -> Run:
        if drafted:
            return Run(self.sequence, drafted[-1:], 1, True, chained=self._chained)
        count = len(self._states)
        return Run(self.sequence, text[-count:], 1, count <= LARGEST, states=self._states)

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.costs.forward, 0 if self._runs else len(self._states)
        return forward(waiting) - forward(LARGEST) if waiting > LARGEST else 0.0


class MtpDrafter(EagleDrafter):
    """Proposes with the target's own prediction layer."""

    name = "mtp"
