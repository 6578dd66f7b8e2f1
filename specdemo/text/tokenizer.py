"""Text to token ids and back: a `tokenizer.json` read by the `tokenizers` library (transformers'
AutoTokenizer would import torch, which takes seconds)."""

import json
import os
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers

from specdemo.convert.configuration import ADDED_TOKENS, read_text
from specdemo.errors import BadInput, FetchError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each text by the thread that needs it

MARK = "\ud800"
"""Precedes characters that must not become part of a special token. No text can contain it: it is
half of a character."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTED]
BYTES = {chr(byte): bytes([byte]) for byte in _PRINTED}
BYTES |= {chr(code): bytes([byte]) for code, byte in enumerate(_OTHERS, 256)}
"""The characters with which byte-level vocabularies write bytes."""

FILL_IN_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
)
"""Of Qwen2.5-Coder and others, of StarCoder, and of Code Llama."""

MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
"""The form of special tokens, and of others such as <think>."""

PARTS = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"}
PARTS |= {"post_processor", "decoder", "model"}
"""What a tokenizer.json consists of."""

MAX_BYTES = 40_000_000  # of a file, read into 20 times as much memory; 262,000 tokens take 35 MB
MAX_GROWTH = 32
PIECE = 100_000  # characters that are encoded without counting their tokens first
SPARE_TOKENS = 100_000  # that the pieces of a text may have more than the text itself
TAIL = 8  # tokens of a text that are decoded again with each new one


class Tokenizer:
    """`decode(encode(text, special=False)) == text`, but GPT-NeoX tokenizers first bring text to
    Unicode's composed form NFC, and SmolLM2's vocabulary lacks the bytes of six control characters
    and of Unicode's unassigned planes 4 to 11."""

    context = 0
    """Tokens that the model reads: much longer texts are not encoded. 0: of any length."""

    def __init__(self, path: Path, turns: Iterable[str] = (), ends: Iterable[int] = ()) -> None:
        """Read `path` (tokenizer.json). Whatever the file says, tokens among the texts `turns`,
        with which a template marks turns, and `ends` of answers are special. Raises FetchError."""
        try:
            text = read_text(path, MAX_BYTES)
            content = json.loads(text)
            if len(content.get("added_tokens") or ()) > ADDED_TOKENS:
                raise FetchError(f"{path} has more than {ADDED_TOKENS:,} added tokens.")
            for name in ("normalizer", "decoder", "post_processor"):
                if (growth := _growth(content.get(name))) > MAX_GROWTH:
                    why = f"has a {name} that makes texts {growth:,} times as long"
                    raise FetchError(f"{path} {why}; at most {MAX_GROWTH} times can be used.")
            if newer := content.keys() - PARTS:  # the library reads no file that has them
                text = json.dumps({name: content[name] for name in content.keys() - newer})
            unknown = content.pop("model").get("unk_token")  # the rest takes much memory
            self._parsing = tokenizers.Tokenizer.from_str(text)
            self._literal = tokenizers.Tokenizer.from_str(text)
        except FetchError:
            raise
        except Exception as error:  # the library raises bare Exception for a malformed file
            why = f"{error!s:.100}".partition("\n")[0]
            raise FetchError(f"{path} is not a tokenizer that can be read ({why}).") from error
        unmarked = self._unmarked(turns, ends)
        for tokenizer in (self._parsing, self._literal):
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if unmarked:
                tokenizer.add_special_tokens(unmarked)
        self._literal.encode_special_tokens = True
        added = self._parsing.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.added = {token.content: id for id, token in added.items()}
        first = "".join({re.escape(added[id].content[:1]) for id in self.special_ids})
        self._starts = re.compile(rf"(?=[{first}])|(?<!\S)(?=\S)" if first else r"(?<!\S)(?=\S)")
        self._unknown_id = unknown and self.token_id(unknown)
        self._byte_level = "ByteLevel" in json.dumps(content.get("decoder"))
        # Of tokens that stand for one byte each, such as <0x0A>.
        names = [f"<0x{byte:02X}>" for byte in range(256)] if "ByteFallback" in text else []
        self.byte_ids = frozenset(self.token_id(name) for name in names)

    def _unmarked(self, turns: Iterable[str], ends: Iterable[int]) -> list[tokenizers.AddedToken]:
        """Tokens that are special by their role only. A text that is no added token may be a word
        in brackets."""
        added = self._parsing.get_added_tokens_decoder().values()
        known = {token.content: token for token in added}
        roles = {name for name in map(self.string, ends) if MARKER.fullmatch(name)}
        roles |= {text for text in turns if text in known or text[1:2] in ("|", "\uff5c")}
        texts = filter(self.token_id, roles)
        tokens = [known.get(text, tokenizers.AddedToken(text, normalized=False)) for text in texts]
        unmarked = [token for token in tokens if not token.special]
        for token in unmarked:
            token.special = True
        return unmarked

    @cached_property
    def vocabulary_size(self) -> int:
        """The largest token id plus one. The logits of a model may be padded beyond it."""
        return max(self.vocabulary().values()) + 1

    def frequent_ids(self, count: int) -> list[int]:
        """The ids, ascending, of the `count` tokens that are likely the most frequent. Tokens of
        several characters are numbered in the order of their merges, and so by frequency. Single
        characters are too, but before all others (GPT-2) or after them (SentencePiece)."""
        texts = sorted(self.vocabulary().items(), key=itemgetter(1))
        characters = [id for text, id in texts if len(text) == 1]
        merged = [id for text, id in texts if len(text) != 1]
        characters = characters[: max(count // 16, count - len(merged))]
        return sorted([*characters, *merged[: count - len(characters)]])

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self.vocabulary()))

    @cached_property
    def fill_in_markers(self) -> tuple[int, int, int] | None:
        """The tokens before a prefix, before a suffix, and before the text that goes between."""
        for names in FILL_IN_MARKERS:
            prefix, suffix, middle = map(self.token_id, names)
            if prefix is not None and suffix is not None and middle is not None:
                return prefix, suffix, middle
        return None

    @property
    def unspelled_json(self) -> str:
        """The tokenizer with other names for its special tokens and for added ones in brackets, so
        that no text is encoded as one of them: names that nobody can guess. Texts are encoded as
        they are, not normalised first, if tokens are made of bytes."""
        content, names = json.loads(self._parsing.to_str()), {}
        for token in content["added_tokens"]:
            strips = token["lstrip"] or token["rstrip"]
            token["special"] |= strips or bool(re.fullmatch("<.*>", token["content"], re.S))
            if token["special"] and token["id"] not in self.byte_ids:
                names[token["content"]] = token["content"] = secrets.token_hex()
        if self._byte_level:
            content["normalizer"] = None
        model = content["model"]
        if isinstance(vocabulary := model["vocab"], dict):
            model["vocab"] = {names.get(text, text): id for text, id in vocabulary.items()}
            if spelled := names.keys() & vocabulary.keys():  # by merges, perhaps
                merges = model.get("merges", [])
                rest = [pair for pair in merges if spelled.isdisjoint((*pair, "".join(pair)))]
                model["merges"] = rest
        else:
            model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
        if unknown := model.get("unk_token"):
            model["unk_token"] = names.get(unknown, unknown)
        return json.dumps(content)

    def encode(
        self, text: str, *, special: bool = True, bos: bool = False, limited: bool = True
    ) -> list[int]:
        """The token ids of `text`. `special`: parse special tokens such as `<|im_start|>`; False
        for a user's text. `bos`: add the tokens that the tokenizer itself puts around a text.
        Raises BadInput for a text that cannot fit into the context, unless it is not `limited`."""
        if limited:
            self._require_fit(text)
        chosen = self._parsing if special else self._literal
        ids: list[int] = _encoding(chosen, valid(text), bos).ids
        return ids

    def encode_beginning(self, text: str) -> list[int]:
        """The token ids of a user's text, without some of those that the context cannot hold."""
        return self.encode(self._beginning(text), special=False, limited=False)

    def _beginning(self, text: str, stretch: int = 1) -> str:
        """`text`, or its beginning if that has more than `stretch` times the tokens of the context.
        The tokens of a piece are those of the whole text, except near its ends: half are certain,
        and of many all but SPARE_TOKENS. So no text is encoded that takes much more memory than one
        that fits: 400 bytes a token."""
        if not self.context:
            return text
        tokens = stretch * self.context
        tokens += min(tokens, SPARE_TOKENS)
        for end in range(PIECE, len(text), PIECE):
            tokens -= len(_encoding(self._parsing, valid(text[end - PIECE : end])))
            if tokens < 0:
                return text[:end]
        return text

    def _require_fit(self, text: str, stretch: int = 1) -> None:
        if len(self._beginning(text, stretch)) < len(text):
            message = f"The prompt is too long: more than {self.context} tokens with its template;"
            message += f" this model reads fewer than {self.context}."
            raise BadInput(message, code="context_length_exceeded")

    def mark_special(self, text: str) -> str:
        """`text` with a MARK before each special token that it spells."""
        text = valid(text)
        starts = [start for _, start, _ in self._special(_encoding(self._parsing, text), text)]
        return MARK.join(text[start:end] for start, end in pairwise([0, *starts, len(text)]))

    def mark_starts(self, text: str) -> str:
        """`text` with a MARK before each word and each character with which a special token
        begins: before all that could become part of one."""
        return self._starts.sub(MARK, valid(text))

    def encode_marked(
        self, text: str, *, bos: bool = False, stretch: int = 1
    ) -> tuple[list[int], list[int]]:
        """The token ids of `text` without its MARKs, and the special tokens among them. A special
        token with a marked character is encoded as ordinary text. Raises BadInput if the text
        cannot fit into `stretch` times the context."""
        pieces = text.split(MARK)
        text = valid("".join(pieces))
        self._require_fit(text, stretch)
        marks = list(accumulate(map(len, pieces[:-1])))
        encoded = _encoding(self._parsing, text, bos)
        special, literal = [], []
        for id, start, end in self._special(encoded, text):
            if bisect_left(marks, start) < bisect_left(marks, end):
                literal += [start, end]
            else:
                special.append(id)
        if not literal:
            return encoded.ids, special
        ids = self.encode("", bos=bos)
        for index, (start, end) in enumerate(pairwise([0, *literal, len(text)])):
            special_part = index % 2 == 0  # they alternate
            ids += self.encode(text[start:end], special=special_part, limited=False)
        return ids, special

    def _special(self, encoded: tokenizers.Encoding, text: str) -> Iterator[tuple[int, int, int]]:
        for index, id in enumerate(encoded.ids):
            if id in self.special_ids:
                start, end = encoded.token_to_chars(index) or (0, 0)
                # The token for unknown characters may replace any of them.
                if id != self._unknown_id or text[start:end] in self.added:
                    yield id, start, end

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, without ids beyond the vocabulary (padding), and without special
        tokens unless `special`."""
        integers = list(map(int, ids))
        return str(self._parsing.decode(integers, skip_special_tokens=not special))

    def stream(self, before: Sequence[int] = ()) -> Callable[[int], str]:
        """`push` of an eager TextStream, with the texts of special tokens."""
        return TextStream(self, before=before, special=True, eager=True).push

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for: a part of a character, perhaps. Of an added or special
        token its text, and none beyond the vocabulary."""
        string = self.string(id)
        if id in self.byte_ids:
            return bytes([int(string[3:5], 16)])
        if self._byte_level and string not in self.added:
            parts = (BYTES.get(char, char.encode()) for char in string)
            return b"".join(parts)
        return string.replace("\u2581", " ").encode()

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


