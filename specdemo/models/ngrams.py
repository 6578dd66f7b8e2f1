"""An n-gram table: the likeliest token after the last 1 to 4 tokens, counted in the target's text.
It drafts in microseconds. (Leviathan et al., section 4.3, use a bigram model.)"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from specdemo.models import machine

# Bits of a packed token id: 64 bits hold a context of 4 tokens, or of 3 if ids exceed 16 bits.
_BITS, _WIDE_BITS = 16, 21
MOST_ENTRIES = 200_000  # contexts that a table may learn: up to 40 MB of memory, 2 MB on the disk
_FIRST = 32  # first confidence of a token, in 255ths, for each token of its context
_SAVED_EVERY = 4096  # tokens learnt before the table is saved again
_RARE = 2  # contexts of two or more tokens that were seen less often are not counted


@dataclass(slots=True)
class NGramTable:
    """`known[n - 1]` maps a context of n tokens, packed with `bits` bits each, to the likeliest
    next token and its probability in 255ths, smoothed over shorter contexts."""

    known: tuple[dict[int, tuple[int, int]], ...]
    bits: int = _BITS

    @staticmethod
    def empty(vocabulary_size: int) -> NGramTable:
        bits = _WIDE_BITS if vocabulary_size > 1 << _BITS else _BITS
        return NGramTable(tuple({} for _ in range(64 // bits)), bits)

    def guess(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The likeliest token after the longest known ending of `context`, with its probability."""
        packed = 0
        found = None
        for length, token in enumerate(reversed(context[-len(self.known) :])):
            packed |= token << self.bits * length
            found = self.known[length].get(packed, found)
        return None if found is None else (found[0], found[1] / 255)

    def save(self, path: Path) -> None:
        """Write a compressed .npz in one step; equal tables give equal bytes."""
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
        machine.replace_file(path, content.getvalue())


class LearningTable(NGramTable):
    """A table that learns from answers and is saved in the file `path`. Starts from that file, else
    from `first`; learns MOST_ENTRIES contexts more, then drops those that occurred longest ago, of
    the length that has most: short contexts, which are few, serve most often.

    A context keeps one token. Its confidence rises if the text continues with it and falls if not,
    until another token replaces it. `read` and `guess` may run in different threads."""

    def __init__(self, path: Path, vocabulary_size: int, first: NGramTable | None = None):
        begin = load(path) or first or NGramTable.empty(vocabulary_size)
        super().__init__(tuple(map(dict, begin.known)), begin.bits)
        self._path = path
        self._lock = threading.RLock()
        self._unsaved = 0
        self._most = MOST_ENTRIES + sum(map(len, first.known if first else ()))

    def read(self, answer: Sequence[int]) -> None:
        with self._lock:
            for at in range(1, len(answer)):
                self._saw(answer[max(at - len(self.known), 0) : at], answer[at])
            if sum(map(len, self.known)) > self._most:
                entries = max(self.known, key=len)
                for key in list(islice(entries, len(entries) // 3)):
                    del entries[key]
            self._unsaved += len(answer)
            if self._unsaved > _SAVED_EVERY:
                self.keep()

    def _saw(self, context: Sequence[int], token: int) -> None:
        """Count `token` after each ending of `context`; the ending moves to the end of its dict."""
        packed = 0
        for length, before in enumerate(reversed(context)):
            packed |= before << self.bits * length
            entries, first = self.known[length], _FIRST * (length + 1)
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

    def keep(self) -> None:
        """Save the table if it learned since the last save."""
        with self._lock:
            if self._unsaved:
                self.save(self._path)
                self._unsaved = 0


def count(answers: Iterable[Sequence[int]], vocabulary_size: int) -> NGramTable:
    """The table of these answers (token ids), with Witten-Bell probabilities."""
    table = NGramTable.empty(vocabulary_size)
    following: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for answer in answers:
        for at in range(1, len(answer)):
            for length in range(1, min(len(table.known), at) + 1):
                following[tuple(answer[at - length : at])][answer[at]] += 1
    for context, counts in following.items():
        if len(context) == 1 or counts.total() >= _RARE:
            share, token = max((_smoothed(following, context, one), one) for one in counts)
            packed = sum(before << table.bits * at for at, before in enumerate(reversed(context)))
            table.known[len(context) - 1][packed] = token, round(255 * share)
    return table


def _smoothed(
    following: dict[tuple[int, ...], Counter[int]], context: tuple[int, ...], token: int
) -> float:
    """The probability of `token` after `context`, interpolated with shorter contexts."""
    if not context:
        return 0.0
    counts = following[context]
    own = counts.total() / (counts.total() + len(counts))
    shorter = _smoothed(following, context[1:], token)
    return own * counts[token] / counts.total() + (1 - own) * shorter


def made_path(target: str, revision: str) -> Path:
    """The path of the table that `train-draft --only ngrams` counted for a target."""
    key = hashlib.sha256(f"{target} {revision}".encode()).hexdigest()[:10]
    name = re.sub(r"[^\w.-]", "-", target)[-60:]
    return machine.measured_folder() / f"{name}-{key}.npz"


def learnt_path(target: str, revision: str) -> Path:
    """The path of the table that learns from answers of a target."""
    return made_path(target, revision).with_suffix(".learnt.npz")


def load(path: Path) -> NGramTable | None:
    """Read a table that `NGramTable.save` wrote; None if the file is missing or damaged."""
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
