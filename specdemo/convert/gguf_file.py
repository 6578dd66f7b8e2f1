"""Reads GGUF files: the metadata, the decoder's shape, where its tensors lie, the tokenizer. The
`gguf` package takes 13 seconds to open a file of 150,000 tokens, and hours with some damaged
headers."""

import json
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import numpy as np
from gguf import GGMLQuantizationType, TokenType
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.processors import TemplateProcessing

from specdemo.convert import configuration, model_files
from specdemo.convert.checkpoints import long_scale, separated
from specdemo.convert.configuration import (
    ADDED_TOKENS,
    Configuration,
    GenerationLimits,
    TokenId,
    named,
)
from specdemo.convert.decoder import FAMILIES, Positive, Shape, Size, Sizes, sized, with_biases
from specdemo.convert.weights import Tensor
from specdemo.errors import BadInput, FetchError

READABLE = ("llama", "qwen2", "qwen3", "gemma3", "phi3", "smollm3", "granite", "olmo2")
_HEADER_BYTES = 64 << 20  # a header of 150,000 tokens takes 6 MB
_ENTRIES = 1 << 16  # values of the metadata, or tensors
_ITEMS = 1 << 20  # of an array; the merges of the largest vocabularies are 514,000
_LAYERS = 512
_ARRAYS = {f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges", "scores")}
_FORMATS = "BbHhIif?  Qqd"  # of struct, by type
_STRING, _ARRAY = 8, 9
_DIMENSION = 1 << 32
CHARACTERS = 1 << 22  # of a vocabulary; 262,000 tokens have 2 million
_SHORT_FACTORS = "rope_factors_short.weight"
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


@dataclass(frozen=True, slots=True)
class Gguf:
    """A model's GGUF file or files: metadata by key, and tensors by name."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def section(self, prefix: str) -> dict[str, Any]:
        """The metadata with keys that begin with `prefix`, without it."""
        fields = self.fields.items()
        return {key.removeprefix(prefix): value for key, value in fields if key.startswith(prefix)}


def read(path: Path) -> Gguf:
    """The headers of `path` and of its other parts. Raises BadInput, FetchError."""
    fields: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    parts = model_files.gguf_parts(path)
    for number, part in enumerate(parts):
        try:
            with open(part, "rb") as file:
                metadata, infos = _Header(part, file).read()
        except OSError as error:
            raise FetchError(f"{part} cannot be read: {error.strerror or error}.") from error
        own, count = metadata.get("split.no", number), metadata.get("split.count") or 1
        if (own, count) != (number, len(parts)):
            raise BadInput(
                f"{part.name} is part of a model that is split into {count!r:.20} files: put all "
                "of them in one folder, with names that end with -00001-of-0000N.gguf and so on, "
                "or join them with `llama-gguf-split --merge`."
            )
        fields = metadata | fields  # the first part has the model's metadata
        tensors |= infos
    return Gguf(path, fields, tensors)


class _Header:
    """Reads one file's header; never more than _HEADER_BYTES of it. Arrays that are not used are
    skipped."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._size = path.stat().st_size
        self._left = _HEADER_BYTES

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if self._file.read(4) != b"GGUF":
            raise BadInput(f"{self._path} is not a GGUF file.")
        try:
            version = self._number("I")
            if version not in (2, 3):
                raise BadInput(f"{self._path} is GGUF of version {version}; 2 and 3 can be read.")
            tensor_count, value_count = self._count(_ENTRIES), self._count(_ENTRIES)
            values = {}
            for _ in range(value_count):
                key = self._string()
                values[key] = self._value(key, self._number("I"))
            tensors = dict(self._tensor() for _ in range(tensor_count))
            alignment = values.get("general.alignment", 32)
            if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
                raise ValueError(f"general.alignment is {alignment!r:.40}")
            begin = -(-self._file.tell() // alignment) * alignment
            for name, tensor in tensors.items():
                tensors[name] = replace(tensor, begin=begin + tensor.begin)
                if tensors[name].begin + tensor.bytes > self._size:
                    raise ValueError("it ends before its last tensor")
            return values, tensors
        except BadInput:
            raise
        except ValueError as error:
            why = f"is damaged or truncated ({error!s:.200}); fetch it again."
            raise BadInput(f"{self._path} {why}") from error

    def _number(self, kind: str) -> Any:
        [number] = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return number

    def _count(self, limit: int) -> int:
        count: int = self._number("Q")
        if count > limit:
            raise ValueError(f"it has {count} entries where {limit} can be read")
        return count

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"its header has more than {_HEADER_BYTES >> 20} MB")
        data = self._file.read(count)
        if len(data) < count:
            raise ValueError("its header ends too early")
        return data

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_format(kind))
        inner, count = self._number("I"), self._count(_ITEMS)
        used = key in _ARRAYS or count <= _LAYERS
        if inner == _STRING:
            items = [self._string() for _ in range(count)]
            return items if used else None
        form = np.dtype(f"<{_format(inner)}")
        numbers = np.frombuffer(self._bytes(count * form.itemsize), form)
        return numbers.tolist() if used else None

    def _tensor(self) -> tuple[str, Tensor]:
        """A tensor's name; the tensor, which begins relative to the end of the header."""
        name, rank = self._string(), self._number("I")
        if not 1 <= rank <= 4:
            raise ValueError(f"{name!r:.60} has {rank} dimensions")
        shape = [self._number("Q") for _ in range(rank)][::-1]
        if not all(0 < size < _DIMENSION for size in shape):
            raise ValueError(f"a tensor has the shape {shape}")
        kind, begin = self._number("I"), self._number("Q")
        if kind not in list(GGMLQuantizationType):
            raise BadInput(f"{self._path} has tensors of the unknown type {kind}.")
        return name, Tensor(self._path, begin, tuple(shape), GGMLQuantizationType(kind))


