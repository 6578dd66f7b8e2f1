"""Writes the tokenizer and the configuration that a GGUF file holds."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Self

from gguf import TokenType
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.processors import TemplateProcessing

from specdemo.convert.configuration import ADDED_TOKENS, Configuration, TokenId, named
from specdemo.convert.gguf_file import SHORT_FACTORS, Gguf
from specdemo.errors import BadInput

CHARACTERS = 1 << 22  # of a vocabulary; 262,000 tokens have 2 million
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MERGED = 1 << 24  # characters of all merges, and 16 each: the largest vocabularies take 13 million
_WORDS = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{%s}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = (
    "<end_of_turn> <|im_end|> <|eot_id|> <|eom_id|> <|end|> <|endoftext|> <|end_of_text|>"
).split()
"""Tokens that end an answer, also where the file names only one of them, or calls them words."""
_UNSTRIPPED = "<unk>", "<s>", "<|endoftext|>"  # of Phi-3's tokens
_PIECES = "llama"  # the name of SentencePiece's vocabularies in GGUF files


def _split(words: str) -> PreTokenizer:
    bytes_ = ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([Split(Regex(words), "isolated"), bytes_])


_DIGITS = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
PRE_TOKENIZERS = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    **dict.fromkeys(("smollm", "refact"), pre_tokenizers.Sequence(_DIGITS)),
    **dict.fromkeys(("llama-bpe", "smaug-bpe", "dbrx"), _split(_WORDS % "1,3")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _split(_WORDS % "1")),
    "gpt-4o": _split(_WORDS_BY_CASE % (f"{_SUFFIX}?", f"{_SUFFIX}?", "1,3")),
    "tekken": _split(_WORDS_BY_CASE % ("", "", "1")),
}
"""By the name in GGUF files: how a text is split into words before pairs of bytes are merged."""
_BEGUN = "llama-bpe", "tekken"  # texts begin with a token where the file does not say it
_WHOLE_WORDS = "llama-bpe", "smaug-bpe", "tekken"  # a word that is a token is not merged of pieces


class GgufVocabulary(Configuration):
    """The metadata of a GGUF file about its tokenizer, without "tokenizer.ggml."."""

    model: str = ""
    pre: str = ""
    tokens: list[Annotated[str, Field(max_length=1024)]] = Field(min_length=1)
    token_type: list[int]
    merges: list[str] = []
    scores: list[float] = []
    bos: TokenId = named("bos_token_id", default=-1)
    eos: TokenId = named("eos_token_id", default=-1)
    unk: TokenId = named("unknown_token_id", default=-1)
    pad: TokenId = named("padding_token_id", default=-1)
    eot: TokenId = named("eot_token_id", default=-1)
    add_bos_token: bool | None = None
    add_space_prefix: bool = True
    chat_template: str = ""
    tool_template: str = named("chat_template.tool_use", default="")

    def of_type(self, kind: int) -> list[str]:
        types = zip(self.tokens, self.token_type, strict=True)
        return [token for token, token_type in types if token_type == kind]

    @model_validator(mode="after")
    def _tokens_are_there(self) -> Self:
        if len(self.tokens) != len(self.token_type):
            raise ValueError(f"{len(self.tokens)} tokens have {len(self.token_type)} types")
        if max(self.bos, self.eos, self.unk, self.pad, self.eot) >= len(self.tokens):
            raise ValueError("a special token is beyond the last token")
        if sum(map(len, self.tokens)) > CHARACTERS:
            raise ValueError(f"its tokens have more than {CHARACTERS:,} characters")
        return self


def write_tokenizer(file: Gguf, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and config.json into `folder`. Raises BadInput
    for damaged and other vocabularies."""
    name = file.path.name
    fields = file.section("tokenizer.") | file.section("tokenizer.ggml.")
    metadata = GgufVocabulary.of(fields, file.path)
    kind, pre = metadata.model, metadata.pre
    pre = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}.get(pre, pre)
    if kind != _PIECES and (kind != "gpt2" or pre not in PRE_TOKENIZERS):
        raise BadInput(
            f"{name} has a vocabulary of the kind {kind!r:.40}, {pre!r:.40}; "
            f"SentencePiece ({_PIECES}) and byte pairs (gpt2) with one of "
            f"{', '.join(PRE_TOKENIZERS)} can be read."
        )
    try:
        tokenizer = _of_pieces(metadata) if kind == _PIECES else _of_bytes(metadata, pre)
        known_name = re.search("phi-?3", str(file.fields.get("general.name")), re.I)
        strips = bool(known_name) or file.architecture == "phi3" and kind == _PIECES
        _add_tokens(tokenizer, metadata, kind == _PIECES or pre in _BEGUN, strips)
    except Exception as error:  # the tokenizers library raises bare Exception
        why = f"{error!s:.200}".partition("\n")[0]
        raise BadInput(f"{name} has a damaged vocabulary ({why}); fetch it again.") from error
    tokenizer.save(str(folder / "tokenizer.json"))
    configurations = {
        "config.json": _configuration(file, metadata),
        "tokenizer_config.json": _tokenizer_configuration(metadata),
    }
    for path, content in configurations.items():
        (folder / path).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _add_tokens(
    tokenizer: Tokenizer, metadata: GgufVocabulary, default: bool, strips: bool
) -> None:
    """Add the tokens that are found in a text first, and the one that every text begins with.
    `default`: whether there is one if the file has no add_bos_token. `strips`: white space after
    most of these tokens is dropped, as in Phi-3, which files do not say."""
    control = metadata.of_type(TokenType.CONTROL)
    others = metadata.of_type(TokenType.USER_DEFINED)
    if len(control) + len(others) > ADDED_TOKENS:
        raise ValueError(f"it has more than {ADDED_TOKENS:,} tokens that are not of its text")

    def added(text: str) -> AddedToken:
        return AddedToken(text, normalized=False, rstrip=strips and text not in _UNSTRIPPED)

    tokenizer.add_special_tokens(list(map(added, control)))
    tokenizer.add_tokens(list(map(added, others)))
    if default if metadata.add_bos_token is None else metadata.add_bos_token:
        if metadata.bos < 0:
            raise ValueError("it does not name the token that a text begins with")
        first = metadata.tokens[metadata.bos], metadata.bos
        tokenizer.post_processor = TemplateProcessing([first[0], "$A"], special_tokens=[first])


