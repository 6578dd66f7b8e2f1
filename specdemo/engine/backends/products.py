"""Changes the matrix products of a decoder's graph before it is compiled: joins small ones that
share their input, and splits those whose sums depend on how many tokens run together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce

import numpy as np
import openvino as ov
from openvino import opset13 as ops

FUSED_BYTES = 4 << 20  # of weights; joining larger products copies more than it saves

PARTS = (1, 2, 3, 4)
"""Numbers of parts that are tried. Without VNNI the plugin adds 4,096 columns at a time if they are
8,192 at most, but only from five tokens on: two parts round alike."""

COMPARED_ROWS = (4, 2, 3, 5, 8, 16, 64)
"""Rows of the products that are compared, all with the first; other kernels begin at other sizes.
A single row is left to the guard."""


def fuse_products(model: ov.Model) -> None:
    """Join the matrix products of each input (queries, keys and values; the two halves of a gate)
    into one, in place. Sums and their order stay the same, so the bits do too. In a small model the
    start of a product takes as long as the product."""
    sharing = defaultdict(list)
    for product in _products(model):
        source = product.input_value(0)
        sharing[source.get_node().get_name(), source.get_index()].append(product)
    for products in sharing.values():
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


def split_products(core: ov.Core, model: ov.Model, properties: Mapping[str, str]) -> None:
    """Split the products whose sums depend, with these plugin `properties`, on how many tokens run
    together into as few parts as make them independent, in place. Each number of columns is tried
    with the smallest product that has it; what no number of parts makes independent stays whole."""
    by_columns = defaultdict(list)
    for product in _products(model):
        by_columns[product.input_value(1).get_shape()[1]].append(product)
    for columns, products in by_columns.items():
        smallest = min(products, key=lambda product: product.input_value(1).get_shape()[0])
        for parts in PARTS:
            x = ops.parameter([-1, 1, columns], ov.Type.f32)
            tried = _in_parts(x.output(0), smallest.input_value(1), parts)
            if tried is not None and _equal(core, ov.Model([ops.result(tried)], [x]), properties):
                for product in products if parts > 1 else ():
                    split = _in_parts(product.input_value(0), product.input_value(1), parts)
                    if split is not None:
                        product.output(0).replace(split.output(0))
                break
    model.validate_nodes_and_infer_types()


def _in_parts(x: ov.Output, weights: ov.Output, parts: int) -> ov.Node | None:
    """The product of `x` and `weights` [rows, columns] as a sum of products of so many equal parts
    of the columns; None if the columns cannot be divided like this."""
    product = partial(ops.matmul, transpose_a=False, transpose_b=True)
    if parts == 1:
        return product(x, weights)
    node, columns = weights.get_node(), weights.get_shape()[1]
    cuts = [rebuilt([node], partial(_columns, part=part, parts=parts)) for part in range(parts)]
    if columns % parts or None in cuts:
        return None
    pieces = ops.variadic_split(x, ops.constant(np.int64(-1)), [columns // parts] * parts)
    return reduce(ops.add, map(product, pieces.outputs(), cuts))


def _columns(tensors: list[ov.Tensor], part: int, parts: int) -> ov.Node | None:
    """Part `part` of the columns of a tensor [rows, columns] or [rows, groups, group]; scales of
    whole rows stay."""
    [tensor] = tensors
    rows, columns, *rest = tensor.shape
    if columns == 1 and rest in ([], [1]):
        part, parts = 0, 1
    content = raw_bytes(tensor).reshape(rows, -1)
    width, left = divmod(content.shape[1], parts)
    if columns % parts or left:
        return None
    # A copy: a constant of this tensor itself would not keep its memory.
    cut = ov.Tensor(tensor.element_type, ov.Shape([rows, columns // parts, *rest]))
    raw_bytes(cut)[:] = content[:, part * width : (part + 1) * width].reshape(-1)
    return ops.constant(cut)


def _equal(core: ov.Core, product: ov.Model, properties: Mapping[str, str]) -> bool:
    """Whether the rows of a product are bitwise equal for all COMPARED_ROWS."""
    compiled = core.compile_model(product, "CPU", dict(properties))
    columns = product.inputs[0].partial_shape[2].get_length()
    x = np.random.default_rng(0).standard_normal((max(COMPARED_ROWS), 1, columns), np.float32)
    first, *others = (compiled([x[:rows]])[0][:, 0].copy() for rows in COMPARED_ROWS)
    return all(np.array_equal(first[: len(rows)], rows[: len(first)]) for rows in others)


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
