"""Finds what can be computed together with a decoder's products of compressed weights: the sums,
norms and gates between them. Between two attentions all of that is one segment."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import add

import numpy as np
import openvino as ov

from .graph import source_of
from .tiles import BITS, TILE, Matrix

ROUNDINGS = tuple(f"Round{bits}" for bits in BITS)
OPERATIONS = (*ROUNDINGS, "MatMul", "Normalize", "Add", "Multiply", "Swish", "Gelu")
"""Each has a function of this name in the compiled code."""

STEP_SIZE = 6  # numbers of a step in a `Program`


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation whose result `node` gives, of `sources` and perhaps a `constant` (float32
    [width]) or a `matrix`. `inner` names the nodes for which it stands beside `node`."""

    operation: str
    node: ov.Node
    sources: list[ov.Output]
    constant: np.ndarray | None = None
    matrix: Matrix | None = None
    epsilon: float = 0.0
    inner: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return str(self.node.get_name())

    @property
    def number(self) -> int:
        """The number that its function takes."""
        if self.matrix:
            return self.matrix.address
        if self.operation == "Normalize":
            return int(np.float32(self.epsilon).view(np.int32))
        return self.width if len(self.sources) > 1 else 0

    @property
    def width(self) -> int:
        return width_of(self.node.output(0))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Steps in their order, what they read from elsewhere, and those that are read elsewhere."""

    steps: list[Step]
    inputs: dict[str, ov.Output]
    outputs: list[Step]


@dataclass
class Program:
    """A segment as the code reads it. A step has the index of its operation, the slots of its
    result and its two operands, a width, and a number: the address of a matrix, the columns of a
    group, the bits of an epsilon, or by how much the row of the second operand grows with each row.
    Slots hold addresses of inputs, outputs and constants, and of registers with so many bytes for
    each row. Rounded activations are in three registers: values, scales and sums."""

    inputs: list[int]
    outputs: list[int]
    constants: list[np.ndarray]
    matrices: list[Matrix]
    registers: list[int]
    steps: list[tuple[int, ...]] = field(default_factory=list)


def width_of(output: ov.Output) -> int:
    return int(output.get_partial_shape()[-1].get_length())


def find_segments(model: ov.Model, matrices: dict[str, Matrix]) -> list[Segment]:
    """The segments with products of `matrices` (by the names of the nodes), in their order."""
    steps: dict[str, Step] = {}
    depths: dict[str, int] = {}  # how often the longest path to a node leaves the steps
    segments = defaultdict(list)
    for node in model.get_ordered_ops():
        name, step = node.get_name(), _step(node, matrices)
        values = step.sources if step else node.input_values()
        sources = [value.get_node().get_name() for value in values]
        leaves = [step is None and source in steps for source in sources]
        depths[name] = max(map(add, map(depths.__getitem__, sources), leaves), default=0)
        if step is not None:
            steps[name] = step
            # Steps with other leading dimensions are not connected with these.
            rows = str(node.get_output_partial_shape(0)).rpartition(",")[0]
            segments[depths[name], rows].append(step)
    return [_bounded(found) for found in segments.values() if any(step.matrix for step in found)]


def _bounded(steps: list[Step]) -> Segment:
    inside = {step.name for step in steps}.union(*(step.inner for step in steps))
    sources = {_key(source): source for step in steps for source in step.sources}
    outputs = []
    for step in steps:
        readers = (port.get_node().get_name() for port in step.node.output(0).get_target_inputs())
        if not inside.issuperset(readers):
            outputs.append(step)
    inputs = {key: source for key, source in sources.items() if key not in inside}
    return Segment(steps=steps, inputs=inputs, outputs=outputs)


def _key(output: ov.Output) -> str:
    """The name of a node, with the index of any but its first output."""
    name, index = output.get_node().get_name(), output.get_index()
    return f"{name}.{index}" if index else name


def write_program(segment: Segment) -> Program:
    """Give every value a slot. A register that is read for the last time takes the result."""
    matrices = [step.matrix for step in segment.steps if step.matrix]
    groups = max(matrix.columns // matrix.group for matrix in matrices)
    program = Program(
        inputs=[width_of(source) for source in segment.inputs.values()],
        outputs=[step.width for step in segment.outputs],
        constants=[step.constant for step in segment.steps if step.constant is not None],
        matrices=matrices,
        registers=[max(matrix.columns for matrix in matrices), 4 * groups, 4 * groups],
    )
    slots = {key: slot for slot, key in enumerate(segment.inputs)}
    slots |= {step.name: slot for slot, step in enumerate(segment.outputs, len(slots))}
    constant = len(slots)
    rounded = constant + len(program.constants)
    held = None  # what the registers of rounded activations hold
    uses = Counter(_key(source) for step in segment.steps for source in step.sources)
    for step in segment.steps:
        keys = [_key(source) for source in step.sources]
        x, width = slots[keys[0]], step.width
        matrix = step.matrix
        if matrix and held != (keys[0], matrix.bits, matrix.group):
            held = keys[0], matrix.bits, matrix.group
            rounding = OPERATIONS.index(f"Round{matrix.bits}")
            program.steps.append((rounding, 0, x, rounded, matrix.columns, matrix.group))
        uses.subtract(keys)
        if step.name not in slots:
            free = (
                slots[key]
                for key, source in zip(keys, step.sources, strict=True)
                if not uses[key] and slots[key] > rounded and width_of(source) == width
            )
            slots[step.name] = next(free, rounded + len(program.registers))
            if slots[step.name] == rounded + len(program.registers):
                program.registers.append(4 * width)
        other = slots[keys[-1]]
        if matrix:
            other = rounded
        elif step.constant is not None:
            other, constant = constant, constant + 1
        code = OPERATIONS.index(step.operation)
        program.steps.append((code, slots[step.name], x, other, width, step.number))
    return program


def _step(node: ov.Node, matrices: dict[str, Matrix]) -> Step | None:
    """What the code computes in place of `node`; None for other nodes."""
    kind, values = node.get_type_name(), node.input_values()
    step = partial(Step, operation=kind, node=node)
    if kind == "MatMul":
        matrix = matrices.get(node.get_name())
        return step(sources=values[:1], matrix=matrix) if matrix else None
    if kind not in OPERATIONS or node.get_output_element_type(0) != ov.Type.f32:
        return None
    shape = node.get_output_partial_shape(0)
    if (
        shape.rank.is_dynamic
        or len(shape) < 2
        or shape[-1].is_dynamic
        or width_of(node.output(0)) % TILE
    ):
        return None
    if kind == "Gelu":
        tanh = node.get_attributes()["approximation_mode"].upper() == "TANH"
        return step(sources=values) if tanh else None
    if kind == "Swish":
        return step(sources=values[:1]) if [*map(_number, values[1:])] in ([], [1.0]) else None
    for x, other in (values, values[::-1]):
        if x.get_partial_shape() != shape:
            continue
        if kind == "Multiply" and (normalization := _normalization(x, other)):
            epsilon, inner = normalization
            return step(operation="Normalize", sources=[x], epsilon=epsilon, inner=inner)
        constant = _floats(other)
        if constant is not None and constant.size in (1, constant.shape[-1]):
            row = np.broadcast_to(constant.reshape(-1), width_of(node.output(0)))
            return step(sources=[x], constant=np.array(row))
    alike = all(value.get_partial_shape() == shape for value in values)
    return step(sources=values) if alike else None


def _normalization(x: ov.Output, factor: ov.Output) -> tuple[float, frozenset[str]] | None:
    """The epsilon of a factor 1 / sqrt(mean(x ** 2) + epsilon), and the names of its nodes."""
    chain: list[tuple[str | float | None, ...]] = []
    inner = set()
    rows = list(x.get_partial_shape())[:-1]
    if factor.get_partial_shape() != ov.PartialShape([*rows, ov.Dimension(1)]):
        return None  # a mean of other axes than the last
    while _key(factor) != _key(x):
        node = factor.get_node()
        varying = [value for value in node.input_values() if not _is_constant(value)]
        if len(varying) != 1 or len(chain) > 4:
            return None
        chain.append((node.get_type_name(), *map(_number, node.input_values())))
        inner.add(node.get_name())
        [factor] = varying
    match chain:
        case [
            *root,
            ("Add", None, float(epsilon)) | ("Add", float(epsilon), None),
            ("ReduceMean", None, None),
            ("Power", None, 2.0),
        ] if root in ([("Divide", 1.0, None), ("Sqrt", None)], [("Power", None, -0.5)]):
            return epsilon, frozenset(inner)
    return None


def _is_constant(output: ov.Output) -> bool:
    return bool(source_of(output.get_node(), "Convert").get_type_name() == "Constant")


def _floats(output: ov.Output) -> np.ndarray | None:
    """The values of a constant, float32 [..., 1 or more]; None for anything else."""
    node = source_of(output.get_node(), "Convert")
    if node.get_type_name() != "Constant" or not node.get_element_type().is_real():
        return None
    return np.atleast_1d(node.get_tensor_view().data.astype(np.float32))


def _number(output: ov.Output) -> float | None:
    """The value of a constant with one element; None for anything else."""
    values = _floats(output)
    return float(values.reshape(-1)[0]) if values is not None and values.size == 1 else None