def _of_bytes(metadata: GgufVocabulary, pre: str) -> Tokenizer:
    if not metadata.merges:
        raise ValueError("it has no merges")
    merges = [tuple(pair.split(" ")) for pair in metadata.merges]
    vocabulary = {token: id for id, token in enumerate(metadata.tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if "qwen" in pre:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _of_pieces(metadata: GgufVocabulary) -> Tokenizer:
    """SentencePiece joins the pair with the highest score first: its scores order the merges."""
    tokens = metadata.tokens
    scores = {
        token: score
        for token, score, kind in zip(tokens, metadata.scores, metadata.token_type, strict=True)
        if kind == TokenType.NORMAL
    }
    merges, room = [], _MERGED
    for token in sorted(scores, key=scores.__getitem__, reverse=True):
        for middle in range(1, len(token)):
            if token[:middle] in scores and token[middle:] in scores:
                merges.append((token[:middle], token[middle:]))
                room -= len(token) + 16
        if room < 0:
            raise ValueError("its tokens can be split in too many ways")
    vocabulary = {token: id for id, token in enumerate(tokens)}
    rules = {"unk_token": tokens[max(metadata.unk, 0)], "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(BPE(vocabulary, merges, **rules))
    spaces = [normalizers.Replace(" ", "▁")]
    shown = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.add_space_prefix:
        spaces.insert(0, normalizers.Prepend("▁"))
        shown.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(shown)
    return tokenizer


def _configuration(file: Gguf, metadata: GgufVocabulary) -> dict[str, Any]:
    context, original = file.contexts
    if SHORT_FACTORS in file.tensors:
        context = min(context, original)
    ends = {id for id, token in enumerate(metadata.tokens) if token in _ENDS}
    return {
        "model_type": file.architecture,
        "max_position_embeddings": context,
        "eos_token_id": sorted(ends | {metadata.eos, metadata.eot} - {-1}),
    }


def _tokenizer_configuration(metadata: GgufVocabulary) -> dict[str, Any]:
    ids = {name: getattr(metadata, name) for name in ("bos", "eos", "unk", "pad")}
    named = {f"{name}_token": metadata.tokens[id] for name, id in ids.items() if id >= 0}
    templates = {"default": metadata.chat_template, "tool_use": metadata.tool_template}
    listed = [{"name": name, "template": text} for name, text in templates.items() if text]
    return named | {"chat_template": listed or None}
