"""What is done to a decoder's graph before it is compiled: paged attention, a head that computes
only what is asked for, and small products that share their input joined to one.

Knows numpy and OpenVINO only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from .errors import ModelError, NoPagedAttention

JOINED_BYTES = 4 << 20
"""Of weights, that products are joined up to: beyond it a product takes so long that starting it
does not matter, and the joined weights would be a second copy of what else is read from the file.
"""

ROWS_INPUT = "logits_rows"
"""Name of the added input (int32 [rows]): which of the run tokens the head computes logits for."""

HIDDEN = "hidden"
"""Name of the added output of hidden states."""


def to_paged(
    model: ov.Model,
    head_tokens: np.ndarray | None = None,
    hidden: tuple[float, ...] | None = None,
) -> None:
    """Turn a stateful decoder IR into a paged one, in place, whose head computes only the rows
    asked for and whose small products are joined; with `hidden` as `add_hidden` does.

    Raises ModelError when the graph is not a decoder with scaled dot-product attention and a
    language-model head.
    """
    try:
        paged_attention_transformation(model, False, False)
    except RuntimeError as error:
        raise NoPagedAttention(
            f"the IR cannot be turned to paged attention: {last_line(error)}"
        ) from error
    shape_head(model, head_tokens, 0)
    if hidden is not None:
        add_hidden(model, hidden)
    join_products(model)


def add_hidden(model: ov.Model, fractions: tuple[float, ...] = ()) -> None:
    """Let a decoder whose head was shaped give the hidden states of the rows of logits as one more
    output HIDDEN (float32 [rows, H]): what its head reads, and behind it the residual stream at
    these fractions of its additions.

    Raises ModelError when the graph has no residual stream.
    """
    gather = _head(model).input_value(0).get_node()
    width = gather.get_output_partial_shape(0)[-1]
    parts = [gather]
    if fractions:
        stream = _residual_stream(model, width)
        additions = [stream[max(round(share * len(stream)), 1) - 1] for share in fractions]
        rows, axis = gather.input_value(1), gather.input_value(2)
        parts += [ops.gather(one.output(0), rows, axis) for one in additions]
    shape = ops.constant(np.array([-1, width.get_length()]))
    flat = [ops.reshape(ops.convert(part.output(0), "f32"), shape, False) for part in parts]
    hidden = ops.concat(flat, -1)
    hidden.output(0).get_tensor().set_names({HIDDEN})
    model.add_results([ops.result(hidden.output(0))])
    model.validate_nodes_and_infer_types()


def _residual_stream(model: ov.Model, width: ov.Dimension) -> list[ov.Node]:
    """The additions of a decoder's residual stream, in order: the longest chain of sums of two
    activations of this width."""
    chains: dict[str, list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        shape = node.get_output_partial_shape(0) if node.get_type_name() == "Add" else []
        if len(shape) != 3 or shape[-1] != width:
            continue
        sources = [_through_casts(value) for value in node.input_values()]
        if all(source.get_type_name() != "Constant" for source in sources):
            before = [chains.get(source.get_name(), []) for source in sources]
            chains[node.get_name()] = [*max(before, key=len), node]
    if not chains:
        raise ModelError("The IR has no residual stream, which this draft head reads.")
    return max(chains.values(), key=len)


def _through_casts(value: ov.Output) -> ov.Node:
    node = value.get_node()
    while node.get_type_name() in ("Reshape", "Convert", "Squeeze", "Unsqueeze"):
        node = node.input_value(0).get_node()
    return node


def read_decoder(core: ov.Core, xml: Path | str) -> ov.Model:
    """The IR in `xml`. Raises ModelError for what is no IR, or not one of a decoder that keeps its
    own KV cache."""
    try:
        model = core.read_model(str(xml))
    except RuntimeError as error:
        raise ModelError(
            f"{Path(xml).name} is not a readable OpenVINO model; fetch or export it again."
        ) from error
    names = {name for port in model.inputs for name in port.names}
    if "input_ids" not in names or not model.get_sinks():
        raise ModelError(
            "The IR is not a stateful decoder: it needs input_ids and a KV cache as state."
        )
    return model


def kept_tokens(
    model: ov.Model, head_tokens: np.ndarray | None, vocabulary: int | None
) -> np.ndarray | None:
    """The ids that the head is trimmed to, None for all: `head_tokens`, else those below
    `vocabulary`."""
    if head_tokens is None and vocabulary is not None and _head_size(model) > vocabulary:
        return np.arange(vocabulary)
    return head_tokens


def join_products(model: ov.Model) -> int:
    """Make matrix products of the same input (queries, keys and values; the two halves of a gate)
    one product each, in place; gives how many. The same sums in the same order, so the same bits.

    For a small model starting a product on all threads takes as long as the product.
    """
    sharing = defaultdict(list)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _rows_times_weights(node):
            source = node.input_value(0)
            sharing[source.get_node().get_name(), source.get_index()].append(node)
    joined = 0
    for products in sharing.values():
        if len(products) < 2:
            continue
        try:
            weights = _rebuilt([product.input_value(1) for product in products], _stacked)
        except ModelError:  # not stored alike, or too many
            continue
        together = ops.matmul(products[0].input_value(0), weights, False, True)
        sizes = [product.input_value(1).get_partial_shape()[0].get_length() for product in products]
        parts = ops.variadic_split(
            together, ops.constant(np.int64(-1)), ops.constant(np.array(sizes, np.int64))
        )
        for part, product in zip(parts.outputs(), products, strict=True):
            for reader in product.output(0).get_target_inputs():
                reader.replace_source_output(part)
        joined += 1
    model.validate_nodes_and_infer_types()
    return joined


def _rows_times_weights(product: ov.Node) -> bool:
    """Whether it multiplies by weights [outputs, inputs], few enough to be joined."""
    flags, weights = product.get_attributes(), product.input_value(1).get_partial_shape()
    if flags["transpose_a"] or not flags["transpose_b"] or weights.is_dynamic or len(weights) != 2:
        return False
    return weights[0].get_length() * weights[1].get_length() <= JOINED_BYTES


def _rebuilt(weights: list[ov.Output], combine: Callable[[list[ov.Node]], ov.Output]) -> ov.Output:
    """One expression in place of several alike (constant, zero point, scale, converts), as it
    stands but for its constants, which `combine` makes one: so the plugin still sees compressed
    weights. Raises ModelError for expressions that it does not know or that differ."""
    nodes = [output.get_node() for output in weights]
    kind = nodes[0].get_type_name()
    if any(node.get_type_name() != kind for node in nodes):
        raise ModelError("The weights are not stored alike.")
    if kind == "Constant":
        return combine(nodes)
    if kind not in ("Convert", "Reshape", "Multiply", "Subtract"):
        raise ModelError(f"The weights pass through a {kind}.")
    inputs = [
        _rebuilt(list(values), combine)
        for values in zip(*(node.input_values() for node in nodes), strict=True)
    ]
    if kind == "Convert":
        return ops.convert(inputs[0], nodes[0].get_output_element_type(0).to_string()).output(0)
    if kind == "Reshape":
        return ops.reshape(inputs[0], inputs[1], False).output(0)
    return {"Multiply": ops.multiply, "Subtract": ops.subtract}[kind](*inputs).output(0)


def _stacked(constants: list[ov.Node]) -> ov.Output:
    """Constants [rows, width] of one type, one below the other."""
    kinds = {str(constant.get_output_element_type(0)) for constant in constants}
    shapes = [list(constant.get_output_shape(0)) for constant in constants]
    memories = [raw_bytes(constant.get_tensor_view()) for constant in constants]
    widths = {tuple(shape[1:]) for shape in shapes}
    whole = all(memory.size % shape[0] == 0 for shape, memory in zip(shapes, memories, strict=True))
    size = sum(memory.size for memory in memories)
    if len(kinds) > 1 or len(widths) > 1 or len(shapes[0]) != 2 or not whole or size > JOINED_BYTES:
        raise ModelError("The weights are not stored alike, or too many.")
    rows = sum(shape[0] for shape in shapes)
    return _constant(constants[0], rows, np.concatenate(memories))


def _constant(like: ov.Node, rows: int, memory: np.ndarray) -> ov.Output:
    """A constant like another one but for its number of rows and its bytes."""
    shape = [rows, *list(like.get_output_shape(0))[1:]]
    tensor = ov.Tensor(like.get_output_element_type(0), ov.Shape(shape))
    raw_bytes(tensor)[:] = memory.reshape(-1)
    return ops.constant(tensor).output(0)


def shape_head(model: ov.Model, head_tokens: np.ndarray | None, axis: int) -> None:
    """Let a decoder's head compute only `head_tokens` (all if None) and the rows named by the new
    input ROWS_INPUT, which lie along `axis` of the hidden states; adds their log-sum-exp as an
    output."""
    head = _head(model)
    if head_tokens is not None:
        _trim_head(model, head, head_tokens)
        model.validate_nodes_and_infer_types()
    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS_INPUT)
    rows.output(0).get_tensor().set_names({ROWS_INPUT})
    head.input(0).replace_source_output(
        ops.gather(head.input_value(0), rows, ops.constant(axis)).output(0)
    )
    model.add_parameters([rows])
    add_log_sums(model)


def add_log_sums(model: ov.Model) -> None:
    """Add the log-sum-exp of each row of logits, which are the first output, as an output."""
    logits = model.get_results()[0].input_value(0)
    last = ops.constant([-1])
    top = ops.reduce_max(logits, last, True)
    total = ops.reduce_sum(ops.exp(ops.subtract(logits, top)), last, True)
    model.add_results([ops.result(ops.add(ops.log(total), top).output(0))])
    model.validate_nodes_and_infer_types()


def _head(model: ov.Model) -> ov.Node:
    """The last MatMul before the logits."""
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        if not node.get_input_size():
            raise ModelError(
                "The IR has no language-model head: no matrix product leads to its logits."
            )
        node = node.input_value(0).get_node()
    return node


def _head_size(model: ov.Model) -> int:
    size = model.outputs[0].partial_shape[-1]
    return size.get_length() if size.is_static else 0


def _trim_head(model: ov.Model, head: ov.Node, tokens: np.ndarray) -> None:
    """Keep the logits of `tokens` only: by rows of the head's weights, which makes it that much
    cheaper, or where the weights are stored in a way that cannot be cut, by picking columns of its
    result."""
    size = head.input_value(1).get_partial_shape()[0].get_length()

    def cut(constants: list[ov.Node]) -> ov.Output:
        [constant] = constants
        shape = list(constant.get_output_shape(0))
        if constant.get_output_element_type(0) == ov.Type.i64:  # what a Reshape makes of them
            wanted = constant.get_data().copy()
            wanted[wanted == size] = len(tokens)
            return ops.constant(wanted).output(0)
        if shape[:1] != [size]:
            return constant.output(0)
        raw = raw_bytes(constant.get_tensor_view())
        if raw.size % size:
            raise ModelError("The head's rows do not end on whole bytes and cannot be trimmed.")
        return _constant(constant, len(tokens), raw.reshape(size, -1)[tokens])

    try:
        head.input(1).replace_source_output(_rebuilt([head.input_value(1)], cut))
    except ModelError:
        result = model.get_results()[0]
        picked = ops.gather(
            result.input_value(0), ops.constant(tokens.astype(np.int32)), ops.constant(-1)
        )
        result.input(0).replace_source_output(picked.output(0))


def raw_bytes(tensor: ov.Tensor) -> np.ndarray:
    """A tensor's memory as bytes, uint8 [bytes], whatever its element type."""
    return tensor.data.reshape(-1).view(np.uint8)


def last_line(error: BaseException) -> str:
    """The end of an OpenVINO error, where it says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
