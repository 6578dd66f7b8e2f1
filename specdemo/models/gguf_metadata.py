"""Read a GGUF file's metadata and write the tokenizer inside it as a `tokenizer.json`.

The `gguf` package reads the same but takes seconds over the 98,000 strings of a vocabulary; here it is a tenth of one.
Tensors are not read.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from specdemo.models.errors import ZooError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_CONTROL = 3

# llama.cpp's names of pre-tokenizers, as the steps that the tokenizers library knows.
_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS = {"smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]}, "gpt-2": _BYTE_LEVEL}


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file (version 2 or 3). Raises ZooError if it is not one."""
    try:
        with open(path, "rb") as file:
            magic, version, _tensors, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ZooError(f"{path} is not a GGUF file of version 2 or 3.")
            return {_string(file): _value(file, *struct.unpack("<I", file.read(4))) for _ in range(count)}
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ZooError(f"{path} is a damaged GGUF file.") from error


def write_tokenizer(metadata: dict[str, Any], path: Path) -> None:
    """Write the byte-level BPE tokenizer of a GGUF file as `path` (tokenizer.json). Raises ZooError for other kinds."""
    pre = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ZooError(f"The GGUF file's tokenizer ({pre!r}) is none of {', '.join(_PRE_TOKENIZERS)}.")
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": tokens[id], **flags} for id, kind in enumerate(kinds) if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    data = file.read(length)
    if len(data) != length:
        raise struct.error("the file ends inside a string")
    return data.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in (_STRING, _ARRAY):
            return [_value(file, inner) for _ in range(count)]
        form = f"<{count}{_SCALARS[inner][1]}"
        return list(struct.unpack(form, file.read(struct.calcsize(form))))
    return struct.unpack(_SCALARS[kind], file.read(struct.calcsize(_SCALARS[kind])))[0]
