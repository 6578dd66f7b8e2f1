"""Texts that a model has read, kept with their cache blocks so that reading them again costs
nothing. Used from the thread that runs the models."""

from __future__ import annotations

from .cache import Sequence
from .decode import Prompt
from .model import Model

SPARE_TOKENS = 8192
"""What kept texts may hold; the last one stays whatever its length."""


class PrefixCache:
    """Texts of one model, the least recently used given up first. Reused is a whole text, or whole
    chunks of `chunk` tokens at their fixed places, nothing between: a target model's logits are
    then the same bits whatever was asked before, and by whom. The `opening` that a template gives
    to all prompts is a chunk of its own."""

    def __init__(self, model: Model, chunk: int = 1, opening: tuple[int, ...] = ()):
        self.model = model
        self.chunk = chunk
        self.opening = opening
        self._kept: dict[tuple[int, ...], tuple[Sequence, Prompt | None]] = {}

    def opening_of(self, tokens: tuple[int, ...]) -> int:
        """How many tokens of a prompt are the opening: all of it or none."""
        size = len(self.opening)
        return size if len(tokens) > size and tokens[:size] == self.opening else 0

    def find(self, tokens: tuple[int, ...]) -> tuple[Sequence, Prompt | None]:
        """A new sequence that holds as much of a text as is kept, to read the rest on; with the
        Prompt where all of it was kept as one."""
        if tokens in self._kept:
            kept = self._kept[tokens] = self._kept.pop(tokens)  # last: the most recently used
            return self.model.fork(kept[0], len(tokens)), kept[1]
        opening = self.opening_of(tokens)
        # A rest of one token more than a chunk is read as one.
        most = opening + max(len(tokens) - opening - (self.chunk > 1) * 2, 0)
        best, reused = None, 0
        for text, (sequence, _) in self._kept.items():
            beyond = min(common(tokens, text), most) - opening
            shared = opening + beyond // self.chunk * self.chunk
            if beyond >= 0 and shared > reused:
                best, reused = sequence, shared
        return (self.model.fork(best, reused) if best else self.model.new_sequence()), None

    def keep(self, sequence: Sequence, prompt: Prompt | None = None) -> None:
        """Keep the text of a sequence, which is the cache's from here on."""
        text = tuple(sequence.tokens)
        if text in self._kept or not text:
            sequence.release()
            return
        sequence.trim_blocks()
        self._kept[text] = sequence, prompt
        self.make_room(SPARE_TOKENS // self.model.block_size, least=1)

    def blocks(self) -> set[int]:
        """The blocks that kept texts hold; may be asked from any thread."""
        kept = list(self._kept.values())
        return {block for sequence, _ in kept for block in list(sequence.blocks)}

    def make_room(self, blocks: int, least: int = 0) -> None:
        """Give up the oldest texts, until those left, `least` of them at least, hold at most
        `blocks` blocks, those that they share counted each time."""
        held = sum(len(sequence.blocks) for sequence, _ in self._kept.values())
        while held > blocks and len(self._kept) > least:
            sequence, _ = self._kept.pop(next(iter(self._kept)))
            held -= len(sequence.blocks)
            sequence.release()


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Length of the common beginning."""
    most = min(len(left), len(right))
    return next((at for at in range(most) if left[at] != right[at]), most)
