"""Finds the steps with which kernels compute a model: products of compressed weights, and the
attention, sums, norms and gates between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import openvino as ov

from .attention import (
    ATTENTION,
    Attention,
    attention_of,
    key_of,
    rotation,
    source_of_view,
    token_width,
)
from .graph import ROWS_INPUT, is_product, number, raw_bytes, source_of
from .tiles import BITS, TILE, Weights

ROUNDINGS = tuple(f"Round{bits}" for bits in BITS)
NORMS = ("Normalize", "Standardize")  # by the root of the mean square, without or less the mean
GATES = ("Swish", "Gelu", "ErfGelu", "Relu", "Square")
JOBS = ("MatMul", "Attend", *ROUNDINGS, *GATES, "LogSumExp")
OPERATIONS = (*JOBS, *NORMS, "Add", "Multiply", "Rotate", "Store", "Choose")
"""Each has a function of this name in the compiled code. Threads share JOBS."""

FORMS = {
    ov.Type.i4: (4, 0x88, 8),
    ov.Type.u4: (4, 0, 0),
    ov.Type.i8: (8, 0, 0),
    ov.Type.u8: (8, 0x80, -128),
}
"""Bits of a stored weight, those to flip in every byte so that 4 bits have no sign and 8 bits have
one, and what that adds to a zero point."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation, which gives float32 [tokens, width]."""

    operation: str
    key: str  # of the value that it gives
    width: int
    sources: list[ov.Output]
    constant: np.ndarray | None = None  # float32 [width]
    weights: Weights | None = None
    attention: Attention | None = None
    size: int = 0  # values that are normalized or summed together, or of a head
    turned: int = 0  # by rotary positions, of a head
    epsilon: float = 0.0

    @property
    def number(self) -> int:
        """The number that its function takes, but for a product."""
        if self.attention:
            return int(self.attention.description.ctypes.data)
        if self.operation == "LogSumExp":
            return self.size
        if self.operation in NORMS:
            return int(np.float32(self.epsilon).view(np.int32))
        if self.operation == "Rotate":
            return self.turned << 32 | self.size
        return self.width if len(self.sources) > 1 else 0


def find_steps(model: ov.Model, wanted: Iterable[ov.Output]) -> tuple[list[Step], list[ov.Output]]:
    """The steps that compute the `wanted` outputs, in their order, those of chosen rows last; and
    the outputs from which they begin, which no step computes."""
    needed = {key_of(output) for output in wanted}
    steps: list[Step] = []
    inputs = []
    for node in reversed(model.get_ordered_ops()):
        for output in node.outputs():
            if key_of(output) not in needed:
                continue
            if output.get_index() or (step := _step(node)) is None:
                inputs.append(output)
            else:
                steps.append(step)
                needed.update(map(key_of, step.sources))
    steps.reverse()
    chosen: set[str] = set()
    for step in steps:
        if step.operation == "Choose" or not chosen.isdisjoint(map(key_of, step.sources)):
            chosen.add(step.key)
    return sorted(steps, key=lambda step: step.key in chosen), inputs


