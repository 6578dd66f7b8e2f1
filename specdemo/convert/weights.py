"""Weights of graphs: tensors of files, read and quantized in pieces on all processors; and matrices
rounded to four bits along given inputs, for draft heads."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import gguf
import numpy as np
import openvino as ov
from gguf import GGMLQuantizationType
from openvino import opset13 as ops

from specdemo.engine.backends.graph import raw_bytes
from specdemo.errors import BadInput, FetchError
from specdemo.machine.hardware import processors
from specdemo.machine.terminal import Meter, Report

GROUP = 128  # weights that share a scale, for 4 bits
_PIECE = 1 << 18  # weights that a thread converts at once
_SMALLEST = np.finfo(np.float32).eps  # scale that is divided by
_LARGEST = np.finfo(np.float16).max
FITTED_GROUP = 64  # weights that share a scale in `fit_int4`
_DAMPING = 0.03  # relative to the mean square of the inputs
_STEP = 32  # columns whose errors reach all later ones in one product
BLOCK = 32  # weights that share a scale and an offset in the types of FOURS
FOURS = {GGMLQuantizationType.Q4_0: 2, GGMLQuantizationType.Q4_1: 4, GGMLQuantizationType.Q4_K: 16}
"""Types of GGUF files whose weights are offset + scale * an integer of 4 bits, and where in a block
of bytes these integers begin."""

_STEEPEST = 1024  # offset, in scales: beyond it a block's weights are as good as equal
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
_SMALLEST_FITTED = 1e-6  # magnitude of a scale


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor [rows, columns] or [rows] in a file."""

    path: Path
    begin: int  # byte
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    order: np.ndarray | None = None  # which of the file's rows these are; None: all
    swapped: int = 0  # if the file has columns as rows, their width
    added: float = 0.0  # to every value that the file has

    def rows(self, order: np.ndarray) -> Self:
        return replace(self, shape=(len(order), *self.shape[1:]), order=order)

    @property
    def bytes(self) -> int:
        """Bytes in the file, of all rows. Raises ValueError for sizes that the type cannot have."""
        return math.prod(gguf.quant_shape_to_byte_shape(self.shape, self.type))

    def _size(self, values: int) -> int:
        """Bytes of so many values."""
        [size] = gguf.quant_shape_to_byte_shape((values,), self.type)
        return int(size)

    def read(self, first: int, end: int) -> np.ndarray:
        """The rows `first` to `end`, float32 [end - first, columns]. Raises FetchError, or BadInput
        for a type that the gguf package cannot read."""
        stored, order = self._stored(first, end)
        values = self._floats(stored)
        return values[:, order].T if self.swapped else values

    @property
    def blocks(self) -> bool:
        """Whether `read_blocks` can read it."""
        return self.type in FOURS and not self.swapped and not self.added

    def read_blocks(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows `first` to `end` of a type of FOURS as the file has them: integers of 0 to 15
        (uint8, flat, two in a byte, the first in the lower bits), scales and zero points (float16
        [end - first, blocks, 1]); a weight is (integer - zero) * scale. Raises as `read`."""
        stored, _ = self._stored(first, end)
        _, size = gguf.GGML_QUANT_SIZES[self.type]
        emptied = stored.reshape(len(stored), -1, size).copy()
        lowest, second = (
            self._floats(emptied.reshape(stored.shape)).reshape(len(stored), -1, BLOCK)[..., :1]
            for emptied[..., FOURS[self.type] :] in (0x00, 0x11)
        )
        steps = np.clip(second - lowest, -_LARGEST, _LARGEST)  # else a damaged file's are infinite
        equal = np.abs(lowest) > _STEEPEST * np.abs(steps)
        scales = np.where(equal, -lowest / 8, steps).astype(np.float16)
        zeros = np.where(equal, 8, -lowest / np.where(steps == 0, 1, steps)).astype(np.float16)
        weights = self._floats(stored).reshape(len(stored), -1, BLOCK)
        integers = np.rint((weights - lowest) / np.where(equal | (steps == 0), np.inf, steps))
        flat = integers.astype(np.uint8).reshape(-1)
        return flat[::2] | flat[1::2] << 4, scales, zeros

    def _stored(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of the rows `first` to `end`, uint8 [rows, bytes]. If they are columns of the
        file, some more, and where theirs are among them."""
        order = np.arange(first, end) if self.order is None else self.order[first:end]
        low, high = int(order.min()), int(order.max()) + 1
        width = math.prod(self.shape[1:])
        step, unit = self._size(self.swapped), self._size(1 if self.swapped else width)
        size, parts = (high - low) * unit, []
        with open(self.path, "rb", buffering=0) as file:
            for row in range(width if self.swapped else 1):  # a part of each of the file's rows
                file.seek(self.begin + low * unit + row * step)
                parts.append(file.read(size))
        raw = b"".join(parts)
        if len(raw) != size * len(parts):
            raise FetchError(f"{self.path} was cut or replaced while it was read; try again.")
        stored = np.frombuffer(raw, np.uint8).reshape(-1, size if self.swapped else unit)
        if self.order is not None and not self.swapped:
            stored = stored[order - low]
        return stored, order - low

    def _floats(self, stored: np.ndarray) -> np.ndarray:
        """What bytes [rows, bytes] stand for, float32."""
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # refused below
                values: np.ndarray = gguf.dequantize(stored, self.type)
        except NotImplementedError as error:
            why = f"has weights of the type {self.type.name}, which cannot be read"
            raise BadInput(f"{self.path} {why}; choose another file of this model.") from error
        values = values + np.float32(self.added) if self.added else values
        # One of them would make all logits NaN, as one that is infinite in 16 bits.
        if not -_LARGEST <= values.min() <= values.max() <= _LARGEST:
            raise FetchError(f"{self.path} is damaged: it has weights that are no finite numbers.")
        return values


def weight_group(columns: int) -> int:
    """4-bit weights that share a scale: 128, 64 or 32 if they divide a row, else the row."""
    group = math.gcd(GROUP, columns)
    return group if group >= 32 else columns


class FileWeights:
    """The weights of a graph: tensors of a model's files, by name. Raises FetchError."""

    output_bits = 4  # the fewest of an output matrix

    def __init__(
        self, tensors: Mapping[str, Tensor], report: Report, name: str, blocks: bool = False
    ):
        """`blocks`: whether a layer's matrices of a type of FOURS stay as they are."""
        self._blocks = blocks
        self._tensors, self._unused = dict(tensors), set(tensors)
        total = sum(math.prod(tensor.shape) for tensor in tensors.values())
        self._meter = Meter(report, f"Converting {name} to OpenVINO IR", total)
        self._pool = ThreadPoolExecutor(processors())

    def unused(self) -> list[str]:
        """Names of the tensors that no vector or matrix was made of."""
        return sorted(self._unused)

    def vector(self, name: str, *shape: int) -> np.ndarray:
        return self._taken(name, shape).read(0, shape[0]).reshape(shape)

    def matrix(self, name: str, rows: int, columns: int, bits: int) -> ov.Output:
        """The tensor as an expression, float32 [rows, columns], with weights stored in `bits`."""
        tensor = self._taken(name, (rows, columns))
        kind = {4: ov.Type.i4, 8: ov.Type.i8, 16: ov.Type.f16}[bits]
        group = weight_group(columns) if bits == 4 else columns
        zeros = None
        if self._blocks and tensor.blocks and name.startswith("blk."):
            kind, bits, group = ov.Type.u4, 4, BLOCK
            zeros = np.empty((rows, columns // group, 1), np.float16)
        stored = ov.Tensor(kind, ov.Shape([rows, columns // group, group]))
        flat = raw_bytes(stored)
        scales = np.empty((rows, columns // group, 1), np.float16)
        # Pieces end at whole bytes: a row of 4-bit weights may not.
        step = max(_PIECE // columns // 2 * 2, 2)

        def convert(first: int) -> int:
            end = min(first + step, rows)
            count = (end - first) * columns
            begin, size = first * columns * bits // 8, -(-count * bits // 8)
            if zeros is not None:
                packed, scales[first:end], zeros[first:end] = tensor.read_blocks(first, end)
                flat[begin : begin + size] = packed
                return count
            weights = tensor.read(first, end)
            if bits == 16:
                packed = weights.astype(np.float16).reshape(-1).view(np.uint8)
            else:
                groups = weights.reshape(end - first, -1, group)
                packed, scales[first:end] = quantized(groups, bits)
            flat[begin : begin + size] = packed
            return count

        for count in self._pool.map(convert, range(0, rows, step)):
            self._meter.update(count)
        if bits == 16:
            stored.shape = ov.Shape([rows, columns])
            half = ov.op.Constant(stored, shared_memory=True)
            return ops.convert(half, "f32", name=f"{name}/half").output(0)
        return compressed(stored, scales, zeros)

    def _taken(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor and name not in self._unused:  # a tied embedding
            self._meter.total += math.prod(shape)
        self._unused.discard(name)
        if tensor is None or tensor.shape != shape:
            got = f"it is {list(tensor.shape)}" if tensor else "there is none"
            raise FetchError(
                f"The model's tensors do not go with its configuration: {name} should be "
                f"{list(shape)}, and {got}."
            )
        return tensor


def compressed(
    integers: ov.Tensor, scales: np.ndarray, zeros: np.ndarray | None = None
) -> ov.Output:
    """A float32 matrix [rows, columns] from integers [rows, groups, group], float16 `scales` [rows,
    groups, 1] and uint8 or float16 zero points like them (None: 0); a single group is a whole row.
    Does not copy the integers."""
    rows, groups, group = integers.shape
    row = [groups] if groups > 1 else []
    integers.shape = ov.Shape([rows, *row, group])
    values = ops.convert(ov.op.Constant(integers, shared_memory=True), "f16")
    if zeros is not None:
        points = ops.convert(ops.constant(zeros.reshape(rows, *row, 1)), "f16")
        values = ops.subtract(values, points)
    weights = ops.multiply(values, ops.constant(scales.reshape(rows, *row, 1)))
    if groups > 1:
        weights = ops.reshape(weights, [rows, groups * group], False)
    return ops.convert(weights, "f32").output(0)


def quantized(weights: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Signed integers of `bits` (flat uint8; of 4 bits two in a byte) and float16 scales [rows,
    groups, 1] of float32 weights [rows, groups, group]. As in nncf, the weight of largest magnitude
    becomes the lowest integer."""
    lowest, highest = weights.min(-1, keepdims=True), weights.max(-1, keepdims=True)
    limit = 2 ** (bits - 1)
    exact = np.where(-lowest >= highest, lowest, highest) / -limit
    scales = exact.astype(np.float16)
    divisors = exact if bits == 8 else scales.astype(np.float32)  # 4 bits: the stored scale
    # A scale may be too small for 16 bits: 0 times any integer is 0.
    values = weights / np.where(np.abs(divisors) < _SMALLEST, _SMALLEST, divisors)
    np.rint(values, out=values)
    np.clip(values, -limit, limit - 1, out=values)
    packed: np.ndarray = values.astype(np.int8).reshape(-1).view(np.uint8)
    if bits == 4:
        packed = packed[::2] & 15 | packed[1::2] << 4
    return packed, scales


class Quantized(NamedTuple):
    """A matrix in int4."""

    values: np.ndarray  # uint8 [rows, columns / 2], the first of two in the lower bits
    scales: np.ndarray  # float16 [rows, groups]

    def floats(self) -> np.ndarray:
        """The matrix, float32 [rows, columns]."""
        bits = np.stack([self.values & 15, self.values >> 4], -1).astype(np.int8)
        signed = ((bits ^ 8) - 8).reshape(*self.scales.shape, -1)
        return (signed * self.scales[:, :, None].astype(np.float32)).reshape(len(bits), -1)

    def expression(self) -> ov.Output:
        """The matrix for a graph, float32 [rows, columns]."""
        rows, groups = self.scales.shape
        group = 2 * self.values.shape[1] // groups
        integers = ov.Tensor(ov.Type.i4, ov.Shape([rows, groups, group]))
        raw_bytes(integers)[:] = self.values.reshape(-1)
        return compressed(integers, self.scales[:, :, None])


def fit_int4(matrix: np.ndarray, squares: np.ndarray) -> Quantized:
    """Round `matrix`, float32 [rows, columns], so that its products change least along inputs with
    the sums of products `squares` [columns, columns] (GPTQ, arXiv 2210.17323). Columns with the
    largest inputs come first; later ones compensate for their errors."""
    rows, columns = matrix.shape
    group = math.gcd(FITTED_GROUP, columns)
    weights = np.diag(squares).astype(np.float32)
    order = np.argsort(-weights, kind="stable")
    damped = squares[order][:, order].astype(np.float32).astype(np.float64)
    damped[np.diag_indices_from(damped)] += _DAMPING * weights.mean() + 1e-9
    factor = np.ascontiguousarray(np.linalg.cholesky(np.linalg.inv(damped)).T, np.float32)
    left = np.array(matrix.T, np.float32, order="C")  # a column's weights lie side by side
    groups = left.reshape(-1, group, rows), weights.reshape(-1, group)
    scales = np.stack([_fitted_scales(*pair) for pair in zip(*groups, strict=True)])
    left, exact = left[order], scales.astype(np.float32)
    values = np.empty((columns, rows), np.int8)
    for begin in range(0, columns, _STEP):
        end = min(begin + _STEP, columns)
        errors = np.empty((end - begin, rows), np.float32)
        for row in range(begin, end):
            column, scale = order[row], exact[order[row] // group]
            values[column] = np.rint(left[row] / scale).clip(-8, 7)
            errors[row - begin] = (left[row] - values[column] * scale) / factor[row, row]
            left[row + 1 : end] -= factor[row, row + 1 : end, None] * errors[row - begin]
        left[end:] -= factor[begin:end, end:].T @ errors
    bits = np.ascontiguousarray(values.T).view(np.uint8) & 15
    return Quantized(bits[:, ::2] | bits[:, 1::2] << 4, np.ascontiguousarray(scales.T))


def _fitted_scales(part: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The scale of each column of `part` [group, rows], float16 [rows]. Tries SHARES times the
    scale that clips no weight. The squares of errors are multiplied by `weights`."""
    largest = np.take_along_axis(part, np.abs(part).argmax(0)[None], 0)[0]
    small = np.abs(largest) < 8 * _SMALLEST_FITTED
    widest = np.where(small, _SMALLEST_FITTED, -largest / 8)
    tried = [(share * widest).astype(np.float16) for share in SHARES]
    errors = []
    for scale in tried:
        exact = scale.astype(np.float32)
        errors.append(weights @ (part - np.rint(part / exact).clip(-8, 7) * exact) ** 2)
    best: np.ndarray = np.choose(np.argmin(errors, 0), tried)
    return best
