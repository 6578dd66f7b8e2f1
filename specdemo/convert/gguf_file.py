"""Reads GGUF files: the metadata, the decoder's shape, where its tensors lie. The `gguf` package
takes 13 seconds to open a file of 150,000 tokens, and hours with some damaged headers."""

import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType
from pydantic import Field

from specdemo.convert import ir
from specdemo.convert.decoder import (
    FAMILIES,
    Positive,
    Shape,
    Size,
    Sizes,
    sized,
    with_biases,
)
from specdemo.convert.weights import Tensor
from specdemo.errors import BadInput, FetchError

READABLE = ("llama", "qwen2", "qwen3")
_HEADER_BYTES = 64 << 20  # a header of 150,000 tokens takes 6 MB
_ENTRIES = 1 << 16  # values of the metadata, or tensors
_ITEMS = 1 << 20  # of an array; the merges of the largest vocabularies are 514,000
_LAYERS = 512
_ARRAYS = {f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges", "scores")}
_FORMATS = "BbHhIif?  Qqd"  # of struct, by type
_STRING, _ARRAY = 8, 9
_DIMENSION = 1 << 32


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
    for part in ir.gguf_parts(path):
        try:
            with open(part, "rb") as file:
                metadata, infos = _Header(part, file).read()
        except OSError as error:
            raise FetchError(f"{part} cannot be read: {error.strerror or error}.") from error
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
            infos = dict(self._info() for _ in range(tensor_count))
            alignment = values.get("general.alignment", 32)
            if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
                raise ValueError(f"general.alignment is {alignment!r:.40}")
            begin = -(-self._file.tell() // alignment) * alignment
            return values, {name: self._tensor(begin, info) for name, info in infos.items()}
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

    def _info(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        """A tensor's name; its shape, type and offset."""
        name, rank = self._string(), self._number("I")
        if not 1 <= rank <= 4:
            raise ValueError(f"{name!r:.60} has {rank} dimensions")
        dimensions = [self._number("Q") for _ in range(rank)]
        return name, (tuple(reversed(dimensions)), self._number("I"), self._number("Q"))

    def _tensor(self, begin: int, info: tuple[tuple[int, ...], int, int]) -> Tensor:
        shape, kind, offset = info
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError:
            raise BadInput(f"{self._path} has tensors of the unknown type {kind}.") from None
        if not all(0 < size < _DIMENSION for size in shape):
            raise ValueError(f"a tensor has the shape {list(shape)}")
        tensor = Tensor(self._path, begin + offset, shape, quantization)
        if tensor.begin + tensor.bytes > self._size:
            raise ValueError("it ends before its last tensor")
        return tensor


def _format(kind: int) -> str:
    if kind >= len(_FORMATS) or _FORMATS[kind] == " ":
        raise ValueError(f"a value has the unknown type {kind}")
    return _FORMATS[kind]


class GgufSizes(Sizes):
    """The metadata of a GGUF file about its architecture, without the architecture's name."""

    scaling: str = Field("none", validation_alias="rope.scaling.type")
    factor: Positive = Field(1.0, validation_alias="rope.scaling.factor")
    rotated: Size = sized(1 << 16, "rope.dimension_count", default=0)


def decoder(file: Gguf) -> tuple[Shape, dict[str, Tensor]]:
    """The shape of a file's decoder, and its tensors with rows in the graph's order. Raises
    BadInput for an architecture or a feature that `decoder` does not have, and for impossible
    values."""
    kind, tensors = file.architecture, dict(file.tensors)
    experts = file.fields.get(f"{kind}.expert_count")
    if kind not in READABLE or experts:
        raise BadInput(
            f"{file.path.name} holds a model of the architecture {kind!r:.40}"
            f"{' with experts' if experts else ''}; GGUF files of {', '.join(READABLE)} can be run."
        )
    sizes, shape = _shape(file)
    factors = _rope_factors(file, sizes, shape.width, tensors.pop("rope_freqs.weight", None))
    if any(factor != 1 for factor in factors):
        shape = replace(shape, rope_factors=factors)
    if kind == "llama":
        _unpermute(tensors, shape, file.path.name)
    return shape, tensors


def _shape(file: Gguf) -> tuple[GgufSizes, Shape]:
    tensors, family = file.tensors, FAMILIES[file.architecture]
    try:
        embedding, query = tensors["token_embd.weight"], tensors["blk.0.attn_q.weight"]
    except KeyError as error:
        raise BadInput(f"{file.path.name} is damaged: it has no {error}.") from error
    metadata = file.section(f"{file.architecture}.")
    metadata |= {"vocab_size": embedding.shape[0], "hidden_size": embedding.shape[-1]}
    sizes = GgufSizes.of(metadata, file.path)
    tied, family = "output.weight" not in tensors, with_biases(family, tensors)
    shape = Shape.of(sizes, family, file.path, rope_base=sizes.rope_base, tied=tied)
    if query.shape[0] != shape.heads * shape.width or shape.width % 2:
        raise BadInput(f"{file.path.name} is damaged: its heads do not go with its tensors.")
    return sizes, shape


def _rope_factors(
    file: Gguf, sizes: GgufSizes, width: int, stored: Tensor | None
) -> tuple[float, ...]:
    """What the rotary frequencies are divided by."""
    scaled = sizes.scaling not in ("none", "linear") or (sizes.rotated or width) != width
    if scaled or stored and stored.shape != (width // 2,):
        kind = f"{sizes.scaling:.40}"
        raise BadInput(f"{file.path.name} scales its positions ({kind}): not supported.")
    factors = np.ones(width // 2)
    if stored:
        factors = stored.read(0, width // 2).ravel().astype(float)
    if sizes.scaling == "linear":
        factors *= sizes.factor
    if not np.isfinite(factors).all() or factors.min() <= 0:
        raise BadInput(f"{file.path.name} is damaged: its positions are scaled by no number.")
    return tuple(factors.tolist())


def _unpermute(tensors: dict[str, Tensor], shape: Shape, name: str) -> None:
    """Put the two halves of each query and key one after the other, in place: Llama's files have
    them interleaved."""
    for matrix, heads in (("attn_q", shape.heads), ("attn_k", shape.kv_heads)):
        pairs = np.arange(heads * shape.width).reshape(-1, shape.width // 2, 2)
        order = pairs.swapaxes(1, 2).reshape(-1)
        for key, tensor in tensors.items():
            if re.fullmatch(rf"blk\.\d+\.{matrix}\.(weight|bias)", key):
                if tensor.shape[0] != len(order):
                    raise BadInput(f"{name} is damaged: {key} has {tensor.shape[0]} rows.")
                tensors[key] = tensor.rows(order)