def _format(kind: int) -> str:
    if kind >= len(_FORMATS) or _FORMATS[kind] == " ":
        raise ValueError(f"a value has the unknown type {kind}")
    return _FORMATS[kind]


class GgufSizes(Sizes):
    """The metadata of a GGUF file about its architecture, without the architecture's name."""

    scaling: str = named("rope.scaling.type", default="linear")  # as llama.cpp has it
    factor: Positive = named("rope.scaling.factor", "rope.scale_linear", default=1.0)
    rotated: Size = sized(1 << 16, "rope.dimension_count", default=0)
    attention_factor: Positive | None = named("rope.scaling.attn_factor", default=None)


_DEFAULTS = {"gemma3": {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}}
"""What llama.cpp takes for values that a file lacks."""


def read_decoder(file: Gguf) -> tuple[Shape, dict[str, Tensor]]:
    """The shape of a file's decoder, and its tensors with rows in the graph's order. Raises
    BadInput for an architecture or a feature that `decoder` does not have, and for impossible
    values."""
    kind, name, tensors = file.architecture, file.path.name, dict(file.tensors)
    if (content := file.fields.get("general.type", "model")) != "model":
        what, advice = f"of the type {content!r:.40}", "name the model's own file"
        if content == "adapter":
            what, advice = "an adapter (LoRA)", "merge it into its model first"
        raise BadInput(f"{name} is {what}, no model; {advice}.")
    experts = file.fields.get(f"{kind}.expert_count")
    if kind not in READABLE or experts:
        raise BadInput(
            f"{name} holds a model of the architecture {kind!r:.40}"
            f"{' with experts' if experts else ''}; GGUF files of {', '.join(READABLE)} can be "
            "run, others by `--model` with a folder that optimum-intel exported from a checkpoint."
        )
    sizes, shape = _shape(file)
    tensors.pop("rope_factors_long.weight", None)  # for longer texts than `_configuration` allows
    stored = tensors.pop(_SHORT_FACTORS, None) or tensors.pop("rope_freqs.weight", None)
    factors, scale = _rope_factors(name, sizes, shape, stored), _rope_scale(file, sizes)
    shape = replace(shape, rope_factors=factors, rope_scale=scale)
    matrices: dict[str, Tensor] = {}
    try:
        for key, tensor in tensors.items():
            matrices |= separated(key, tensor, shape)
        if shape.family.interleaved:
            matrices = {key: _unpermuted(key, matrices[key], shape) for key in matrices}
    except (ValueError, IndexError) as error:
        raise BadInput(f"{name} is damaged: {error}.") from error
    return shape, matrices


