"""The tokenizer and the chat template in a GGUF file's metadata, written as the files of a Hub
repository: tokenizer.json, tokenizer_config.json, config.json."""

import json
from pathlib import Path
from typing import Annotated, Any, Self

from gguf import TokenType
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.processors import TemplateProcessing

from specdemo.convert.gguf_file import Gguf
from specdemo.convert.ir import ADDED_TOKENS, Configuration, Ends, TokenId
from specdemo.errors import BadInput

CHARACTERS = 1 << 22  # of a vocabulary; 262,000 tokens have 2 million
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
"""Control tokens that end an answer, also where the file names only one of them."""
_PIECES = "llama"  # the name of SentencePiece's vocabularies in GGUF files


def _split(digits: str) -> PreTokenizer:
    words = Split(Regex(_WORDS % digits), "isolated")
    return pre_tokenizers.Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": _split("1,3"),
    "qwen2": _split("1"),
    "deepseek-r1-qwen": _split("1"),
}
"""By the name in GGUF files: how a text is split into words before pairs of bytes are merged."""


class GgufVocabulary(Configuration):
    """The metadata of a GGUF file about its tokenizer, without "tokenizer.ggml."."""

    model: str = ""
    pre: str = ""
    tokens: list[Annotated[str, Field(max_length=1024)]] = Field(min_length=1)
    token_type: list[int]
    merges: list[str] = []
    scores: list[float] = []
    bos: TokenId = Field(-1, validation_alias="bos_token_id")
    eos: TokenId = Field(-1, validation_alias="eos_token_id")
    unk: TokenId = Field(-1, validation_alias="unknown_token_id")
    pad: TokenId = Field(-1, validation_alias="padding_token_id")
    eot: TokenId = Field(-1, validation_alias="eot_token_id")
    add_bos_token: bool | None = None
    add_space_prefix: bool = True
    chat_template: str = ""

    def of_type(self, kind: int) -> list[str]:
        """The tokens of a type of GGUF files."""
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


def write(file: Gguf, folder: Path) -> None:
    """Write the three files into `folder`. Raises BadInput for damaged and other vocabularies."""
    name = file.path.name
    metadata = GgufVocabulary.of(
        file.section("tokenizer.") | file.section("tokenizer.ggml."), file.path
    )
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
        _add_tokens(tokenizer, metadata, kind == _PIECES or pre == "llama-bpe")
    except Exception as error:  # the tokenizers library raises bare Exception
        why = f"{error!s:.200}".partition("\n")[0]
        raise BadInput(f"{name} has a damaged vocabulary ({why}); fetch it again.") from error
    tokenizer.save(str(folder / "tokenizer.json"))
    for path, content in (
        ("config.json", _configuration(file, metadata)),
        ("tokenizer_config.json", _tokenizer_configuration(metadata)),
    ):
        (folder / path).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _add_tokens(tokenizer: Tokenizer, metadata: GgufVocabulary, begins: bool) -> None:
    """Add the tokens that are found in a text first, and the one that every text begins with, if
    the file says so; `begins`: where it says nothing."""
    control = metadata.of_type(TokenType.CONTROL)
    others = metadata.of_type(TokenType.USER_DEFINED)
    if len(control) + len(others) > ADDED_TOKENS:
        raise ValueError(f"it has more than {ADDED_TOKENS:,} tokens that are not of its text")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in others])
    if begins if metadata.add_bos_token is None else metadata.add_bos_token:
        if metadata.bos < 0:
            raise ValueError("it does not name the token that a text begins with")
        first = metadata.tokens[metadata.bos]
        tokenizer.post_processor = TemplateProcessing(
            [first, "$A"], special_tokens=[(first, metadata.bos)]
        )


def _of_bytes(metadata: GgufVocabulary, pre: str) -> Tokenizer:
    if not metadata.merges:
        raise ValueError("it has no merges")
    merges = [tuple(pair.split(" ")) for pair in metadata.merges]
    vocabulary = {token: id for id, token in enumerate(metadata.tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if "qwen" in pre:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _of_pieces(metadata: GgufVocabulary) -> Tokenizer:
    """SentencePiece joins the pair with the highest score first: its scores order the merges."""
    tokens = metadata.tokens
    usual = {
        token: score
        for token, score, kind in zip(tokens, metadata.scores, metadata.token_type, strict=True)
        if kind == TokenType.NORMAL
    }
    merges = [
        (token[:middle], token[middle:])
        for token in sorted(usual, key=usual.__getitem__, reverse=True)
        for middle in range(1, len(token))
        if token[:middle] in usual and token[middle:] in usual
    ]
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
    """The content of config.json."""
    context = Ends.of(file.section(f"{file.architecture}."), file.path).context
    controls = set(metadata.of_type(TokenType.CONTROL))
    ends = {id for id, token in enumerate(metadata.tokens) if token in _ENDS and token in controls}
    return {
        "model_type": file.architecture,
        "max_position_embeddings": context,
        "eos_token_id": sorted(ends | {metadata.eos, metadata.eot} - {-1}),
    }


def _tokenizer_configuration(metadata: GgufVocabulary) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    ids = {name: getattr(metadata, name) for name in ("bos", "eos", "unk", "pad")}
    named = {f"{name}_token": metadata.tokens[id] for name, id in ids.items() if id >= 0}
    return named | {"chat_template": metadata.chat_template or None}
