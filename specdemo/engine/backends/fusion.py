"""Finds what can be computed together with a decoder's products of compressed weights: the sums,
norms and gates between them. Between two attentions all of that is one segment."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any

import numpy as np
import openvino as ov

from .attention import BLOCKS, Attention, key_of, rotation, source_of_view, token_width
from .graph import integer, source_of
from .tiles import BITS, LANES, TILE, Matrix, Weights

ROUNDINGS = tuple(f"Round{bits}" for bits in BITS)
NORMS = ("Normalize", "Standardize")  # by the root of the mean square, without or less the mean
GATES = ("Swish", "Gelu", "ErfGelu", "Relu", "Square")
REALS = (ov.Type.f16, ov.Type.f32, ov.Type.f64)  # that NumPy has too
JOBS = ("MatMul", "Attend", *ROUNDINGS, *GATES, "LogSumExp")
OPERATIONS = (*JOBS, *NORMS, "Add", "Multiply", "Rotate", "Store")
"""Each has a function of this name in the compiled code. Threads share JOBS."""

STEP_SIZE = 7  # numbers of a step in a `Program`


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation whose result `node` gives, of `sources` and perhaps a `constant` (float32
    [width]), `weights` or an `attention`. `covered` has the nodes for which it stands beside
    `node`, by name. `size` values are normalized together, or are a head, of which so many are
    `turned`."""

    operation: str
    node: ov.Node
    sources: list[ov.Output]
    constant: np.ndarray | None = None
    weights: Weights | None = None
    attention: Attention | None = None
    size: int = 0
    turned: int = 0
    epsilon: float = 0.0
    covered: dict[str, ov.Node] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.node.get_name())

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

    @property
    def width(self) -> int:
        return token_width(self.node.output(0))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Steps in their order, what they read from elsewhere, and those that are read elsewhere."""

    steps: list[Step]
    inputs: dict[str, ov.Output]
    outputs: list[Step]


@dataclass
class Program:
    """A segment as the code reads it. A step has the index of its operation, the slots of its
    result and its three operands, a width, and a number: the address of a matrix or an attention,
    the columns of a group, the bits of an epsilon, the size of a head and of its turned part, or by
    how much the row of the second operand grows with each row. In place of a norm's third operand
    is its size. Slots hold addresses of inputs, outputs and constants, and of registers with so
    many bytes for each row. Rounded activations are in three registers: values, scales and sums.
    With attention the first three inputs are the layout of the tokens.

    `inputs` are widths, 0 for any; `outputs` shapes, -1 for the dimensions of the first input."""

    inputs: list[int]
    outputs: list[list[int]]
    constants: list[np.ndarray]
    matrices: list[Matrix]
    registers: list[int]
    steps: list[tuple[int, ...]] = field(default_factory=list)


def find_segments(
    model: ov.Model, weights: dict[str, Weights], attentions: dict[str, Attention]
) -> list[Segment]:
    """The segments with products of `weights` or with `attentions` (by the names of the nodes), in
    their order."""
    nodes = model.get_ordered_ops()
    steps = {node.get_name(): _step(node, weights, attentions) for node in nodes}
    inner = set().union(*(step.covered for step in steps.values() if step))
    depths: dict[str, int] = {}  # how often the longest path to a node leaves the steps
    segments = defaultdict(list)
    for node in nodes:
        name = node.get_name()
        if name in inner:
            steps[name] = None
        step = steps[name]
        values = step.sources if step else node.input_values()
        sources = [value.get_node().get_name() for value in values]
        leaves = [step is None and steps[source] is not None for source in sources]
        depths[name] = max(map(add, map(depths.__getitem__, sources), leaves), default=0)
        if step is not None:
            segments[depths[name]].append(step)
    return [
        _bounded(found)
        for found in segments.values()
        if any(step.weights or step.attention for step in found)
    ]


def _bounded(steps: list[Step]) -> Segment:
    inner = {name: node for step in steps for name, node in step.covered.items()}
    inside = {step.name for step in steps} | set(inner)
    while left := {name for name in inside & set(inner) if not _readers(inner[name]) <= inside}:
        inside -= left
    layout = [source for step in steps if step.attention for source in step.attention.layout]
    values = [source for step in steps for source in step.sources]
    sources = {key_of(source): source for source in (*layout, *values)}
    inside -= inner.keys() & sources.keys()
    outputs = [step for step in steps if not _readers(step.node) <= inside]
    inputs = {key: source for key, source in sources.items() if key not in inside}
    return Segment(steps=steps, inputs=inputs, outputs=outputs)


def _readers(node: ov.Node) -> set[str]:
    ports = (port for output in node.outputs() for port in output.get_target_inputs())
    return {port.get_node().get_name() for port in ports}


def write_program(segment: Segment, matrices: dict[str, Matrix]) -> Program:
    """Give every value a slot. A register that is not read any more takes a later result."""
    products = [step.weights for step in segment.steps if step.weights]
    groups = max((weights.columns // weights.group for weights in products), default=0)
    program = Program(
        inputs=[_input_width(source) for source in segment.inputs.values()],
        outputs=[_shape(step.node.output(0)) for step in segment.outputs],
        constants=[step.constant for step in segment.steps if step.constant is not None],
        matrices=[matrices[step.name] for step in segment.steps if step.weights],
        registers=[2 * max((weights.columns for weights in products), default=0)]
        + [4 * groups] * 2,
    )
    slots = {key: slot for slot, key in enumerate(segment.inputs)}
    slots |= {step.name: slot for slot, step in enumerate(segment.outputs, len(slots))}
    constant = len(slots)
    rounded = constant + len(program.constants)
    held = None  # what the registers of rounded activations hold
    free: list[int] = []  # registers that are not read any more
    uses = Counter(key_of(source) for step in segment.steps for source in step.sources)
    for step in segment.steps:
        keys = [key_of(source) for source in step.sources]
        x, width, number = slots[keys[0]], step.width, step.number
        if weights := step.weights:
            number = matrices[step.name].address
            if held != (keys[0], weights.bits, weights.group):
                held = keys[0], weights.bits, weights.group
                rounding = OPERATIONS.index(f"Round{weights.bits}")
                program.steps.append((rounding, 0, x, rounded, 0, weights.columns, weights.group))
        uses.subtract(keys)
        other, third = slots[keys[-1]], 0
        if step.attention:
            store, key, value = OPERATIONS.index("Store"), slots[keys[1]], slots[keys[2]]
            program.steps.append((store, 0, key, value, 0, width, number))
        elif step.operation == "Rotate":
            other, third = slots[keys[1]], slots[keys[2]]
        elif step.operation in NORMS:
            third = step.size
        elif step.weights:
            other = rounded
        elif step.constant is not None:
            other, constant = constant, constant + 1
        ended = [key for key in dict.fromkeys(keys) if not uses[key] and slots[key] > rounded]
        # Attention begins to write before it has read its queries.
        later = [key for key in keys if key != keys[0]]
        early = {"Attend": later, "Rotate": keys[:1]}.get(step.operation, keys)
        free += [slots[key] for key in ended if key in early]
        if step.name not in slots:
            fitting = (slot for slot in free if program.registers[slot - rounded] == 4 * width)
            slots[step.name] = next(fitting, rounded + len(program.registers))
            if slots[step.name] in free:
                free.remove(slots[step.name])
            else:
                program.registers.append(4 * width)
        free += [slots[key] for key in ended if key not in early]
        code = OPERATIONS.index(step.operation)
        program.steps.append((code, slots[step.name], x, other, third, width, number))
    return program


def _shape(output: ov.Output) -> list[int]:
    shape = output.get_partial_shape()
    return [size.get_length() if size.is_static else -1 for size in shape]


def _input_width(output: ov.Output) -> int:
    if len(output.get_partial_shape()) > 1:
        return token_width(output)
    return 0 if output.get_any_name() == BLOCKS else 1


def _step(
    node: ov.Node, weights: dict[str, Weights], attentions: dict[str, Attention]
) -> Step | None:
    """What the code computes in place of `node`; None for other nodes."""
    kind, values, output = node.get_type_name(), node.input_values(), node.output(0)
    step = partial(_of_tokens, kind, node)
    if attention := attentions.get(node.get_name()):
        return _of_tokens("Attend", node, values[:3], attention=attention)
    if output.get_element_type() != ov.Type.f32:
        return None
    if kind == "MatMul":
        found = weights.get(node.get_name())
        fits = found is not None and token_width(values[0]) == found.columns
        return step(values[:1], weights=found) if fits else None
    if turned := rotation(node):
        operands = [turned.x, turned.cosines, turned.sines]
        sizes = {"size": turned.size, "turned": turned.turned}
        return _of_tokens("Rotate", node, operands, turned.covered, **sizes)
    if kind == "Add" and (log_sum := _log_sum(node)):
        return log_sum
    if not token_width(output) or token_width(output) % TILE:
        return None
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
        if kind == "Multiply" and size % TILE == 0 and (norm := _normalization(x, other)):
            epsilon, inner = norm
            return _of_tokens("Normalize", node, [x], inner, size=size, epsilon=epsilon)
        constant = _floats(other)
        if constant is not None and constant.size in (1, constant.shape[-1]):
            row = np.broadcast_to(constant.reshape(-1), size)
            return step([x], constant=np.tile(row, token_width(output) // size))
    return step(values) if all(value.get_partial_shape() == shape for value in values) else None


def _gate(node: ov.Node) -> str:
    """Which of GATES `node` computes of each value; none for other nodes."""
    kind, further = node.get_type_name(), [*map(_number, node.input_values()[1:])]
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


def _of_tokens(
    operation: str,
    node: ov.Node,
    operands: list[ov.Output],
    between: dict[str, ov.Node] | None = None,
    **more: Any,
) -> Step:
    """A step of the outputs of which the operands are views."""
    found = [source_of_view(operand) for operand in operands]
    inner = (between or {}) | {name: view for _, views in found for name, view in views.items()}
    sources = [source for source, _ in found]
    return Step(operation=operation, node=node, sources=sources, covered=inner, **more)


def _normalization(x: ov.Output, factor: ov.Output) -> tuple[float, dict[str, ov.Node]] | None:
    """The epsilon of a factor 1 / sqrt(mean(x ** 2) + epsilon), and its nodes."""
    chain: list[tuple[str | float | None, ...]] = []
    inner = {}
    rows = list(x.get_partial_shape())[:-1]
    if factor.get_partial_shape() != ov.PartialShape([*rows, ov.Dimension(1)]):
        return None  # a mean of other axes than the last
    while key_of(factor) != key_of(x):
        node = factor.get_node()
        varying = [value for value in node.input_values() if not _is_constant(value)]
        if len(varying) != 1 or len(chain) > 4:
            return None
        chain.append((node.get_type_name(), *map(_number, node.input_values())))
        inner[node.get_name()] = node
        [factor] = varying
    match chain:
        case [
            *root,
            ("Add", None, float(epsilon)) | ("Add", float(epsilon), None),
            ("ReduceMean", None, None),
            ("Power", None, 2.0),
        ] if root in ([("Divide", 1.0, None), ("Sqrt", None)], [("Power", None, -0.5)]):
            return epsilon, inner
    return None


def _standardization(node: ov.Node) -> Step | None:
    """(x - mean) / sqrt(variance + epsilon) along the last axis; None for others."""
    x, *axes = node.input_values()
    how, shape = node.get_attributes(), x.get_partial_shape()
    size = shape[-1].get_length()
    if not axes:  # of an early operation set
        return None
    usual = how["normalize_variance"] and how["eps_mode"].upper() == "INSIDE_SQRT"
    if not usual or integer(axes[0]) not in (-1, len(shape) - 1) or size % TILE:
        return None
    return _of_tokens("Standardize", node, [x], size=size, epsilon=how["eps"])


def _log_sum(node: ov.Node) -> Step | None:
    """log(sum(exp(x - max(x)))) + max(x), as `graph.add_log_sums` writes it; None for others."""
    chain = [node]
    for kind in ("Log", "ReduceSum", "Exp", "Subtract"):
        chain.append(chain[-1].input_value(0).get_node())
        if chain[-1].get_type_name() != kind:
            return None
    x, top = chain[-1].input_values()
    largest, size = top.get_node(), token_width(x)
    if not size or size % LANES:
        return None
    *rows, last = x.get_partial_shape()
    per_row = ov.PartialShape([*rows, ov.Dimension(1)])
    if (
        last != size
        or largest.get_type_name() != "ReduceMax"
        or key_of(largest.input_value(0)) != key_of(x)
        or key_of(node.input_value(1)) != key_of(top)
        or any(part.get_output_partial_shape(0) != per_row for part in (node, chain[2], largest))
    ):
        return None
    inner = {value.get_name(): value for value in (*chain[1:], largest)}
    return _of_tokens("LogSumExp", node, [x], inner, size=size)


def _is_constant(output: ov.Output) -> bool:
    return bool(source_of(output.get_node(), "Convert").get_type_name() == "Constant")


def _floats(output: ov.Output) -> np.ndarray | None:
    """The values of a constant, float32 [..., 1 or more]; None for anything else."""
    node = source_of(output.get_node(), "Convert")
    if node.get_type_name() != "Constant" or node.get_element_type() not in REALS:
        return None
    return np.atleast_1d(node.get_tensor_view().data.astype(np.float32))


def _number(output: ov.Output) -> float | None:
    """The value of a constant with one element; None for anything else."""
    values = _floats(output)
    return float(values.reshape(-1)[0]) if values is not None and values.size == 1 else None
