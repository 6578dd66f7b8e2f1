"""Prompts that were run, kept with their cache blocks so that asking again costs no prefill. Token
ids only.

Used from one thread: the one that runs the models. Reuse is of whole prompts, or of whole prefill
chunks at their fixed places, nothing between: a prompt's logits are then the same bits whatever was
asked before, and by whom. The opening that a template gives to all prompts is a chunk of its own,
so only the first prompt pays for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cache import Sequence
from .decode import Prompt
from .model import PREFILL_CHUNK
from .open import Model

SPARE_TOKENS = 8192
"""What prompts in nobody's use may hold; the last one stays whatever its length."""

MOST_PROMPTS = 64

SHORTEST_OPENING = 8
"""Tokens; an opening of fewer would cost its first prompt more, as a forward of its own, than it
saves the others."""


@dataclass(eq=False, slots=True)
class KnownPrompt:
    """A prompt and the sequences that hold it: the target model's, and the draft model's as far as
    it has read it."""

    prompt: Prompt
    target: Sequence
    draft: Sequence | None = None
    users: int = 0

    def release(self) -> None:
        for sequence in (self.target, self.draft):
            if sequence is not None:
                sequence.release()


class PrefixCache:
    """The prompts of one target model, the least recently used given up first. Prompts in use
    (`pin`) are never given up.

    `opening` are the tokens with which most prompts begin.
    """

    def __init__(self, target: Model, draft: Model | None = None, opening: tuple[int, ...] = ()):
        self.target = target
        self.draft = draft
        self.opening = opening if len(opening) >= SHORTEST_OPENING else ()
        self._known: dict[tuple[int, ...], KnownPrompt] = {}

    def __len__(self) -> int:
        return len(self._known)

    def pin(self, tokens: tuple[int, ...]) -> KnownPrompt | None:
        """This very prompt, now in use, or None. Every pin needs its `unpin`."""
        known = self._known.pop(tokens, None)
        if known is not None:
            self._known[tokens] = known  # last, as the most recently used
            known.users += 1
        return known

    def add(self, prompt: Prompt, target: Sequence) -> KnownPrompt:
        """Keep a prompt that was run, now in use. The sequence belongs to the cache from here
        on."""
        twin = self.pin(prompt.tokens)
        if twin is not None:
            target.release()
            return twin
        known = self._known[prompt.tokens] = KnownPrompt(prompt, target, users=1)
        return known

    def unpin(self, known: KnownPrompt) -> None:
        known.users -= 1
        self.make_room(self.target, SPARE_TOKENS // self.target.block_size, keep_last=True)
        while len(self._known) > MOST_PROMPTS and (spare := self._spare()):
            self._give_up(spare[0])

    def opening_of(self, tokens: tuple[int, ...]) -> int:
        """How many tokens of a prompt are the opening: all of it or none."""
        size = len(self.opening)
        return size if len(tokens) > size and tokens[:size] == self.opening else 0

    def start(self, tokens: tuple[int, ...]) -> Sequence:
        """A target sequence that holds as many whole chunks of the prompt as are known, to run the
        rest on."""
        best, reused = None, 0
        opening = self.opening_of(tokens)
        # A rest of one token more than a chunk is run as one.
        most = opening + max(len(tokens) - opening - 2, 0) // PREFILL_CHUNK * PREFILL_CHUNK
        for known in self._known.values():
            common = _common(tokens, known.prompt.tokens, most)
            if common >= opening:
                common -= (common - opening) % PREFILL_CHUNK
                if common > reused:
                    best, reused = known.target, common
        return self.target.new_sequence() if best is None else self.target.fork(best, reused)

    def start_draft(self, tokens: tuple[int, ...]) -> Sequence:
        """A draft sequence that holds as much of the prompt as any known one begins with."""
        best, reused = None, 0
        for known in self._known.values():
            if known.draft is not None:
                most = min(len(tokens), known.draft.length)
                common = _common(tokens, known.prompt.tokens, most)
                if common > reused:
                    best, reused = known.draft, common
        return self.draft.new_sequence() if best is None else self.draft.fork(best, reused)

    def keep_draft(self, known: KnownPrompt, sequence: Sequence) -> None:
        """Take over a draft sequence at the end of its request: what it holds of the prompt may be
        reused."""
        prompt = known.prompt.tokens
        shared = _common(prompt, tuple(sequence.tokens[: len(prompt)]), sequence.length)
        if known.draft is None and shared:
            sequence.truncate(shared)
            sequence.trim_blocks()
            known.draft = sequence
        else:
            sequence.release()

    def held(self, model: Model) -> int:
        """Blocks of a model that prompts in nobody's use hold, those they share counted each
        time."""
        return sum(len(self._blocks(known, model)) for known in self._spare())

    def kept_blocks(self, model: Model) -> set[int]:
        """The blocks of a model that all known prompts hold; may be asked from any thread."""
        known = list(self._known.values())
        return {block for one in known for block in list(self._blocks(one, model))}

    def make_room(self, model: Model, blocks: int, *, keep_last: bool = False) -> None:
        """Give up prompts in nobody's use, or for the draft model what it holds of them, the oldest
        first, until those left hold at most `blocks` blocks of a model."""
        held = self.held(model)
        spare = self._spare()
        for known in spare[:-1] if keep_last else spare:
            if held <= blocks:
                break
            held -= len(self._blocks(known, model))
            if model is self.target:
                self._give_up(known)
            elif known.draft is not None:
                known.draft.release()
                known.draft = None

    def clear(self) -> None:
        """Give up every prompt, in use or not: for the end, when nothing runs any more."""
        for known in list(self._known.values()):
            self._give_up(known)

    def _spare(self) -> list[KnownPrompt]:
        """The prompts in nobody's use, the oldest first."""
        return [known for known in self._known.values() if not known.users]

    def _blocks(self, known: KnownPrompt, model: Model) -> list[int]:
        sequence = {self.target: known.target, self.draft: known.draft}.get(model)
        return [] if sequence is None else sequence.blocks

    def _give_up(self, known: KnownPrompt) -> None:
        del self._known[known.prompt.tokens]
        known.release()


def _common(left: tuple[int, ...], right: tuple[int, ...], most: int) -> int:
    """Length of the common beginning, at most `most`."""
    most = min(most, len(left), len(right))
    if left[:most] == right[:most]:
        return most
    return next(at for at in range(most) if left[at] != right[at])
