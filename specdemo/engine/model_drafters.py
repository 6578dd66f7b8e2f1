"""Draft tokens by a draft model, of the target's vocabulary and of one of its own."""

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from .adjustment import Adjustment
from .cache import KVSequence
from .constraint import Mask
from .cost_model import LARGEST
from .logits_drafter import LogitsDrafter
from .messages import Forward, Proposal, Reply, Run, Translation, next_chunk
from .policy import MAX_DRAFT, Policy
from .prefixes import common
from .sampling import Sampling

LOOKAHEAD = 4  # tokens of another vocabulary drafted until a word must have ended


class ModelDrafter(LogitsDrafter):
    """Proposes with a second, smaller model.

    `sequence` may hold any text; the prefix that it shares with the context is kept. The model
    reads at most `reach` tokens (0: any number) and proposes nothing beyond.
    """

    def __init__(
        self,
        sequence: KVSequence,
        policy: Policy,
        sampling: Sampling,
        adjustment: Adjustment | None = None,
        reach: int = 0,
    ):
        super().__init__(policy, sampling, None, adjustment)
        self.sequence = sequence
        self.reach = reach

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        if self.reach:
            self.depth = min(MAX_DRAFT, self.reach + 1 - len(context))

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        pending = self._unread(context, drafted)
        few, seconds = len(pending) <= LARGEST, 0.0
        while pending:
            chunk, rows = next_chunk(pending)
            pending = pending[len(chunk) :]
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, few))
            seconds += reply.seconds
        return self.choose(reply.logits, context, drafted, mask), seconds

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        """How many tokens of the sequence a later request with this prompt can use."""
        return common(tokens, tuple(self.sequence.tokens))

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward = self.policy.draft.forward
        return forward(len(self._unread(context, drafted))) - forward(1)

    def _unread(self, context: list[int], drafted: list[int]) -> list[int]:
        """The tokens of `context` and `drafted` to run next: at least the last one. Cuts the
        sequence to the text before them."""
        text, read = [*context, *drafted], self.sequence.tokens
        same = min(len(read), len(text) - 1)
        while read[:same] != text[:same]:
            same -= 1
        self.sequence.truncate(same)
        return text[same:]


class TranslatedDrafter(ModelDrafter):
    """Proposes with a draft model that has a vocabulary of its own: the target's tokens of the text
    that it drafts. It drafts its likeliest tokens also where the target samples, since noise by
    token id is not shared between vocabularies; so only a target's own choice can confirm them."""

    def __init__(
        self,
        sequence: KVSequence,
        policy: Policy,
        sampling: Sampling,
        translation: Translation,
        prompt: list[int],
        reach: int,
    ):
        super().__init__(sequence, policy, replace(sampling, temperature=0.0), None, reach)
        self.translation = translation
        self._prompt = tuple(prompt)
        self._known = sequence.length  # tokens of the context when it was last read
        self._steps, self._proposed = 2, 1  # forwards, and tokens that they gave; guesses at first

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self._text: list[int] | None = None
        self._chain: list[int] = []
        self._chances: list[float] = []
        self._ready: list[tuple[int, int]] = []

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        if not self._chain:
            self._text, self._known = self.translation.read(context), len(context)
        seconds = 0.0
        for steps in range(LOOKAHEAD + 1):
            self._ready = self.translation.translate(self._chain, steps < LOOKAHEAD)
            tokens = [token for token, _ in self._ready]
            shared = min(len(tokens), len(drafted))
            if tokens[:shared] != drafted[:shared]:
                break  # another source's token, or a word that became another token
            if len(tokens) > len(drafted):
                self._proposed += 1
                return self._translated(len(drafted), mask), seconds
            if self._text is None or len(self._text) + len(self._chain) >= self.reach:
                break
            if self._chain and self.translation.ends(self._chain[-1]):
                break
            own, spent = yield from super().step(self._text, self._chain)
            seconds += spent
            self._steps += 1
            assert own is not None, "without a mask a draft model always proposes"
            self._chain.append(own.token)
            self._chances.append(own.confidence)
        return None, seconds

    def _translated(self, index: int, mask: Mask) -> Proposal | None:
        """Token `index` of the draft: as likely as the draft model's tokens that begin in it."""
        token, count = self._ready[index]
        if mask is not None and not (token < len(mask) and mask[token]):
            return None
        begin = sum(begun for _, begun in self._ready[:index])
        return self.proposal(token, math.prod(self._chances[begin : begin + count]))

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        return common(self._prompt, tuple(self.sequence.tokens))

    def cost(self, drafted: list[int]) -> float:
        if len(self._ready) > len(drafted):
            return 0.0
        return self.policy.draft.forward(1) * self._steps / self._proposed

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, max(len(context) - self._known, 1)
        return 0.0 if self._chain else forward(waiting) - forward(1)
