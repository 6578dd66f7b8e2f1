"""Text to token ids and back: a `tokenizer.json` read by the `tokenizers` library (transformers'
AutoTokenizer would import torch, which takes seconds)."""

import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream

from specdemo.convert.configuration import ADDED_TOKENS
from specdemo.convert.ir import read_text
from specdemo.errors import FetchError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each text by the thread that needs it

MARK = "\ud800"
"""Stands before characters that must not become part of a special token. No text can hold it: it is
half of a character."""


class Tokenizer:
    """Encodes and decodes exactly: `decode(encode(text, special=False)) == text`. Exceptions:
    GPT-NeoX tokenizers first bring text to Unicode's composed form NFC; SmolLM2's vocabulary lacks
    the bytes of six control characters and of Unicode's unassigned planes 4 to 11."""

    def __init__(self, path: Path) -> None:
        """Read `path` (tokenizer.json). Raises FetchError."""
        try:
            text = read_text(path)
            content = json.loads(text)
            added = content.get("added_tokens") or []
            if len(added) > ADDED_TOKENS:
                raise FetchError(f"{path} has more than {ADDED_TOKENS:,} added tokens.")
            self._parsing = tokenizers.Tokenizer.from_str(text)
            self._literal = tokenizers.Tokenizer.from_str(text)
        except FetchError:
            raise
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise FetchError(f"{path} is missing, or not a tokenizer that can be read.") from error
        for tokenizer in (self._parsing, self._literal):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        self._literal.encode_special_tokens = True
        special = [token for token in added if token.get("special")]
        self.special_ids = frozenset(token["id"] for token in special)
        self.added = {token["content"]: token["id"] for token in added}
        first = "".join({re.escape(token["content"][:1]) for token in special})
        self._starts = re.compile(rf"(?=[{first}])|(?<!\S)(?=\S)" if first else r"(?<!\S)(?=\S)")
        unknown = content["model"].get("unk_token")
        self._unknown_id = unknown and self.token_id(unknown)

    @cached_property
    def vocabulary_size(self) -> int:
        """The largest token id plus one. The logits of a model may be padded beyond it."""
        return max(self.vocabulary().values()) + 1

    @cached_property
    def longest_token(self) -> int:
        """The most characters that one token stands for."""
        return max(map(len, self.vocabulary()))

    @property
    def json(self) -> str:
        return str(self._parsing.to_str())

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """The token ids of `text`. `special`: parse special tokens such as `<|im_start|>`; False
        for a user's text. `bos`: add the tokens that the tokenizer itself puts around a text."""
        chosen = self._parsing if special else self._literal
        ids: list[int] = _encoding(chosen, valid(text), bos).ids
        return ids

    def mark_special(self, text: str) -> str:
        """`text` with a MARK before each special token that it spells."""
        text = valid(text)
        starts = [start for _, start, _ in self._special(_encoding(self._parsing, text), text)]
        return MARK.join(text[start:end] for start, end in pairwise([0, *starts, len(text)]))

    def mark_starts(self, text: str) -> str:
        """`text` with a MARK before each word, and before each character with which a special token
        begins: enough to recognise all that the text could add to one."""
        return self._starts.sub(MARK, valid(text))

    def encode_marked(self, text: str, *, bos: bool = False) -> tuple[list[int], list[int]]:
        """The token ids of `text` without its MARKs, and those of them that are special tokens: one
        that would contain a marked character is encoded as ordinary text."""
        pieces = text.split(MARK)
        text = valid("".join(pieces))
        marks = list(accumulate(map(len, pieces[:-1])))
        encoded = _encoding(self._parsing, text, bos)
        own, literal = [], []
        for id, start, end in self._special(encoded, text):
            if bisect_left(marks, start) < bisect_left(marks, end):
                literal += [start, end]
            else:
                own.append(id)
        if not literal:
            return encoded.ids, own
        ids = self.encode("", bos=bos)
        for index, (start, end) in enumerate(pairwise([0, *literal, len(text)])):
            ids += self.encode(text[start:end], special=index % 2 == 0)  # they alternate
        return ids, own

    def _special(self, encoded: tokenizers.Encoding, text: str) -> Iterator[tuple[int, int, int]]:
        """Each special token of `text`, and where it begins and ends."""
        for id, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
            # The token for unknown characters may stand for any.
            if id in self.special_ids and (id != self._unknown_id or text[start:end] in self.added):
                yield id, start, end

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, without ids beyond the vocabulary (padding), and without special
        tokens unless `special`."""
        whole = [int(id) for id in ids]
        return str(self._parsing.decode(whole, skip_special_tokens=not special))

    def stream(self, *, special: bool = False) -> Callable[[int], str]:
        """A function from the next id to the text that it adds: "" while a character is incomplete
        and, unless `special`, for special tokens. Without these the joined texts equal the result
        of `decode`."""
        decoding = DecodeStream(skip_special_tokens=not special)
        return lambda id: decoding.step(self._parsing, int(id)) or ""

    def string(self, id: int) -> str:
        """The vocabulary string of an id, "" beyond the vocabulary."""
        return self._parsing.id_to_token(id) or ""

    def token_id(self, string: str) -> int | None:
        """The id of a vocabulary string, or None."""
        id: int | None = self._parsing.token_to_id(string)
        return id

    def vocabulary(self) -> dict[str, int]:
        """All vocabulary strings with their ids, added and special tokens too."""
        ids: dict[str, int] = self._parsing.get_vocab(with_added_tokens=True)
        return ids


def _encoding(tokenizer: tokenizers.Tokenizer, text: str, bos: bool = True) -> tokenizers.Encoding:
    # A batch of one: `encode` would stop all threads of Python until it ends.
    return tokenizer.encode_batch([text], add_special_tokens=bos)[0]


def valid(text: str) -> str:
    """`text` with "?" for halves of characters, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
