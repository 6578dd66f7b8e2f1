"""An n-gram table: the likeliest token after the last one to four, counted in the target's text.

It proposes draft tokens at microseconds each (Leviathan et al., section 4.3, use a bigram model)
where the text does not repeat anything yet. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LONGEST = 4
"""Tokens of the longest context."""

_BITS = 16
"""Of a packed token id: four fit into 64."""


@dataclass(frozen=True, slots=True)
class NGramTable:
    """For each length 1 to LONGEST, contexts in rising order.

    Attributes:
        contexts: uint64 [n] each, the context's ids packed by `pack`.
        tokens: uint16 [n] each, the likeliest next token.
        confidences: uint8 [n] each, its probability in 255ths, smoothed over shorter contexts.
    """

    contexts: tuple[np.ndarray, ...]
    tokens: tuple[np.ndarray, ...]
    confidences: tuple[np.ndarray, ...]
    _known: list[dict[int, tuple[int, float]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A dictionary answers in 1 to 2 microseconds, a search in the arrays in 30.
        known = []
        arrays = zip(self.contexts, self.tokens, self.confidences, strict=True)
        for keys, tokens, confidences in arrays:
            guesses = zip(tokens.tolist(), (confidences / 255).tolist(), strict=True)
            known.append(dict(zip(keys.tolist(), guesses, strict=True)))
        object.__setattr__(self, "_known", known)

    def guess(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The likeliest token after the longest known ending of `context`, with its probability."""
        packed = 0
        found = None
        for length, token in enumerate(reversed(context[-LONGEST:])):
            packed |= token << _BITS * length
            found = self._known[length].get(packed, found)
        return found

    def save(self, path: Path) -> None:
        """Write a compressed .npz, the same bytes for the same table."""
        arrays = {}
        for at, keys in enumerate(self.contexts):
            # Differences of sorted keys compress to a third of the keys.
            arrays[f"step{at + 1}"] = np.diff(keys, prepend=np.uint64(0))
            arrays[f"token{at + 1}"] = self.tokens[at]
            arrays[f"confidence{at + 1}"] = self.confidences[at]
        np.savez_compressed(path, **arrays)


def load(path: Path) -> NGramTable:
    """Read what `NGramTable.save` wrote."""
    with np.load(path) as held:
        lengths = range(1, LONGEST + 1)
        return NGramTable(
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
