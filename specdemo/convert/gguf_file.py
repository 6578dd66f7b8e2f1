"""Reads GGUF files: the metadata, the decoder's shape, where its tensors lie. The `gguf` package
takes 13 seconds to open a file of 150,000 tokens, and hours with some damaged headers."""

import re
import struct
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from specdemo.convert import ir
from specdemo.convert.decoder import FAMILIES, Shape, with_biases
from specdemo.convert.weights import Tensor
from specdemo.errors import BadInput, FetchError

READABLE = ("llama", "qwen2", "qwen3")
_HEADER_BYTES = 256 << 20  # a header of 150,000 tokens takes 6 MB
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

    def value(self, name: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.architecture}.{name}", default)


def read(path: Path) -> Gguf:
    """The headers of `path` and of its other parts. Raises BadInput, FetchError."""
    fields, tensors = {}, {}
    for part in ir.gguf_parts(path):
        own, more = _Header(part).read()
        fields, tensors = own | fields, tensors | more  # the first part has the model's metadata
    return Gguf(path, fields, tensors)


class _Header:
    """Reads one file's header; never more than _HEADER_BYTES of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open(path, "rb") as file:
                self._data = BytesIO(file.read(_HEADER_BYTES))
            self._size = path.stat().st_size
        except OSError as error:
            raise FetchError(f"{path} cannot be read: {error.strerror or error}.") from error

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if self._data.read(4) != b"GGUF":
            raise BadInput(f"{self._path} is not a GGUF file.")
        try:
            version = self._number("I")
            if version not in (2, 3):
                raise BadInput(f"{self._path} is GGUF of version {version}; 2 and 3 can be read.")
            tensors, fields = self._number("Q"), self._number("Q")
            found = {self._string(): self._value(self._number("I")) for _ in range(fields)}
            infos = [self._info() for _ in range(tensors)]
            alignment = found.get("general.alignment", 32)
            begin = -(-self._data.tell() // alignment) * alignment
            return found, {name: self._tensor(begin, *info) for name, *info in infos}
        except (ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            why = f"is damaged or truncated ({error!s:.200}); fetch it again."
            raise BadInput(f"{self._path} {why}") from error

    def _number(self, kind: str) -> Any:
        [found] = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return found

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        found = self._data.read(count)
        if len(found) < count:
            raise ValueError("its header ends too early")
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner == _STRING:
                return [self._string() for _ in range(count)]
            form = np.dtype(f"<{_format(inner)}")
            return np.frombuffer(self._bytes(count * form.itemsize), form).tolist()
        return self._number(_format(kind))

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, rank = self._string(), self._number("I")
        if not 1 <= rank <= 4:
            raise ValueError(f"{name!r:.60} has {rank} dimensions")
        dimensions = [self._number("Q") for _ in range(rank)]
        return name, tuple(reversed(dimensions)), self._number("I"), self._number("Q")

    def _tensor(self, begin: int, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            raise BadInput(f"{self._path} has tensors of the unknown type {kind}.") from None
        if not all(0 < size < _DIMENSION for size in shape):
            raise ValueError(f"a tensor has the shape {list(shape)}")
        tensor = Tensor(self._path, begin + offset, shape, known)
        if tensor.begin + tensor.bytes > self._size:
            raise ValueError("it ends before its last tensor")
        return tensor


def _format(kind: int) -> str:
    if kind >= len(_FORMATS) or _FORMATS[kind] == " ":
        raise ValueError(f"a value has the unknown type {kind}")
    return _FORMATS[kind]


def decoder(file: Gguf) -> tuple[Shape, dict[str, Tensor]]:
    """The shape of a file's decoder, and its tensors with rows in the graph's order. Raises
    BadInput for an architecture or a feature that `decoder` does not have."""
    if file.architecture not in READABLE or file.value("expert_count"):
        kind = f"{file.architecture!r}" + (" with experts" if file.value("expert_count") else "")
        raise BadInput(
            f"{file.path.name} holds a model of the architecture {kind}; GGUF files of "
            f"{', '.join(READABLE)} can be run."
        )
    tensors = dict(file.tensors)
    try:
        embedding, query = tensors["token_embd.weight"], tensors["blk.0.attn_q.weight"]
    except KeyError as error:
        raise BadInput(f"{file.path.name} is damaged: it has no {error}.") from error
    heads = _number(file, "attention.head_count", 0)
    kept = _number(file, "attention.head_count_kv", heads)
    width = _number(file, "attention.key_length", embedding.shape[-1] // heads)
    if query.shape[0] != heads * width or heads % kept or width % 2:
        raise BadInput(f"{file.path.name} is damaged: its heads do not go with its tensors.")
    factors = (1.0,) * (width // 2)
    if rope := tensors.pop("rope_freqs.weight", None):
        factors = tuple(rope.read(0, rope.shape[0]).ravel().tolist())
    scaling = file.value("rope.scaling.type", "none")
    if scaling == "linear":
        scale = _number(file, "rope.scaling.factor", 1.0)
        factors = tuple(scale * factor for factor in factors)
    rotated = _number(file, "rope.dimension_count", width)
    if scaling not in ("none", "linear") or rotated != width or 2 * len(factors) != width:
        raise BadInput(f"{file.path.name} scales its positions ({scaling}): not supported.")
    shape = Shape(
        hidden=embedding.shape[-1],
        layers=_number(file, "block_count", 0),
        heads=heads,
        vocabulary=embedding.shape[0],
        inner=_number(file, "feed_forward_length", 0),
        kv_heads=kept,
        width=width,
        rope_base=_number(file, "rope.freq_base", 10_000.0),
        rope_factors=() if set(factors) == {1.0} else factors,
        epsilon=_number(file, "attention.layer_norm_rms_epsilon", 0.0),
        tied="output.weight" not in tensors,
        family=with_biases(FAMILIES[file.architecture], tensors),
    )
    if file.architecture == "llama":  # these files have the two halves of a head interleaved
        for name, tensor in tensors.items():
            if re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name):
                pairs = np.arange(tensor.shape[0]).reshape(-1, width // 2, 2)
                tensors[name] = tensor.rows(pairs.swapaxes(1, 2).reshape(-1))
    return shape, tensors


def _number(file: Gguf, name: str, default: Any) -> Any:
    """The architecture's positive value `name`, of the type of `default`. Raises BadInput."""
    found = file.value(name, default)
    if isinstance(found, list) and len(set(found)) == 1:  # one for each layer
        found = found[0]
    if type(found) is not type(default) or not 0 < found < _DIMENSION:
        raise BadInput(
            f"{file.path.name} is damaged: {name} is {found!r:.40}, not a positive number."
        )
    return found
