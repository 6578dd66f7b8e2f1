"""Text to token ids and back, for every pair alike: a `tokenizer.json` read by the `tokenizers` library.

The embedded pair's `tokenizer.json` is written when the pair is fetched (see `gguf_metadata`); pairs from the Hub bring
theirs. Importing this costs milliseconds, where transformers' AutoTokenizer imports torch.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import tokenizers

from specdemo.models.errors import ZooError


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for every byte, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """Encodes and decodes exactly: `decode(encode(text, special=False)) == text` for what the vocabulary can say.

    What some cannot: GPT-NeoX tokenizers first bring text to Unicode's composed form NFC, as in training, so the
    composed text comes back. SmolLM2's vocabulary lacks the bytes of six control characters (04, 06, 13, 14, 16
    and 1D, hexadecimal) and of Unicode's unassigned planes 4 to 11; its tokenizer leaves those out.
    """

    def __init__(self, path: Path) -> None:
        """Read `path` (tokenizer.json). Raises ZooError if it is missing or is not a tokenizer."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            data = json.loads(text)
            self._parsing = tokenizers.Tokenizer.from_str(text)
            self._plain = tokenizers.Tokenizer.from_str(text)
        except FileNotFoundError as error:
            raise ZooError(
                f"There is no tokenizer.json in {Path(path).parent}; export the model with its tokenizer."
            ) from error
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise ZooError(f"{path} is not a tokenizer that the tokenizers library reads; fetch it again.") from error
        for one in (self._parsing, self._plain):
            one.no_padding()
            one.no_truncation()
        self._plain.encode_special_tokens = True
        added = data.get("added_tokens") or []
        self.special_ids: frozenset[int] = frozenset(entry["id"] for entry in added if entry.get("special"))
        self._byte_level = _is_byte_level(data.get("decoder"))
        self._lock = threading.Lock()

    @property
    def vocabulary_size(self) -> int:
        """Number of ids that mean something: one more than the largest. Models may pad their logits beyond it."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return max(self._parsing.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """The token ids of `text`.

        `special` parses special tokens such as `<|im_start|>`; without it they are plain text, as a user's words
        must be. `bos` adds what the tokenizer puts around a text by itself (Llama's `<s>`, say).
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is not text
        chosen = self._parsing if special else self._plain
        return chosen.encode(text, add_special_tokens=bos).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens are left out, and so are ids that mean nothing (padding)."""
        stream = self.stream()
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self) -> TokenStream:
        """A decoder to feed one token at a time; what it says, joined, is what `decode` says."""
        return TokenStream(self)

    def token_string(self, id: int) -> str | None:
        """The vocabulary's own string of `id`, or None if it has none."""
        return self._parsing.id_to_token(int(id))

    def token_id(self, string: str) -> int | None:
        """The id of a vocabulary string, or None."""
        return self._parsing.token_to_id(string)

    def vocabulary(self) -> dict[str, int]:
        """All vocabulary strings with their ids, added and special tokens too."""
        return self._parsing.get_vocab(with_added_tokens=True)

    def _bytes_of(self, id: int) -> bytes:
        """What byte-level token `id` stands for; nothing for special tokens and for ids beyond the vocabulary."""
        string = None if id in self.special_ids else self.token_string(id)
        if string is None:
            return b""
        try:
            return bytes(_BYTES[character] for character in string)
        except KeyError:
            return string.encode()  # an added token, such as a run of spaces, stands for itself


class TokenStream:
    """Text of a growing token list, never half a character.

    Byte-level vocabularies are decoded byte by byte. Others (SentencePiece-like) are decoded together with the tokens
    just before, because what a token says there (a space in front or not) depends on its neighbours.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[int] = []  # the tokens of the last text that was given out
        self._pending: list[int] = []  # tokens after those, whose text has not been given out

    def push(self, id: int) -> str:
        """The text that `id` adds: "" while a character is incomplete, and for special tokens."""
        id = int(id)
        if self._tokenizer._byte_level:
            return self._utf8.decode(self._tokenizer._bytes_of(id))
        if id in self._tokenizer.special_ids or self._tokenizer.token_string(id) is None:
            return ""
        self._pending.append(id)
        text = self._new_text()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._before, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """The text still held back: a replacement character for one that never became whole, usually ""."""
        if self._tokenizer._byte_level:
            return self._utf8.decode(b"", final=True)
        text = self._new_text() if self._pending else ""
        self._before, self._pending = self._pending or self._before, []
        return text

    def _new_text(self) -> str:
        """What the pending tokens say after the ones before them."""
        decode = self._tokenizer._parsing.decode
        return decode(self._before + self._pending).removeprefix(decode(self._before))


def _is_byte_level(decoder: dict | None) -> bool:
    if not decoder:
        return False
    if decoder.get("type") == "Sequence":
        return any(_is_byte_level(one) for one in decoder.get("decoders", []))
    return decoder.get("type") == "ByteLevel"
