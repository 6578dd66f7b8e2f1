"""Compressed weights as the kernels read them. Knows no graph."""

from dataclasses import dataclass

import numpy as np

TILE = 16
"""Outputs of a tile, which has the weights of as many rows. Its word s * TILE + o, of 32 bits, has
those of row o at step s: 4 columns of 8 bits or 8 columns of 4 bits. The last tile has the last
outputs, though the one before may have some of them too."""

LANES = 8  # of a register of AVX2: floats or 32-bit integers
BITS = (4, 8)
ROWS = 8  # the most that one pass over a tile computes: their sums fill the processor's registers


@dataclass(frozen=True, slots=True)
class Weights:
    """Compressed weights: `stored`, bytes [outputs, columns * bits / 8], are int8, or two of 0 to
    15 a byte, the first in the low half, once the bits `flipped` are turned. Each stands for
    (stored - zero) * scale; `scales` (float16) and `zeros` (int8) are [outputs, groups]."""

    stored: np.ndarray
    bits: int
    scales: np.ndarray
    zeros: np.ndarray
    flipped: int = 0

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
    """Compressed weights in tiles. The code reads the description at `address`; `content` holds its
    memory."""

    address: int
    content: tuple[np.ndarray, ...]


def pack(weights: Weights) -> Matrix:
    """Arrange weights in tiles."""
    outputs, columns, groups = len(weights.stored), weights.columns, weights.scales.shape[1]
    steps = columns * weights.bits // 32
    tiles = -(-outputs // TILE)
    chosen: slice | np.ndarray = slice(None)
    if outputs % TILE:
        chosen = np.r_[: outputs // TILE * TILE, outputs - TILE : outputs]
    words = np.full((tiles, steps, TILE), weights.flipped * 0x01010101, np.uint32)
    words ^= weights.stored.view(np.uint32)[chosen].reshape(-1, TILE, steps).transpose(0, 2, 1)
    # Copies: the memory of a graph's constants does not stay.
    scales, zeros = (
        np.array(values[chosen].reshape(-1, TILE, groups).transpose(0, 2, 1), order="C")
        for values in (weights.scales, weights.zeros)
    )
    pointers = [array.ctypes.data for array in (words, scales, zeros)]
    sizes = columns, columns // weights.group, weights.group * weights.bits // 32
    between_groups = TILE if groups > 1 else 0  # from the scales of one to those of the next
    numbers = *sizes, between_groups, groups * TILE, outputs, BITS.index(weights.bits)
    description = np.array([*pointers, *numbers], np.int64)
    return Matrix(description.ctypes.data, (words, scales, zeros, description))
