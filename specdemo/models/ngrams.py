"""An n-gram table: the likeliest token after the last one to four, counted in the target's text.

It proposes draft tokens at microseconds each (Leviathan et al., section 4.3, use a bigram model)
where the text does not repeat anything yet. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LONGEST = 4
"""Tokens of the longest context."""

_BITS = 16
"""Of a packed token id: four fit into 64."""


@dataclass(frozen=True, slots=True)
class NGramTable:
    """`known[n - 1]` maps a context of n tokens, packed by `pack`, to the likeliest next token and
    its probability in 255ths, smoothed over shorter contexts."""

    known: tuple[dict[int, tuple[int, int]], ...]

    def guess(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The likeliest token after the longest known ending of `context`, with its probability."""
        packed = 0
        found = None
        for length, token in enumerate(reversed(context[-LONGEST:])):
            packed |= token << _BITS * length
            found = self.known[length].get(packed, found)
        return None if found is None else (found[0], found[1] / 255)

    def save(self, path: Path) -> None:
        """Write a compressed .npz, the same bytes for the same table."""
        arrays = {}
        for length, table in enumerate(self.known, start=1):
            keys = sorted(table)
            # Differences of sorted keys compress to a third of the keys.
            arrays[f"step{length}"] = np.diff(np.array(keys, np.uint64), prepend=np.uint64(0))
            arrays[f"token{length}"] = np.array([table[key][0] for key in keys], np.uint16)
            arrays[f"confidence{length}"] = np.array([table[key][1] for key in keys], np.uint8)
        np.savez_compressed(path, **arrays)


def load(path: Path) -> NGramTable:
    """Read what `NGramTable.save` wrote."""
    known = []
    with np.load(path) as held:
        for length in range(1, LONGEST + 1):
            keys = np.cumsum(held[f"step{length}"], dtype=np.uint64).tolist()
            names = f"token{length}", f"confidence{length}"
            guesses = zip(*(held[name].tolist() for name in names), strict=True)
            known.append(dict(zip(keys, guesses, strict=True)))
    return NGramTable(tuple(known))


def pack(context: Sequence[int]) -> int:
    """Up to four ids below 65,536 as one number."""
    packed = 0
    for token in context:
        packed = packed << _BITS | token
    return packed
