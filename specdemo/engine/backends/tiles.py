"""Compressed weights as the kernels read them. Knows no graph."""

from dataclasses import dataclass

import numpy as np

TILE = 16
"""Outputs of a tile, which has the weights of as many rows. Its word s * TILE + o, of 32 bits, has
those of row o at step s: 4 columns of 8 bits or 8 columns of 4 bits."""

BITS = (4, 8)
ROWS = 4  # rows that one pass over a tile computes: their sums fill the processor's registers


@dataclass(frozen=True, slots=True)
class Matrix:
    """Compressed weights in tiles. `columns` are rounded in groups of `group`. The code reads the
    description at `address`; `content` holds its memory."""

    columns: int
    bits: int
    group: int
    address: int
    content: tuple[np.ndarray, ...]


def pack(
    weights: np.ndarray, bits: int, scales: np.ndarray, zeros: np.ndarray, flipped: int = 0
) -> Matrix | None:
    """Arrange `weights`, bytes [outputs, columns * bits / 8]: int8, or two of 0 to 15 a byte, the
    first in the low half, once the bits `flipped` are turned. Each stands for (stored - zero) *
    scale; `scales` (float16) and `zeros` (int8) are [outputs, groups]. None for shapes that the
    code does not compute."""
    outputs, columns, groups = len(weights), weights.shape[1] * 8 // bits, scales.shape[1]
    group = next((size for size in (128, 64, 32) if columns // groups % size == 0), 0)
    if outputs % TILE or not group or (groups > 1 and columns // groups != group):
        return None
    steps = columns * bits // 32
    words = np.full((outputs // TILE, steps, TILE), flipped * 0x01010101, np.uint32)
    words ^= weights.view(np.uint32).reshape(-1, TILE, steps).transpose(0, 2, 1)
    # Copies: the memory of a graph's constants does not stay.
    scales, zeros = (
        np.array(values.reshape(-1, TILE, groups).transpose(0, 2, 1), order="C")
        for values in (scales, zeros)
    )
    pointers = [array.ctypes.data for array in (words, scales, zeros)]
    sizes = columns, columns // group, group * bits // 32
    between_groups = TILE if groups > 1 else 0  # from the scales of one to those of the next
    code = BITS.index(bits) * ROWS
    numbers = *sizes, between_groups, groups * TILE, outputs, code
    description = np.array([*pointers, *numbers], np.int64)
    content = words, scales, zeros, description
    return Matrix(columns, bits, group, description.ctypes.data, content)
