"""The optimizer Muon (K. Jordan, 2024), for matrices.

torch's own multiplies in bfloat16 on every device. A processor without it emulates that: on AVX2 a
step for the embedded target's head then took 80 s instead of 2 (two cores, beside other work).
"""

from collections.abc import Sequence
from typing import Any

import torch

MOMENTUM, DECAY = 0.95, 0.01
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the iteration, the steepest at zero
ITERATIONS = 5


class Muon:
    """Updates `parameters`, float32 matrices, by their gradients, with products in `kind`. Updates
    have the size of AdamW's, so that learning rates are those of AdamW."""

    def __init__(self, parameters: Sequence[torch.Tensor], kind: torch.dtype) -> None:
        self._parameters, self._kind = parameters, kind
        self.momenta = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
    def step(self, rate: float) -> None:
        """One update, after which the gradients are gone."""
        for parameter, momentum in zip(self._parameters, self.momenta, strict=True):
            gradient: Any = parameter.grad
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MOMENTUM).to(self._kind))
            parameter.mul_(1 - rate * DECAY)
            parameter.add_(update, alpha=-rate * 0.2 * max(parameter.shape) ** 0.5)
            parameter.grad = None


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearly orthogonal matrix that is closest to `matrix`, by Newton-Schulz iterations: its
    singular values are all about one."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    one, three, five = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = matrix @ matrix.T
        matrix = one * matrix + (three * square + five * square @ square) @ matrix
    return matrix
