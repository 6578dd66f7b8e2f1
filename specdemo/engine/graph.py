"""What is done to a decoder's graph before it is compiled: paged attention, a head that computes
only what is asked for, and small products that share their input joined to one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from .errors import ModelError

JOINED_BYTES = 4 << 20
"""Of weights, that products are joined up to: beyond it a product takes so long that starting it
does not matter, and the joined weights would be a second copy of what else is read from the file.
"""

ROWS_INPUT = "logits_rows"
"""Name of the added input (int32 [rows]): which of the run tokens the head computes logits for."""

HIDDEN = "hidden"
"""Name of the added output of hidden states."""


def to_paged(model: ov.Model, vocabulary: int | None, hidden: tuple[float, ...] | None) -> None:
    """Turn a stateful decoder IR into a paged one, in place, with `shape_head`, `add_hidden` and
    `join_products`. Raises ModelError when the graph is not a decoder with scaled dot-product
    attention and a language-model head."""
    try:
        paged_attention_transformation(model, False, False)
    except RuntimeError as error:
        raise ModelError(
            "The IR has no attention that runs over a paged KV cache; export the model again: "
            f"{last_line(error)}"
        ) from error
    shape_head(model, vocabulary, 0)
    if hidden is not None:
        add_hidden(model, hidden)
    join_products(model)


def with_fixed_shape(model: ov.Model, tokens: int) -> ov.Model:
    """A copy of a paged decoder for forwards of `tokens` sub-sequences of one token each and an
    empty one, all rows wanted. Its weights are the same memory."""
    sizes = {"past_lens": tokens + 1, "subsequence_begins": tokens + 2}
    sizes |= {"block_indices_begins": tokens + 2}
    sizes |= dict.fromkeys(("input_ids", "position_ids", ROWS_INPUT), tokens)
    fixed = model.clone()
    fixed.reshape({name: ov.PartialShape([size]) for name, size in sizes.items()})
    return fixed


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
    """The IR in `xml`. Raises ModelError for what is none."""
    try:
        return core.read_model(str(xml))
    except RuntimeError as error:
        raise ModelError(
            f"{Path(xml).name} is not a readable OpenVINO model; fetch or export it again."
        ) from error


def join_products(model: ov.Model) -> int:
    """Make matrix products of the same input (queries, keys and values; the two halves of a gate)
    one product each, in place; gives how many. The same sums in the same order, so the same bits.
    For a small model starting a product on all threads takes as long as the product."""
    sharing = defaultdict(list)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _rows_times_weights(node):
            source = node.input_value(0)
            sharing[source.get_node().get_name(), source.get_index()].append(node)
    joined = 0
    for products in filter(lambda one: len(one) > 1, sharing.values()):
        weights = _joined([product.input_value(1).get_node() for product in products])
        if weights is None:
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


def _joined(weights: list[ov.Node]) -> ov.Node | None:
    """One expression in place of several alike (constant, zero point, scale, converts), as it
    stands but for its constants, which lie one below the other: so the plugin still sees
    compressed weights. None for expressions that it does not know or that differ."""
    first, kind = weights[0], weights[0].get_type_name()
    if any(node.get_type_name() != kind for node in weights):
        return None
    if kind == "Constant":
        return _stacked(weights)
    if kind not in ("Convert", "Reshape", "Multiply", "Subtract"):
        return None
    values = zip(*(node.input_values() for node in weights), strict=True)
    inputs = [_joined([value.get_node() for value in alike]) for alike in values]
    if any(one is None for one in inputs):
        return None
    if kind == "Convert":
        return ops.convert(inputs[0], first.get_output_element_type(0).to_string())
    if kind == "Reshape":
        return ops.reshape(*inputs, False)
    return (ops.multiply if kind == "Multiply" else ops.subtract)(*inputs)


def _stacked(constants: list[ov.Node]) -> ov.Node | None:
    """Constants [rows, width] of one type, one below the other."""
    kind = constants[0].get_output_element_type(0)
    shapes = [list(constant.get_output_shape(0)) for constant in constants]
    memories = [raw_bytes(constant.get_tensor_view()) for constant in constants]
    if any(constant.get_output_element_type(0) != kind for constant in constants):
        return None
    if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        return None
    # Rows of four bits need not end on whole bytes.
    split = any(memory.size % shape[0] for shape, memory in zip(shapes, memories, strict=True))
    if split or sum(memory.size for memory in memories) > JOINED_BYTES:
        return None
    tensor = ov.Tensor(kind, ov.Shape([sum(shape[0] for shape in shapes), shapes[0][1]]))
    raw_bytes(tensor)[:] = np.concatenate(memories)
    return ops.constant(tensor)


def shape_head(model: ov.Model, vocabulary: int | None, axis: int) -> None:
    """Let a decoder's head compute only the rows named by the new input ROWS_INPUT, which lie along
    `axis` of the hidden states, and give logits of the first `vocabulary` tokens (None: all); adds
    their log-sum-exp as an output."""
    head = _head(model)
    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS_INPUT)
    rows.output(0).get_tensor().set_names({ROWS_INPUT})
    head.input(0).replace_source_output(
        ops.gather(head.input_value(0), rows, ops.constant(axis)).output(0)
    )
    model.add_parameters([rows])
    if vocabulary is not None:
        result = model.get_results()[0]
        bounds = ([0], [vocabulary], [1], [-1])
        cut = ops.slice(result.input_value(0), *(np.array(one) for one in bounds))
        result.input(0).replace_source_output(cut.output(0))
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


def raw_bytes(tensor: ov.Tensor) -> np.ndarray:
    """A tensor's memory as bytes, uint8 [bytes], whatever its element type."""
    return tensor.data.reshape(-1).view(np.uint8)


def last_line(error: BaseException) -> str:
    """The end of an OpenVINO error, where it says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
