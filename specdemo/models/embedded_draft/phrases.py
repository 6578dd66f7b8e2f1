"""What the target usually says next: the likeliest continuation of the last one to four tokens, counted in its own text.

A draft model that costs microseconds (Leviathan et al., section 4.3, use one of two tokens). It fills the gap that prompt
lookup leaves, text that does not repeat anything yet. Knows numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LONGEST = 4
_BITS = 16
"""Of a packed token id: four fit into 64."""


@dataclass(frozen=True, slots=True)
class Phrases:
    """For each length 1 to LONGEST, contexts in rising order.

    Attributes:
        contexts: uint64 [n] each, the context's ids packed by `pack`.
        tokens: uint16 [n] each, the likeliest next token.
        confidences: uint8 [n] each, its probability in 255ths, smoothed over shorter contexts.
    """

    contexts: tuple[np.ndarray, ...]
    tokens: tuple[np.ndarray, ...]
    confidences: tuple[np.ndarray, ...]
    _known: tuple[dict[int, tuple[int, float]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Dictionaries answer in a microsecond or two where a search in the arrays takes thirty.
        known = tuple(
            dict(zip(keys.tolist(), zip(tokens.tolist(), (confidences / 255).tolist(), strict=True), strict=True))
            for keys, tokens, confidences in zip(self.contexts, self.tokens, self.confidences, strict=True)
        )
        object.__setattr__(self, "_known", known)

    def guess(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The likeliest next token after the longest known ending of `context`, and its probability; None if unknown."""
        packed = 0
        found = None
        for length, token in enumerate(reversed(context[-LONGEST:])):
            packed |= token << _BITS * length
            found = self._known[length].get(packed, found)
        return found

    def save(self, path: Path) -> None:
        """Write a compressed .npz, the same bytes for the same table."""
        arrays = {}
        for length in range(1, LONGEST + 1):
            # Differences of sorted keys compress to a third of the keys.
            keys = self.contexts[length - 1]
            arrays[f"step{length}"] = np.diff(keys, prepend=np.uint64(0))
            arrays[f"token{length}"] = self.tokens[length - 1]
            arrays[f"confidence{length}"] = self.confidences[length - 1]
        np.savez_compressed(path, **arrays)


def load(path: Path) -> Phrases:
    """Read what `Phrases.save` wrote."""
    with np.load(path) as held:
        lengths = range(1, LONGEST + 1)
        return Phrases(
            tuple(np.cumsum(held[f"step{length}"], dtype=np.uint64) for length in lengths),
            tuple(held[f"token{length}"] for length in lengths),
            tuple(held[f"confidence{length}"] for length in lengths),
        )


def pack(context: Sequence[int]) -> np.uint64:
    """Up to four ids below 65,536 as one number."""
    packed = 0
    for token in context:
        packed = packed << _BITS | int(token)
    return np.uint64(packed)
