"""Change the weight format of a decoder IR: 8-bit integers with one scale a row, from whatever it was stored as.

Verifying a draft runs a few rows at once, and on processors without dot-product instructions for small integers the
time of such a forward goes into unpacking weights: rows of plain int8 unpack fastest (docs/reference/numerics.md has the table).
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def to_int8_rows(model: ov.Model) -> int:
    """Store every compressed matrix of `model` as int8 [rows, columns] with a float16 scale a row, symmetric, in place.

    A compressed matrix is a constant expression of two dimensions that ends in a Convert to float32. Each is rounded
    to within half a step of 1/127 of its row's largest weight. Returns how many were changed.
    """
    matrices = [node for node in model.get_ordered_ops() if _is_compressed_matrix(node)]
    for begin in range(0, len(matrices), _AT_ONCE):
        nodes = matrices[begin : begin + _AT_ONCE]
        for node, weights in zip(nodes, _evaluate(nodes), strict=True):
            replacement = _int8_rows(weights)
            for target in list(node.output(0).get_target_inputs()):
                if target.get_node().get_type_name() != "Result":
                    target.replace_source_output(replacement)
    model.validate_nodes_and_infer_types()
    return len(matrices)


_AT_ONCE = 32
"""Matrices unpacked together: compiling costs more than unpacking, and all at once would need 4 bytes a weight."""


def _int8_rows(weights: np.ndarray) -> ov.Output:
    scale = np.abs(weights).max(axis=1, keepdims=True).astype(np.float16) / np.float16(127)
    scale[scale == 0] = 1
    rounded = np.clip(np.rint(weights / scale.astype(np.float32)), -127, 127).astype(np.int8)
    unpacked = ops.multiply(ops.convert(ops.constant(rounded), "f16"), ops.constant(scale))
    return ops.convert(unpacked, "f32").output(0)


def _is_compressed_matrix(node: ov.Node) -> bool:
    if node.get_type_name() != "Convert":
        return False
    shape = node.get_output_partial_shape(0)
    if shape.rank.is_dynamic or shape.rank.get_length() != 2 or node.get_output_element_type(0) != ov.Type.f32:
        return False
    pending, compressed = [node], False
    while pending:
        at = pending.pop()
        if at.get_type_name() == "Constant":
            compressed |= at.get_output_element_type(0).is_integral() and len(at.get_output_shape(0)) > 1
        elif not at.get_input_size():
            return False
        else:
            pending += [value.get_node() for value in at.input_values()]
    return compressed


def _evaluate(nodes: list[ov.Node]) -> list[np.ndarray]:
    """The values of constant expressions, float32."""
    expressions = ov.Model([ops.result(node.output(0)) for node in nodes], [], "weights")
    values = ov.Core().compile_model(expressions, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})()
    return [values[index].copy() for index in range(len(nodes))]
