"""Compressed weights as the kernels read them. Knows no graph."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

TILE = 16
"""Outputs of a tile, which has the weights of as many rows. Its word s * TILE + o, of 32 bits, has
those of row o at step s: 4 columns of 8 bits or 8 columns of 4 bits. The last tile has the last
outputs, though the one before may have some of them too."""

LINE_BYTES = 64  # of the processor's cache
LANES = 8  # of a register of AVX2: floats or 32-bit integers
BITS = (4, 8)


@dataclass(frozen=True, slots=True)
class Weights:
    """Compressed weights. Each stands for (stored - zero) * scale."""

    stored: np.ndarray  # bytes [outputs, columns * bits / 8]
    bits: int  # 8: int8; 4: two of 0 to 15 a byte, the first in the low half
    scales: np.ndarray  # float16 [outputs, groups]
    zeros: np.ndarray  # likewise
    flipped: int = 0  # bits of each byte that are turned first

    @property
    def columns(self) -> int:
        return int(self.stored.shape[1]) * 8 // self.bits

    @property
    def group(self) -> int:
        """How many columns are rounded together; 0 for shapes that the code does not compute."""
        groups = self.scales.shape[1]
        group = next((size for size in (128, 64, 32) if self.columns // groups % size == 0), 0)
        split = groups > 1 and self.columns // groups != group
        return 0 if len(self.stored) < TILE or split else group


@dataclass(frozen=True, slots=True)
class Matrix:
    """Compressed weights in tiles."""

    address: int  # of the description that the code reads
    content: tuple[np.ndarray, ...]  # its memory


def lines(size: int) -> np.ndarray:
    """Memory of so many bytes, uint8, that begins with a line of the cache."""
    memory = np.empty(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size]


def room_for(matrices: Iterable[Weights]) -> list[np.ndarray]:
    """Memory in which to `pack` each, in one piece: NumPy asks for large pages where it allocates
    megabytes. With small ones forwards took 5 to 27 % longer, in a virtual machine."""
    cuts = [*accumulate(map(_size, matrices), initial=0)]
    memory = lines(cuts[-1])
    return [memory[begin:end] for begin, end in pairwise(cuts)]


def pack(weights: Weights, memory: np.ndarray) -> Matrix:
    """Arrange weights in tiles, in memory from `room_for`."""
    outputs, columns, groups = len(weights.stored), weights.columns, weights.scales.shape[1]
    rows, steps = _rows(weights), columns * weights.bits // 32
    chosen: slice | np.ndarray = slice(None)
    if outputs % TILE:
        chosen = np.r_[: outputs // TILE * TILE, outputs - TILE : outputs]
    words = weights.stored.view(np.uint32)
    pieces: list[np.ndarray] = []
    end = 0
    for values, width in ((words, steps), (weights.scales, groups), (weights.zeros, groups)):
        begin, end = end, end + rows * width * values.itemsize
        pieces.append(memory[begin:end].view(values.dtype).reshape(-1, width, TILE))
        pieces[-1][:] = values[chosen].reshape(-1, TILE, width).transpose(0, 2, 1)
    pieces[0] ^= np.uint32(weights.flipped * 0x01010101)
    pointers = [piece.ctypes.data for piece in pieces]
    sizes = columns, columns // weights.group, weights.group * weights.bits // 32
    between_groups = TILE if groups > 1 else 0  # from the scales of one to those of the next
    numbers = *sizes, between_groups, groups * TILE, outputs, BITS.index(weights.bits)
    description = np.array([*pointers, *numbers], np.int64)
    return Matrix(description.ctypes.data, (memory, description))


def _rows(weights: Weights) -> int:
    """Of all tiles, those that two have counted twice."""
    return -(-len(weights.stored) // TILE) * TILE


def _size(weights: Weights) -> int:
    """Bytes of whole lines that hold the tiles of weights, scales and zeros."""
    row = weights.stored.shape[1] + 4 * weights.scales.shape[1]
    return -(-_rows(weights) * int(row) // LINE_BYTES) * LINE_BYTES
