"""Changes the matrix products of a decoder's graph before it is compiled: joins small ones that
share their input, or hands all of compressed weights to `kernels`."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from . import kernels

FUSED_BYTES = 4 << 20  # of weights; joining larger products copies more than it saves


def fuse_products(model: ov.Model) -> None:
    """Join the matrix products of each input (queries, keys and values; the two halves of a gate)
    into one, in place. Sums and their order stay the same, so the bits do too. In a small model the
    start of a product takes as long as the product."""
    for products in _sharing(model):
        weights = [product.input_value(1).get_node() for product in products]
        stacked = rebuilt(weights, _stacked) if len(weights) > 1 else None
        if stacked is None:
            continue
        whole = ops.matmul(products[0].input_value(0), stacked, False, True)
        rows = np.array([weight.get_output_shape(0)[0] for weight in weights])
        parts = ops.variadic_split(whole, ops.constant(np.int64(-1)), ops.constant(rows))
        for part, product in zip(parts.outputs(), products, strict=True):
            product.output(0).replace(part)
    model.validate_nodes_and_infer_types()


class Product(ov.Op):  # type: ignore[misc]
    """The products of an input with `matrices`, an output each, computed by kernels. Of two with
    the same input and `number` the plugin keeps one."""

    numbers = count()

    def __init__(self, inputs: list[ov.Output], matrices: list[kernels.Matrix], number: int):
        super().__init__(self)
        self.matrices, self.number = matrices, number
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        rows = list(self.get_input_partial_shape(0))[:-1]
        self.set_output_size(len(self.matrices))
        for index, matrix in enumerate(self.matrices):
            shape = ov.PartialShape([*rows, ov.Dimension(matrix.outputs)])
            self.set_output_type(index, ov.Type.f32, shape)

    def clone_with_new_inputs(self, inputs: list[ov.Output]) -> ov.Node:
        return Product(inputs, self.matrices, self.number)

    def visit_attributes(self, visitor: Any) -> bool:
        visitor.on_attributes({"number": self.number})
        return True

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        x = inputs[0].data
        rows = x.size // self.matrices[0].columns
        places = [output.data.ctypes.data for output in outputs]
        kernels.shared().multiply(self.matrices, x.ctypes.data, places, rows)
        return True


def use_kernels(model: ov.Model) -> None:
    """Replace the products of compressed weights that kernels compute, in place."""
    for products in _sharing(model):
        alike = defaultdict(list)
        for product in products:
            if (matrix := _packed(product.input_value(1).get_node())) is not None:
                alike[matrix.bits, matrix.group].append((product, matrix))
        for pairs in alike.values():
            source, matrices = products[0].input_value(0), [matrix for _, matrix in pairs]
            made = Product([source], matrices, next(Product.numbers))
            for output, (product, _) in zip(made.outputs(), pairs, strict=True):
                product.output(0).replace(output)
    model.validate_nodes_and_infer_types()


def _packed(node: ov.Node) -> kernels.Matrix | None:
    """The weights of an expression (stored - zero) * scale of constants; None for others."""
    node = _before(node, "Convert", "Reshape")
    if node.get_type_name() != "Multiply":
        return None
    stored, scale = (_before(value.get_node(), "Convert") for value in node.input_values())
    zero = None
    if stored.get_type_name() == "Subtract":
        stored, zero = (_before(value.get_node(), "Convert") for value in stored.input_values())
    constants = [constant for constant in (stored, scale, zero) if constant is not None]
    if any(constant.get_type_name() != "Constant" for constant in constants):
        return None
    kind, rows = stored.get_element_type(), stored.get_output_shape(0)[0]
    groups = int(np.prod(scale.get_output_shape(0))) // rows
    known = {ov.Type.i4: (4, 0x88, 8), ov.Type.u4: (4, 0, 0)}
    known |= {ov.Type.i8: (8, 0, 0), ov.Type.u8: (8, 0x80, -128)}
    if kind not in known or scale.get_element_type() != ov.Type.f16 or not groups:
        return None
    bits, flipped, moved = known[kind]
    raw = raw_bytes(stored.get_tensor_view())
    scales = scale.get_tensor_view().data.reshape(rows, groups)
    zeros = np.zeros(1, np.int16) if zero is None else _integers(zero)
    if zeros is None or raw.size * 8 % (rows * bits) or zeros.size not in (1, rows * groups):
        return None
    zeros = np.broadcast_to(zeros.reshape(-1, groups) if zeros.size > 1 else zeros, scales.shape)
    return kernels.pack(
        raw.reshape(rows, -1), bits, scales, (zeros + moved).astype(np.int8), flipped
    )


def _integers(constant: ov.Node) -> np.ndarray | None:
    """The values of a constant of 4 or 8 bits, int16; None for others."""
    kind, raw = constant.get_element_type(), raw_bytes(constant.get_tensor_view())
    if kind == ov.Type.u4:
        halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)
        return halves[: int(np.prod(constant.get_output_shape(0)))].astype(np.int16)
    if kind in (ov.Type.u8, ov.Type.i8):
        return raw.view(np.int8 if kind == ov.Type.i8 else np.uint8).astype(np.int16)
    return None


def _before(node: ov.Node, *kinds: str) -> ov.Node:
    """The node whose output reaches `node` through nodes of these `kinds`."""
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node


def _sharing(model: ov.Model) -> list[list[ov.Node]]:
    """The products of each input, in order."""
    sharing = defaultdict(list)
    for product in _products(model):
        source = product.input_value(0)
        sharing[source.get_node().get_name(), source.get_index()].append(product)
    return list(sharing.values())


def _products(model: ov.Model) -> Iterable[ov.Node]:
    """The products of activations and weights [rows, columns], in order."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            transposed = node.get_attributes()
            weights = node.get_input_partial_shape(1)
            right = transposed["transpose_b"] and not transposed["transpose_a"]
            if right and weights.is_static and len(weights) == 2:
                yield node


