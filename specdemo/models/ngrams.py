"""An n-gram table: the likeliest token after the last one to four, counted in the target's text.

It proposes draft tokens at microseconds each (Leviathan et al., section 4.3, use a bigram model)
where the text does not repeat anything yet. Needs numpy only.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from specdemo.models import machine

_BITS = 16
"""Of a packed token id: a context of four fits into 64."""

_WIDE_BITS = 21
"""Of an id of a vocabulary beyond 65,536: a context of three fits."""

MOST_ENTRIES = 200_000
"""Contexts that a table may learn: up to 40 MB of memory, 2 MB on the disk."""

_FIRST = 32
"""Confidence, in 255ths, of what followed a context of one token once; times their number for
longer ones."""

_SAVED_EVERY = 4096
"""Tokens learnt between two savings."""


@dataclass(frozen=True, slots=True)
class NGramTable:
    """`known[n - 1]` maps a context of n tokens, packed with `bits` each, to the likeliest next
    token and its probability in 255ths, smoothed over shorter contexts."""

    known: tuple[dict[int, tuple[int, int]], ...]
    bits: int = _BITS

    @staticmethod
    def empty(vocabulary_size: int) -> NGramTable:
        wide = vocabulary_size > 1 << _BITS
        bits = _WIDE_BITS if wide else _BITS
        return NGramTable(tuple({} for _ in range(64 // bits)), bits)

    def pack(self, context: Sequence[int]) -> int:
        """The ids of a context as one number of at most 64 bits."""
        packed = 0
        for token in context:
            packed = packed << self.bits | token
        return packed

    def guess(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The likeliest token after the longest known ending of `context`, with its probability."""
        packed = 0
        found = None
        for length, token in enumerate(reversed(context[-len(self.known) :])):
            packed |= token << self.bits * length
            found = self.known[length].get(packed, found)
        return None if found is None else (found[0], found[1] / 255)

    def content(self) -> bytes:
        """A compressed .npz, the same bytes for the same table."""
        arrays = {}
        for length, table in enumerate(self.known, start=1):
            # Differences of sorted keys compress to a third of the keys.
            entries = sorted(table.items())
            keys = np.array([key for key, _ in entries], np.uint64)
            arrays[f"step{length}"] = np.diff(keys, prepend=np.uint64(0))
            kind = np.uint16 if self.bits == _BITS else np.uint32
            arrays[f"token{length}"] = np.array([token for _, (token, _) in entries], kind)
            arrays[f"confidence{length}"] = np.array([share for _, (_, share) in entries], np.uint8)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        return content.getvalue()

    def save(self, path: Path) -> None:
        path.write_bytes(self.content())


class LearningTable:
    """A table that grows from answers and is kept in the file `path`. Begins with what is there,
    else with `first`; learns MOST_ENTRIES contexts beside it, and gives up those longest unused.

    A context keeps one token. Its confidence rises whenever the text goes on with it, and falls
    otherwise, until another token takes its place. Answers may be read while guesses are made.
    """

    def __init__(self, path: Path, vocabulary_size: int, first: NGramTable | None = None):
        self._path = path
        self._lock = threading.Lock()
        self._unsaved = 0
        self.table = load(path)
        if self.table is None:
            begin = first or NGramTable.empty(vocabulary_size)
            self.table = NGramTable(tuple(map(dict, begin.known)), begin.bits)
        self._most = MOST_ENTRIES + sum(map(len, first.known if first else ()))
        self.guess = self.table.guess

    def read(self, answer: Sequence[int]) -> None:
        """Learn from a finished answer."""
        with self._lock:
            for at in range(1, len(answer)):
                self._saw(answer[max(at - len(self.table.known), 0) : at], answer[at])
            known = self.table.known
            if sum(map(len, known)) > self._most:
                for entries in known:
                    for key in list(islice(entries, len(entries) // 4)):
                        del entries[key]
            self._unsaved += len(answer)
        if self._unsaved > _SAVED_EVERY:
            self.save()

    def _saw(self, context: Sequence[int], token: int) -> None:
        """`token` came after `context`: each of its endings moves to the end of its entries."""
        packed = 0
        for length, before in enumerate(reversed(context)):
            packed |= before << self.table.bits * length
            entries, first = self.table.known[length], _FIRST * (length + 1)
            usual, share = entries.pop(packed, (token, 0))
            if share == 0:
                share = first
            elif usual == token:
                share += (255 - share) // 4
            elif share < first:
                usual, share = token, first
            else:
                share -= share // 4
            entries[packed] = usual, min(share, 250)

    def save(self) -> None:
        """Replace the file in one step, if there is anything new."""
        with self._lock:
            if self._unsaved:
                machine.replace_file(self._path, self.table.content())
                self._unsaved = 0


def made_path(target: str, revision: str) -> Path:
    """Where the table that `train-draft --only ngrams` counted for a target is kept."""
    key = hashlib.sha256(f"{target} {revision}".encode()).hexdigest()[:10]
    plain = re.sub(r"[^\w.-]", "-", target)[-60:]
    return machine.measured_folder() / f"{plain}-{key}.npz"


def learnt_path(target: str, revision: str) -> Path:
    """Where the table that answers taught is kept."""
    return made_path(target, revision).with_suffix(".learnt.npz")


def load(path: Path) -> NGramTable | None:
    """Read what `NGramTable.save` wrote; None where there is no such file."""
    known = []
    try:
        with np.load(path) as held:
            bits = _WIDE_BITS if held["token1"].dtype == np.uint32 else _BITS
            for length in range(1, 64 // bits + 1):
                keys = np.cumsum(held[f"step{length}"], dtype=np.uint64).tolist()
                names = f"token{length}", f"confidence{length}"
                guesses = zip(*(held[name].tolist() for name in names), strict=True)
                known.append(dict(zip(keys, guesses, strict=True)))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return NGramTable(tuple(known), bits)
