"""GGUF files: the tokenizer of one, and a draft made of the target's tensors and its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.errors import FetchError

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

_CONTROL = 3  # a kind of token

# llama.cpp's names of pre-tokenizers, as the steps that the tokenizers library knows.
_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
}


def read(path: Path) -> GGUFReader:
    """Open a GGUF file; takes seconds where it holds a vocabulary. Raises FetchError."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise FetchError(f"{path} is not a GGUF file, or it is damaged; fetch it again.") from error


def value(file: GGUFReader, key: str) -> Any:
    """The metadata value `key`, None if the file has none."""
    field = file.get_field(key)
    return None if field is None else field.contents()


def write_tokenizer(file: GGUFReader, path: Path) -> None:
    """Write the byte-level BPE tokenizer of a GGUF file as tokenizer.json. Raises FetchError for
    other kinds."""
    pre = value(file, "tokenizer.ggml.pre")
    if value(file, "tokenizer.ggml.model") != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise FetchError(
            f"The GGUF file's tokenizer ({pre!r}) is none of {', '.join(_PRE_TOKENIZERS)}."
        )
    tokens = value(file, "tokenizer.ggml.tokens")
    kinds = value(file, "tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data = {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": tokens[id], "special": True, **flags}
            for id, kind in enumerate(kinds)
            if kind == _CONTROL
        ],
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in value(file, "tokenizer.ggml.merges")],
        },
    }
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def write_draft(target: GGUFReader, layers: GGUFReader, out: Path) -> None:
    """Write a draft as a whole GGUF file: the target's metadata, embedding and head, and `layers`,
    the draft's decoder layers and final norm (see `training.export`). The same bytes for the same
    inputs."""
    from gguf import GGUFWriter

    replaced = {tensor.name for tensor in layers.tensors}
    kept = [one for one in target.tensors if not one.name.startswith("blk.")]
    kept = [one for one in kept if one.name not in replaced]
    blocks = {name.split(".")[1] for name in replaced if name.startswith("blk.")}
    writer = GGUFWriter(out, value(target, "general.architecture"))
    for field in target.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue  # the writer's own
        content = len(blocks) if field.name.endswith(".block_count") else field.contents()
        kind, *inner = field.types
        writer.add_key_value(field.name, content, kind, inner[-1] if inner else None)
    for tensor in [*kept, *layers.tensors]:  # the target's order: embedding first, then layers
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    close(writer)


def close(writer: GGUFWriter) -> None:
    """Write everything that was added to `writer`."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