class TextStream:
    """The text that each further token adds: the difference of two decodings, with and without it.

    Joined with `rest()`, the pieces equal the text that is decoded from all tokens at once, less
    that of the tokens `before`. Special tokens have no text unless `special`, or unless `spelled`
    gives their text. An `eager` stream gives the text of a token at once if it ends with a whole
    character, though later bytes could change it. Only the last tokens are decoded again."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        before: Sequence[int] = (),
        special: bool = False,
        eager: bool = False,
        spelled: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._tokenizer, self._special, self._eager = tokenizer, special, eager
        self._spelled = spelled
        self._ids = [id for id in before[-2 * TAIL :] if self._has_text(id)]
        text = self._text = self._decode(self._ids)
        ending = b"".join(map(tokenizer.token_bytes, self._ids[-3:]))  # of one character, perhaps
        incomplete = text.endswith(REPLACEMENT) and not ending.endswith(REPLACEMENT.encode())
        self._shown = len(text) - incomplete

    def push(self, id: int) -> str:
        """The text that is certain after one more token: no later token can change it."""
        if not self._has_text(id):
            return self._spelled.get(id, "")
        self._ids.append(int(id))
        self._text = self._decode(self._ids)
        begin, self._shown = self._shown, max(self._shown, self._certain())
        piece = self._text[begin : self._shown]
        if len(self._ids) > 2 * TAIL and self._shown == len(self._text):
            self._forget(self._ids[-TAIL:])
        return piece

    def rest(self) -> str:
        """The text that was not certain, once no more tokens come."""
        return self._text[self._shown :]

    def _has_text(self, id: int) -> bool:
        skipped = not self._special and id in self._tokenizer.special_ids
        return not skipped and bool(self._tokenizer.string(id))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special=self._special)

    def _certain(self) -> int:
        """Length of the text without its last character if that is incomplete. All bytes of a run
        of byte tokens become replacement characters if one of them fits into no character."""
        if self._eager:
            return 0 if self._text.endswith(REPLACEMENT) else len(self._text)
        known = len(self._ids)
        while known and self._ids[known - 1] in self._tokenizer.byte_ids:
            known -= 1
        if known < len(self._ids):
            return len(self._decode(self._ids[:known]))
        return len(self._text) - self._text.endswith(REPLACEMENT)

    def _forget(self, tail: list[int]) -> None:
        """Go on with the tokens `tail` only, if their text is the same without those before."""
        text = self._decode(tail)
        if text and self._text.endswith(text) and not text.startswith(REPLACEMENT):
            self._ids, self._text, self._shown = tail, text, len(text)


def certain(text: str, strings: Sequence[str]) -> tuple[int, bool]:
    """Length of the prefix of a text that cannot be part of a stop string, and whether a stop
    string follows it."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    if places:
        return min(places), True
    starts = (
        size
        for string in strings
        for size in range(1, min(len(string), len(text) + 1))
        if text.endswith(string[:size])
    )
    return len(text) - max(starts, default=0), False


