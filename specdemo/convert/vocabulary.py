"""The tokenizer and the chat template in a GGUF file's metadata, written as the files of a Hub
repository: tokenizer.json, tokenizer_config.json, config.json."""

import json
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.processors import TemplateProcessing

from specdemo.convert.gguf_file import Gguf
from specdemo.errors import BadInput

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


def write(file: Gguf, folder: Path) -> None:
    """Write the three files into `folder`. Raises BadInput for damaged and other vocabularies."""
    name, pre = file.path.name, file.fields.get("tokenizer.ggml.pre", "")
    kind = file.fields.get("tokenizer.ggml.model", "")
    pre = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}.get(pre, pre)
    if kind != _PIECES and (kind != "gpt2" or pre not in PRE_TOKENIZERS):
        raise BadInput(
            f"{name} has a vocabulary of the kind {kind!r}, {pre!r}; SentencePiece ({_PIECES}) and "
            f"byte pairs (gpt2) with one of {', '.join(PRE_TOKENIZERS)} can be read."
        )
    try:
        tokens: list[str] = file.fields["tokenizer.ggml.tokens"]
        tokenizer = _tokenizer(file, tokens, pre)
        config, about = _configurations(file, tokens)
    except Exception as error:  # the tokenizers library raises bare Exception
        why = f"{error!s:.200}".partition("\n")[0]
        raise BadInput(f"{name} has a damaged vocabulary ({why}); fetch it again.") from error
    tokenizer.save(str(folder / "tokenizer.json"))
    for path, content in (("config.json", config), ("tokenizer_config.json", about)):
        (folder / path).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _tokenizer(file: Gguf, tokens: list[str], pre: str) -> Tokenizer:
    kinds: list[int] = file.fields["tokenizer.ggml.token_type"]
    pieces = file.fields["tokenizer.ggml.model"] == _PIECES
    tokenizer = _of_pieces(file, tokens, kinds) if pieces else _of_bytes(file, tokens, pre)
    for token, kind in zip(tokens, kinds, strict=True):
        added = AddedToken(token, normalized=False)
        if kind == TokenType.CONTROL:
            tokenizer.add_special_tokens([added])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([added])
    if file.fields.get("tokenizer.ggml.add_bos_token", pieces or pre == "llama-bpe"):
        id = file.fields["tokenizer.ggml.bos_token_id"]
        begin = [(tokens[id], id)]
        tokenizer.post_processor = TemplateProcessing([tokens[id], "$A"], special_tokens=begin)
    return tokenizer


def _of_bytes(file: Gguf, tokens: list[str], pre: str) -> Tokenizer:
    merges = [tuple(pair.split(" ")) for pair in file.fields["tokenizer.ggml.merges"]]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if "qwen" in pre:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _of_pieces(file: Gguf, tokens: list[str], kinds: list[int]) -> Tokenizer:
    """SentencePiece joins the pair with the highest score first: its scores order the merges."""
    scores: list[float] = file.fields["tokenizer.ggml.scores"]
    usual = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == TokenType.NORMAL
    }
    merges = [
        (token[:at], token[at:])
        for token in sorted(usual, key=usual.__getitem__, reverse=True)
        for at in range(1, len(token))
        if token[:at] in usual and token[at:] in usual
    ]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = tokens[file.fields.get("tokenizer.ggml.unknown_token_id", 0)]
    rules = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(BPE(vocabulary, merges, **rules))
    spaces = [normalizers.Replace(" ", "▁")]
    shown = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.fields.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        shown.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(shown)
    return tokenizer


def _configurations(file: Gguf, tokens: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json and tokenizer_config.json."""
    known = {
        name: file.fields[f"tokenizer.ggml.{field}_token_id"]
        for name, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{field}_token_id" in file.fields
    }
    ends = {known.get("eos"), file.fields.get("tokenizer.ggml.eot_token_id")} - {None}
    kinds = file.fields["tokenizer.ggml.token_type"]
    controls = (id for id, kind in enumerate(kinds) if kind == TokenType.CONTROL)
    ends |= {id for id in controls if tokens[id] in _ENDS}
    config = {
        "model_type": file.architecture,
        "max_position_embeddings": file.value("context_length", 0),
        "eos_token_id": sorted(ends),
    }
    about = {f"{name}_token": tokens[id] for name, id in known.items()}
    return config, about | {"chat_template": file.fields.get("tokenizer.chat_template")}
