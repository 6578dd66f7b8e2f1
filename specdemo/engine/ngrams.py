"""Draft tokens that cost nothing: n-gram lookup in the text so far, and a table of the target's
n-grams."""

from __future__ import annotations

from typing import Protocol

LONGEST_MATCH = 7
"""Tokens; a longer match says no more than this one."""

LONGEST_JUDGED = 3
"""Tokens; a match up to so long is judged by what followed at its earlier occurrences."""

LONGEST_NGRAM = 4
"""Tokens of context that an n-gram table looks at."""


class Guesser(Protocol):
    """Proposes the next token at no cost to speak of. `name` is the source that its tokens have in
    the trace."""

    name: str

    def read(self, tokens: list[int]) -> None:
        """The text has grown by `tokens`."""
        ...

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        """The token after the text and `drafted`, with a confidence in [0, 1], or None. Called with
        drafts that grow from empty, one token at a time."""
        ...


class Lookup:
    """N-gram lookup (prompt lookup): what followed the last occurrence of the longest repeated
    ending of the text.

    Every token costs the same few dictionary entries, however long the text. Drafted tokens are
    looked up like those of the text; past the end of it, a match repeats itself. The confidence is
    the length of the match; a short match counts for more if the same followed at its earlier
    occurrence, and for less if something else did.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last_end: dict[tuple[int, ...], int] = {}
        self._earlier: dict[tuple[int, int], int] = {}
        """By length and end of an occurrence: where the one before it ended."""
        self._match = (0, 0)

    def read(self, tokens: list[int]) -> None:
        """Find what the new ending matches, then enter the n-grams that end in the new tokens."""
        begin = len(self._tokens)
        self._tokens += tokens
        text = self._tokens
        for end in range(begin + 1, len(text) + 1):
            if end == len(text):
                self._match = self._longest(text[-LONGEST_MATCH:])
            for n in range(1, min(LONGEST_MATCH, end) + 1):
                ngram = tuple(text[end - n : end])
                if n <= LONGEST_JUDGED and ngram in self._last_end:
                    self._earlier[n, end] = self._last_end[ngram]
                self._last_end[ngram] = end

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        size, at = self._match
        if drafted:
            if self._cursor[0] and self._at(self._cursor[1], drafted) == drafted[-1]:
                size, at = self._cursor[0] + 1, self._cursor[1] + 1
            else:
                size, at = self._longest(
                    [*self._tokens[-LONGEST_MATCH:], *drafted][-LONGEST_MATCH:]
                )
        self._cursor = (size, at)
        if not size:
            return None
        token = self._at(at, drafted)
        return token, (self._weight(size, at, token) + 0.5) / (LONGEST_MATCH + 1)

    def _weight(self, size: int, at: int, token: int) -> int:
        """The length of match that this one is worth. Measured on answers to Spec-Bench prompts, an
        earlier occurrence that said the same is worth about two tokens, and one that did not costs
        as much."""
        size = min(size, LONGEST_MATCH)
        if size > LONGEST_JUDGED:
            return size
        before = self._earlier.get((size, at))
        if before is None:
            return size
        return min(size + 3, LONGEST_MATCH) if self._tokens[before] == token else max(size - 2, 0)

    def _at(self, at: int, drafted: list[int]) -> int:
        return self._tokens[at] if at < len(self._tokens) else drafted[at - len(self._tokens)]

    def _longest(self, ending: list[int]) -> tuple[int, int]:
        """The longest part of `ending`'s end that occurs in the text: its size and where it ends;
        (0, 0) for none."""
        match = (0, 0)
        for n in range(1, len(ending) + 1):
            before = self._last_end.get(tuple(ending[-n:]))
            if before is None:
                break  # nor does anything longer occur
            match = (n, before)
        return match


class NgramTable(Protocol):
    """Usual continuations: (token, probability) after a context, None where it knows none."""

    def guess(self, context: list[int]) -> tuple[int, float] | None: ...


class Ngrams:
    """What the target usually says after a few tokens, from a table counted in its own text."""

    name = "ngrams"

    def __init__(self, table: NgramTable):
        self.table = table
        self._ending: list[int] = []

    def read(self, tokens: list[int]) -> None:
        self._ending = [*self._ending, *tokens[-LONGEST_NGRAM:]][-LONGEST_NGRAM:]

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        return self.table.guess([*self._ending, *drafted][-LONGEST_NGRAM:])
