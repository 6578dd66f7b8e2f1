"""Translates tokens between a target model and a draft model with another vocabulary through their
text. Implements the engine's protocol `Translation`."""

import re
from itertools import accumulate, pairwise, zip_longest

from specdemo.text.tokenizer import PIECE, Tokenizer

TAIL = 8  # tokens of the context, at most, that are encoded again with the text that follows
LONGEST = 20_000  # characters encoded in every round, some 10 ms; a longer text gets no drafts
_BOUNDARY = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")  # a space between two letters
_ANCHOR = "\n"  # precedes a text: SentencePiece begins a text with a space


class TextTranslation:
    """The text of one request, which only grows."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = target, draft
        self._stream = target.stream()
        self._context: list[int] = []
        self._pieces: list[str] = []
        self._text = ""
        # Where every token begins with a word, words are encoded once.
        self._by_words = draft.encode("a b") == draft.encode("a") + draft.encode(" b")
        self._encoded = 0
        self._words = draft.encode("", bos=True)
        self._ids: list[int] = []

    def read(self, context: list[int]) -> list[int] | None:
        """The draft model's tokens for the text of the target's tokens `context`. None if the text
        ends inside a character, or is too long to be encoded again."""
        added = context[len(self._context) :]
        self._context += added
        self._pieces += map(self._stream, added)
        self._text += "".join(self._pieces[len(self._pieces) - len(added) :])
        if not self._pieces or not self._pieces[-1]:
            return None
        if self._by_words:
            self._encode_words()
        if len(self._text) - self._encoded > LONGEST:
            return None
        self._ids = [*self._words, *self._draft.encode(self._text[self._encoded :])]
        return list(self._ids)

    def _encode_words(self) -> None:
        """Encode the text up to its last word, a piece of whole words at a time."""
        matches = _BOUNDARY.finditer(self._text, self._encoded + 1)
        boundaries = [match.start() for match in matches]
        for end, next_end in zip_longest(boundaries, boundaries[1:], fillvalue=len(self._text)):
            if end - self._encoded > PIECE:
                return
            if next_end - self._encoded > PIECE or next_end == len(self._text):
                self._words += self._draft.encode(self._text[self._encoded : end])
                self._encoded = end

    def translate(self, drafted: list[int], whole_words: bool) -> list[tuple[int, int]]:
        """The target's tokens for the text that the draft tokens `drafted` add to the context, each
        with the number of draft tokens that begin in it. An incomplete character is left out, with
        `whole_words` also the last word."""
        special_ids = self._draft.special_ids
        end = next((index for index, id in enumerate(drafted) if id in special_ids), None)
        pieces = [*map(self._draft.stream(self._ids[-TAIL:]), drafted[:end])]
        whole_words &= end is None
        if whole_words:
            ends = (end for end in range(len(pieces) - 1, -1, -1) if _word_ends(pieces, end))
            pieces = pieces[: next(ends, 0)]
        while pieces and not (pieces[-1].strip() if whole_words else pieces[-1]):
            pieces.pop()
        ids = self._following("".join(pieces))
        starts = [0, *accumulate(map(len, pieces))][: len(pieces)]
        target_pieces = map(self._target.stream(self._context[-TAIL:]), ids)
        bounds = [0, *accumulate(map(len, target_pieces))]
        begun = (sum(low <= start < high for start in starts) for low, high in pairwise(bounds))
        translated = list(zip(ids, begun, strict=True))
        if end is not None:
            special = self._target.token_id(self._draft.string(drafted[end]))
            translated += [] if special is None else [(special, 1)]
        return translated

    def ends(self, token: int) -> bool:
        """Whether this draft token ends the text."""
        return token in self._draft.special_ids

    def _following(self, text: str) -> list[int]:
        """The target's tokens for `text` after the context. The last word of the context is encoded
        again with it if that gives the tokens of the context."""
        if not text:
            return []
        first = max(len(self._pieces) - TAIL, 0)
        indices = range(first, len(self._pieces))
        words = (index for index in indices if _word_ends(self._pieces, index))
        anchor, begin = self._target.encode(_ANCHOR), next(words, len(self._pieces))
        for tail in dict.fromkeys((begin, len(self._pieces))):
            before = [*anchor, *self._context[tail:]]
            ids = self._target.encode("".join([_ANCHOR, *self._pieces[tail:], text]))
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._target.encode(text)


def _word_ends(pieces: list[str], index: int) -> bool:
    """Whether a word ends before a piece: it begins with a space, or a sign follows a letter."""
    first = pieces[index][:1]
    before = "".join(pieces[max(index - TAIL, 0) : index])[-1:]
    return first.isspace() or first != "" and before.isalnum() and not first.isalnum()