def rebuilt(
    nodes: list[ov.Node], constant: Callable[[list[ov.Tensor]], ov.Node | None]
) -> ov.Node | None:
    """One expression of weights in place of `nodes` of the same form: `constant` makes a constant
    of theirs. So the plugin still sees compressed weights. None for other expressions, and if
    `constant` gives None."""
    kind, *others = {node.get_type_name() for node in nodes}
    if others or kind not in ("Constant", "Convert", "Multiply", "Subtract", "Reshape"):
        return None
    if kind == "Constant":
        return constant([node.get_tensor_view() for node in nodes])
    count = 1 if kind == "Reshape" else None
    inputs = []
    for values in zip(*(node.input_values()[:count] for node in nodes), strict=True):
        made = rebuilt([value.get_node() for value in values], constant)
        if made is None:
            return None
        inputs.append(made)
    if kind == "Convert":
        return ops.convert(inputs[0], nodes[0].get_output_element_type(0).to_string())
    if kind == "Reshape":  # groups of weights that share a scale become rows
        return ops.reshape(inputs[0], [inputs[0].get_output_shape(0)[0], -1], False)
    return (ops.multiply if kind == "Multiply" else ops.subtract)(*inputs)


def _stacked(tensors: list[ov.Tensor]) -> ov.Node | None:
    """Stack tensors [rows, width] along the rows; None if they do not match or are too large."""
    forms = {(str(tensor.element_type), *tensor.shape[1:]) for tensor in tensors}
    if len(forms) > 1 or len(tensors[0].shape) != 2:
        return None
    # A row of 4-bit elements can end inside a byte.
    split = any(tensor.byte_size % tensor.shape[0] for tensor in tensors)
    if split or sum(tensor.byte_size for tensor in tensors) > FUSED_BYTES:
        return None
    shape = [sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]]
    stacked = ov.Tensor(tensors[0].element_type, ov.Shape(shape))
    raw_bytes(stacked)[:] = np.concatenate([raw_bytes(tensor) for tensor in tensors])
    return ops.constant(stacked)


def raw_bytes(tensor: ov.Tensor) -> np.ndarray:
    """A tensor's memory as bytes, uint8 [bytes], whatever its element type."""
    values: np.ndarray = tensor.data
    return values.reshape(-1).view(np.uint8)