def _shape(file: Gguf) -> tuple[GgufSizes, Shape]:
    tensors, family = file.tensors, FAMILIES[file.architecture]
    if (embedding := tensors.get("token_embd.weight")) is None:
        raise BadInput(f"{file.path.name} is damaged: it has no embedding.")
    metadata = _DEFAULTS.get(family.name, {}) | file.section(f"{file.architecture}.")
    metadata |= {"vocab_size": embedding.shape[0], "hidden_size": embedding.shape[-1]}
    sizes = GgufSizes.of(metadata, file.path)
    tied = "output.weight" not in tensors
    shape = Shape.of(sizes, with_biases(family, tensors), file.path, tied=tied)
    shape = replace(shape, rotary=(sizes.rotated or shape.width) / shape.width)
    if shape.width % 2 or shape.rotated % 2 or shape.rotary > 1:
        raise BadInput(f"{file.path.name} is damaged: it rotates a part of its heads' values.")
    if family.name == "gemma3":  # the 27B model alone does not divide by the root of a head's width
        width = shape.hidden // shape.attention_heads if shape.layers == 62 else shape.width
        shape = replace(shape, attention_scale=width**-0.5)
    return sizes, shape


def _contexts(file: Gguf) -> tuple[int, int]:
    """The model's context, and up to how many tokens its short rotary factors are right; 0 for what
    the file does not say."""
    limits = GenerationLimits.of(file.section(f"{file.architecture}."), file.path)
    original = limits.original
    if file.architecture == "phi3":
        original = original or configuration.PHI3_ORIGINAL
    return limits.context, original


def _rope_scale(file: Gguf, sizes: GgufSizes) -> float:
    """What rotated values are multiplied by. Raises BadInput for a model of LongRoPE without its
    factors, or without the length up to which the short ones are right."""
    context, original = _contexts(file)
    lacking = ""
    if _SHORT_FACTORS in file.tensors:
        lacking = "" if original > 1 else "rope.scaling.original_context_length"
    elif sizes.scaling == "longrope" or file.architecture == "phi3" and context > original:
        lacking = _SHORT_FACTORS
    if lacking:
        raise BadInput(
            f"{file.path.name} lacks {lacking}, which its context of {context:,} tokens needs; "
            "choose a file that a current llama.cpp has converted."
        )
    if sizes.attention_factor or _SHORT_FACTORS not in file.tensors:
        return sizes.attention_factor or 1.0
    return long_scale(context / original, original)


def _rope_factors(
    name: str, sizes: GgufSizes, shape: Shape, stored: Tensor | None
) -> tuple[float, ...]:
    count = shape.rotated // 2
    partial = shape.family.interleaved and shape.rotary < 1
    scaled = sizes.scaling not in ("none", "linear", "longrope") or partial
    if scaled or stored and stored.shape != (count,):
        raise BadInput(f"{name} scales its positions ({sizes.scaling!r:.40}): not supported.")
    factors = stored.read(0, count).ravel().astype(float) if stored else np.ones(count)
    if sizes.scaling == "linear":
        factors *= sizes.factor
    if factors.min() <= 0:
        raise BadInput(f"{name} is damaged: its positions are scaled by no number.")
    return tuple(factors.tolist()) if (factors != 1).any() else ()


def _unpermuted(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """The tensor `name`, with the interleaved halves of each query and key one after the other."""
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return tensor
    rows = (shape.attention_heads if match[1] == "q" else shape.kv_heads) * shape.width
    if tensor.shape[0] != rows:
        raise ValueError(f"{name} has {tensor.shape[0]} rows")
    pairs = np.arange(rows).reshape(-1, shape.width // 2, 2)
    return tensor.rows(pairs.swapaxes(1, 2).reshape(-1))


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
    context, original = _contexts(file)
    if _SHORT_FACTORS in file.tensors:
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
