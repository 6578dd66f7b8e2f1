"""Text to token ids and back: a `tokenizer.json` read by the `tokenizers` library (transformers'
AutoTokenizer would import torch, which takes seconds)."""

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream

from specdemo.convert.configuration import ADDED_TOKENS
from specdemo.convert.ir import read_text
from specdemo.errors import FetchError


class Tokenizer:
    """Encodes and decodes exactly: `decode(encode(text, special=False)) == text`. Exceptions:
    GPT-NeoX tokenizers first bring text to Unicode's composed form NFC; SmolLM2's vocabulary lacks
    the bytes of six control characters and of Unicode's unassigned planes 4 to 11."""

    def __init__(self, path: Path) -> None:
        """Read `path` (tokenizer.json). Raises FetchError."""
        try:
            text = read_text(path)
            added = json.loads(text).get("added_tokens") or []
            if len(added) > ADDED_TOKENS:
                raise FetchError(f"{path} has more than {ADDED_TOKENS:,} added tokens.")
            self._parsing = tokenizers.Tokenizer.from_str(text)
            self._literal = tokenizers.Tokenizer.from_str(text)
        except FetchError:
            raise
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise FetchError(f"{path} is missing, or not a tokenizer that can be read.") from error
        for one in (self._parsing, self._literal):
            one.no_padding()
            one.no_truncation()
        self._literal.encode_special_tokens = True
        self.special_ids = frozenset(one["id"] for one in added if one.get("special"))

    @cached_property
    def vocabulary_size(self) -> int:
        """The largest token id plus one. The logits of a model may be padded beyond it."""
        return max(self.vocabulary().values()) + 1

    @property
    def json(self) -> str:
        return self._parsing.to_str()

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """The token ids of `text`. `special`: parse special tokens such as `<|im_start|>`; False
        for a user's text. `bos`: add the tokens that the tokenizer itself puts around a text."""
        text = text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates
        chosen = self._parsing if special else self._literal
        return chosen.encode(text, add_special_tokens=bos).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, without special tokens and ids beyond the vocabulary (padding)."""
        return self._parsing.decode([int(id) for id in ids])

    def stream(self) -> Callable[[int], str]:
        """A function from the next id to the text that it adds: "" for special tokens and while a
        character is incomplete. The joined texts equal the result of `decode`."""
        decoding = DecodeStream(skip_special_tokens=True)
        return lambda id: decoding.step(self._parsing, int(id)) or ""

    def token_id(self, string: str) -> int | None:
        """The id of a vocabulary string, or None."""
        return self._parsing.token_to_id(string)

    def vocabulary(self) -> dict[str, int]:
        """All vocabulary strings with their ids, added and special tokens too."""
        return self._parsing.get_vocab(with_added_tokens=True)
