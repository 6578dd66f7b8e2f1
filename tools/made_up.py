"""Made-up weights: models in the shapes of real ones, which cost the same time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import openvino as ov

from specdemo.convert.decoder import Shape, write
from specdemo.convert.weights import FileWeights, compressed, weight_group

SHIFT = 4096  # bytes of noise between the starts of two matrices
STEP = 2.7e-4  # scale of 8-bit weights: standard deviation 0.02, as in a new model


def write_made_up(shape: Shape, bits: int, folder: Path) -> None:
    """Write IR of `shape` with made-up weights of `bits` (8 or 4) into `folder`."""
    largest = shape.hidden * max(shape.vocabulary, shape.inner * bits // 8)
    made_up = MadeUp(7 * shape.layers + 2, largest)
    write(shape, bits, cast(FileWeights, made_up), folder)


class MadeUp:
    """Random weights in the format of the Hub's IR (unsigned integers with a zero point). Every
    matrix is a slice of the same noise, with its own start. So all take the memory of one, and no
    two are equal: OpenVINO would store equal ones once. `largest`: bytes of the largest matrix."""

    output_bits = 8

    def __init__(self, matrices: int, largest: int) -> None:
        self._random = np.random.default_rng(0)
        self._noise = self._random.integers(0, 256, largest + matrices * SHIFT, np.uint8)
        self._used = 0

    def vector(self, _name: str, *shape: int) -> np.ndarray:
        return self._random.normal(1, 0.02, shape).astype(np.float32)

    def matrix(self, _name: str, rows: int, columns: int, bits: int) -> ov.Output:
        data = self._noise[self._used : self._used + rows * columns * bits // 8]
        self._used += SHIFT
        group = weight_group(columns) if bits == 4 else columns
        kind, zero, step = (ov.Type.u8, 128, STEP) if bits == 8 else (ov.Type.u4, 8, 16 * STEP)
        integers = ov.Tensor(data, ov.Shape([rows, columns // group, group]), kind)
        scales = np.full((rows, columns // group, 1), step, np.float16)
        return compressed(integers, scales, np.full(scales.shape, zero, np.uint8))
