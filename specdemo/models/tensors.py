"""The tensors of a PyTorch checkpoint, read without torch: where each lies in its file, and rows
of it as float32.

safetensors files are a table and data. `pytorch_model.bin` is a zip archive of data and a pickle;
the pickle can only build tensors here: whatever else it names is refused and never runs.
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from specdemo.errors import FetchError

_TABLE_LIMIT = 100_000_000  # bytes of a table or a pickle; those of real models have less than 1 MB
_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file, row by row: `offset` in bytes, `kind` F32, F16 or BF16."""

    path: Path
    offset: int
    kind: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _TYPES[self.kind].itemsize

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Rows `begin` to `end` along the first axis, float32."""
        type, row = _TYPES[self.kind], math.prod(self.shape[1:])
        offset = self.offset + begin * row * type.itemsize
        values = np.fromfile(self.path, type, (end - begin) * row, offset=offset)
        if self.kind == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False).reshape(end - begin, *self.shape[1:])


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """The floating-point tensors of the checkpoint in `folder` by name, of all its shards.

    Raises FetchError for a file that is damaged, or holds more than tensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    read = _safetensors if files else _archive
    tensors: dict[str, Stored] = {}
    for path in files or sorted(folder.glob("pytorch_model*.bin")):
        try:
            with open(path, "rb") as file:
                found = dict(read(path, file))
        except _Refused as error:
            raise FetchError(
                f"{path} holds more than tensors (its pickle names {error}), so nothing of it was "
                "read; use a repository or revision with safetensors."
            ) from error
        except Exception as error:  # a damaged table or pickle may fail in any way
            raise FetchError(
                f"{path} is damaged, or in an old format of PyTorch's; fetch it again, or use a "
                "repository with safetensors."
            ) from error
        if any(one.offset + one.bytes > path.stat().st_size for one in found.values()):
            raise FetchError(f"{path} is truncated; fetch it again.")
        tensors |= found
    return tensors


def _safetensors(path: Path, file: BinaryIO) -> Iterator[tuple[str, Stored]]:
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length < _TABLE_LIMIT:
        raise ValueError(length)
    for name, one in json.loads(file.read(length)).items():
        if one.get("dtype") in _TYPES:
            begin, end = one["data_offsets"]
            stored = Stored(path, 8 + length + begin, one["dtype"], tuple(one["shape"]))
            if begin < 0 or end - begin != stored.bytes:
                raise ValueError(name)
            yield name, stored


def _archive(path: Path, file: BinaryIO) -> Iterator[tuple[str, Stored]]:
    """The tensors of a file that `torch.save` wrote, since PyTorch 1.6."""
    with zipfile.ZipFile(file) as archive:
        members = {one.filename: one for one in archive.infolist()}
        [table] = [name for name in members if name.endswith("/data.pkl")]
        if members[table].file_size > _TABLE_LIMIT:
            raise ValueError(table)
        with archive.open(table) as data:
            named = _Unpickler(data).load()
    for name, one in named.items():
        if isinstance(one, _Pickled) and one.storage in _STORAGES:
            member = members[f"{table.removesuffix('data.pkl')}data/{one.key}"]
            file.seek(member.header_offset + 26)  # the lengths of the names before the data
            names = int(np.frombuffer(file.read(4), "<u2").sum())
            kind = _STORAGES[one.storage]
            begin = one.offset * _TYPES[kind].itemsize
            stored = Stored(path, member.header_offset + 30 + names + begin, kind, one.shape)
            inside = begin >= 0 and begin + stored.bytes <= member.file_size
            strides = (math.prod(one.shape[axis + 1 :]) for axis in range(len(one.shape)))
            if member.compress_type != zipfile.ZIP_STORED or not inside:
                raise ValueError(name)
            if one.strides != tuple(strides):  # not row by row
                raise ValueError(name)
            yield name, stored


class _Pickled(NamedTuple):
    storage: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(Exception):
    """What a pickle names that is no tensor."""


class _Unpickler(pickle.Unpickler):
    """Builds dictionaries and tensors only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _Pickled(
                *storage, offset, shape, strides
            )
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name.endswith("Storage"):
            return name
        raise _Refused(f"{module}.{name}"[:80])

    def persistent_load(self, id: tuple) -> tuple[str, str]:
        """The type and the name of a storage."""
        return id[1:3]
