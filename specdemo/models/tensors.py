"""The tensors of a PyTorch checkpoint as mapped arrays, without torch.

safetensors files are a table and data (their own library reads no bfloat16 into numpy).
`pytorch_model.bin` is a zip archive of data and a pickle; the pickle can only build tensors here:
whatever else it names is refused and never runs.
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdemo.errors import FetchError

_TABLE_LIMIT = 100_000_000  # bytes of a table or a pickle; those of real models have less than 1 MB
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_STORAGES = {"FloatStorage": np.float32, "HalfStorage": np.float16, "BFloat16Storage": np.uint16}


def stored_tensors(folder: Path) -> dict[str, np.ndarray]:
    """The floating-point tensors of the checkpoint in `folder` by name, of all its shards: float32,
    float16, or bfloat16 as uint16 (see `float32`).

    Raises FetchError for a file that is damaged, or holds more than tensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    read = _safetensors if files else _archive
    tensors: dict[str, np.ndarray] = {}
    for path in files or sorted(folder.glob("pytorch_model*.bin")):
        try:
            tensors |= read(path, np.memmap(path, np.uint8, "r"))
        except _Refused as error:
            raise FetchError(
                f"{path} holds more than tensors (its pickle names {error}), so nothing of it was "
                "read; use a repository or revision with safetensors."
            ) from error
        except Exception as error:  # a damaged table or pickle may fail in any way
            raise FetchError(
                f"{path} is damaged, truncated, or in an old format of PyTorch's; fetch it again, "
                "or use a repository with safetensors."
            ) from error
    return tensors


def float32(values: np.ndarray) -> np.ndarray:
    """`values` of `stored_tensors` as float32."""
    if values.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _safetensors(path: Path, data: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    for name, one in json.loads(data[8 : min(begin, _TABLE_LIMIT)].tobytes()).items():
        if kind := _TYPES.get(one.get("dtype")):
            first, end = one["data_offsets"]
            yield name, data[begin + first : begin + end].view(kind).reshape(one["shape"])


def _archive(path: Path, data: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a file that `torch.save` wrote, since PyTorch 1.6."""
    with zipfile.ZipFile(path) as archive:
        members = {one.filename: one for one in archive.infolist()}
        [table] = [name for name in members if name.endswith("/data.pkl")]
        if members[table].file_size > _TABLE_LIMIT:
            raise ValueError(table)
        with archive.open(table) as pickled:
            named = _Unpickler(pickled).load()
    for name, one in named.items():
        if isinstance(one, _Pickled) and (kind := _STORAGES.get(one.storage)):
            member = members[f"{table.removesuffix('data.pkl')}data/{one.key}"]
            header = member.header_offset
            # The lengths of the names between the header and the data.
            begin = header + 30 + int(data[header + 26 : header + 30].view("<u2").sum())
            stored = data[begin : begin + member.file_size].view(kind)
            strides = tuple(math.prod(one.shape[axis + 1 :]) for axis in range(len(one.shape)))
            if member.compress_type != zipfile.ZIP_STORED or one.strides != strides:
                raise ValueError(name)  # not row by row
            yield name, stored[one.offset :][: math.prod(one.shape)].reshape(one.shape)


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
