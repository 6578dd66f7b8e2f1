"""Reads GGUF files: the metadata, and where tensors lie. The `gguf` package takes 13 seconds to
open a file of 150,000 tokens, and hours with some damaged headers."""

import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType

from specdemo.convert import configuration, model_files
from specdemo.convert.configuration import GenerationLimits
from specdemo.convert.weights import Tensor
from specdemo.errors import BadInput, FetchError

_HEADER_BYTES = 64 << 20  # a header of 150,000 tokens takes 6 MB
_ENTRIES = 1 << 16  # values of the metadata, or tensors
_ITEMS = 1 << 20  # of an array; the merges of the largest vocabularies are 514,000
_LAYERS = 512
_ARRAYS = {f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges", "scores")}
_FORMATS = "BbHhIif?  Qqd"  # of struct, by type
_STRING, _ARRAY = 8, 9
_DIMENSION = 1 << 32
SHORT_FACTORS = "rope_factors_short.weight"


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

    @property
    def contexts(self) -> tuple[int, int]:
        """The model's context, and up to how many tokens its short rotary factors are right; 0 for
        what the file does not say."""
        limits = GenerationLimits.of(self.section(f"{self.architecture}."), self.path)
        original = limits.original
        if self.architecture == "phi3":
            original = original or configuration.PHI3_ORIGINAL
        return limits.context, original


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