class StopStrings:
    """Cuts a text that arrives in pieces before the first of `strings`, if any are `wanted`.
    `ended`: one was reached."""

    def __init__(self, strings: Sequence[str]):
        self._strings, self._uncertain, self.ended = strings, "", False
        self.wanted = bool(strings)

    def push(self, piece: str) -> str:
        """Add a piece; returns the text that is certain now. Nothing follows a stop string."""
        if self.ended:
            return ""
        text = self._uncertain + piece
        end, self.ended = certain(text, self._strings)
        self._uncertain = "" if self.ended else text[end:]
        return text[:end]

    def rest(self) -> str:
        """The text that was not certain, once no more pieces come."""
        return self._uncertain


def _growth(part: Any) -> int:
    """How many times as long a part of a tokenizer's file can make a text."""
    if isinstance(part, list):
        return prod(map(_growth, part))
    if not isinstance(part, dict):
        return 1
    kind, pattern = part.get("type"), part.get("pattern")
    if kind == "Replace" and isinstance(pattern, dict):
        shortest = len(pattern.get("String", ""))
        return max(1, -(-len(part["content"]) // max(1, shortest)))
    if kind == "TemplateProcessing":
        tokens = [len(token["ids"]) for token in part["special_tokens"].values()]
        return len(part["single"]) * max(tokens, default=1)
    return prod(map(_growth, part.values()))


def _encoding(tokenizer: tokenizers.Tokenizer, text: str, bos: bool = True) -> tokenizers.Encoding:
    try:
        # A batch of one: `encode` would stop all threads of Python until it ends.
        return tokenizer.encode_batch([text], add_special_tokens=bos)[0]
    except BaseException as error:  # a panic is no Exception, and its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        why = f"The model's tokenizer fails on this text ({error}); change the text or the model."
        raise BadInput(why) from None


def valid(text: str) -> str:
    """`text` with "?" for halves of characters, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