def _step(node: ov.Node) -> Step | None:
    """What the code computes in place of `node`; None for other nodes."""
    kind, values, output = node.get_type_name(), node.input_values(), node.output(0)
    step = partial(_of_tokens, kind, node)
    if kind == ATTENTION:
        if (attention := attention_of(node)) is None:
            return None
        return _of_tokens("Attend", node, values[:3], attention=attention)
    if output.get_element_type() != ov.Type.f32:
        return None
    if kind == "Gather" and values[1].get_node().get_friendly_name() == ROWS_INPUT:
        return _of_tokens("Choose", node, values[:1])
    if kind == "MatMul":
        if not is_product(node) or not (weights := _weights(values[1].get_node())):
            return None
        fits = weights.group and token_width(values[0]) == weights.columns
        return step(values[:1], weights=weights) if fits else None
    if not token_width(output) or token_width(output) % TILE:
        return None
    if found := rotation(node):
        operands, size, turned = found
        return _of_tokens("Rotate", node, operands, size=size, turned=turned)
    if kind == "MVN":
        return _standardization(node)
    if gate := _gate(node):
        return _of_tokens(gate, node, values[:1])
    if kind not in ("Add", "Multiply"):
        return None
    shape = output.get_partial_shape()
    size = shape[-1].get_length()
    for x, other in (values, values[::-1]):
        if x.get_partial_shape() != shape:
            continue
        epsilon = _normalization(x, other) if kind == "Multiply" and size % TILE == 0 else None
        if epsilon is not None:
            return _of_tokens("Normalize", node, [x], size=size, epsilon=epsilon)
        constant = _floats(other)
        if constant is not None and constant.size in (1, constant.shape[-1]):
            row = np.broadcast_to(constant.reshape(-1), size)
            return step([x], constant=np.tile(row, token_width(output) // size))
    return step(values) if all(value.get_partial_shape() == shape for value in values) else None


def _gate(node: ov.Node) -> str:
    """Which of GATES `node` computes of each value; none for other nodes."""
    kind, further = node.get_type_name(), [*map(number, node.input_values()[1:])]
    shapes = [value.get_partial_shape() for value in (*node.input_values()[:1], node.output(0))]
    if shapes[0] != shapes[-1]:
        return ""  # an exponent of more axes
    if kind == "Gelu":
        tanh = node.get_attributes()["approximation_mode"].upper() == "TANH"
        return "Gelu" if tanh else "ErfGelu"
    if kind == "Power":
        return "Square" if further == [2.0] else ""
    known = kind == "Relu" or (kind == "Swish" and further in ([], [1.0]))
    return kind if known else ""


def _of_tokens(operation: str, node: ov.Node, operands: list[ov.Output], **more: Any) -> Step:
    """A step of the outputs of which the operands are views."""
    width, sources = token_width(node.output(0)), [*map(source_of_view, operands)]
    return Step(operation=operation, key=node.get_name(), width=width, sources=sources, **more)


def _normalization(x: ov.Output, factor: ov.Output) -> float | None:
    """The epsilon of a factor 1 / sqrt(mean(x ** 2) + epsilon); None for others."""
    chain: list[tuple[str | float | None, ...]] = []
    rows = list(x.get_partial_shape())[:-1]
    if factor.get_partial_shape() != ov.PartialShape([*rows, ov.Dimension(1)]):
        return None  # a mean of other axes than the last
    while key_of(factor) != key_of(x):
        node = factor.get_node()
        values = node.input_values()
        numbers = [*map(number, values)]
        if numbers.count(None) != 1 or len(chain) > 4:
            return None
        chain.append((node.get_type_name(), *numbers))
        factor = values[numbers.index(None)]
    match chain:
        case [
            *root,
            ("Add", None, float(epsilon)) | ("Add", float(epsilon), None),
            ("ReduceMean", None, _),
            ("Power", None, 2.0),
        ] if root in ([("Divide", 1.0, None), ("Sqrt", None)], [("Power", None, -0.5)]):
            return epsilon
    return None


def _standardization(node: ov.Node) -> Step | None:
    """(x - mean) / sqrt(variance + epsilon) along the last axis; None for others."""
    x, *axes = node.input_values()
    how, shape = node.get_attributes(), x.get_partial_shape()
    size = shape[-1].get_length()
    if not axes:  # of an early operation set
        return None
    usual = how["normalize_variance"] and how["eps_mode"].upper() == "INSIDE_SQRT"
    if not usual or number(axes[0]) not in (-1, len(shape) - 1) or size % TILE:
        return None
    return _of_tokens("Standardize", node, [x], size=size, epsilon=how["eps"])


def _floats(output: ov.Output) -> np.ndarray | None:
    """The values of a constant, float32 [..., 1 or more]; None for anything else."""
    node = source_of(output.get_node(), "Convert")
    if node.get_type_name() != "Constant":
        return None
    return np.atleast_1d(node.get_data(dtype=np.float32))


def _weights(node: ov.Node) -> Weights | None:
    """The weights of an expression (stored - zero) * scale of constants; None for others."""
    node = source_of(node, "Convert", "Reshape")
    if node.get_type_name() != "Multiply":
        return None
    stored, scale = (source_of(value.get_node(), "Convert") for value in node.input_values())
    zero = None
    if stored.get_type_name() == "Subtract":
        stored, zero = (source_of(value.get_node(), "Convert") for value in stored.input_values())
    constants = [constant for constant in (stored, scale, zero) if constant is not None]
    if any(constant.get_type_name() != "Constant" for constant in constants):
        return None
    shape, form = list(stored.get_output_shape(0)), FORMS.get(stored.get_element_type())
    if form is None or len(shape) < 2 or 0 in shape:
        return None
    *groups, _ = shape
    per_group = [*groups, 1]
    # Scales of each column may be as many as those of each group.
    if list(scale.get_output_shape(0)) != per_group:
        return None
    if scale.get_element_type() != ov.Type.f16:
        return None
    (bits, flipped, moved), rows = form, groups[0]
    raw = raw_bytes(stored.get_tensor_view())
    scales = scale.get_tensor_view().data.reshape(rows, -1)
    zeros = np.zeros(1, np.float32) if zero is None else zero.get_data(dtype=np.float32)
    if raw.size * 8 % (rows * bits):
        return None
    if zero is not None and zeros.size > 1 and list(zero.get_output_shape(0)) != per_group:
        return None
    zeros = zeros + moved
    halves = zeros.astype(np.float16)
    if not np.array_equal(halves, zeros) or not np.isfinite(halves).all():
        return None
    halves = np.broadcast_to(halves.reshape(rows, -1) if halves.size > 1 else halves, scales.shape)
    return Weights(raw.reshape(rows, -1), bits, scales, halves, flipped)
