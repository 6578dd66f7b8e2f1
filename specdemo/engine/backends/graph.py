"""Changes a decoder's graph before it is compiled: adds paged attention and further outputs, limits
the output projection to the rows asked for, and splits products of several parts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from ..faults import ModelError
from ..forwards import Taps

ROWS_INPUT = "logits_rows"  # the added input, int32 [rows]: indices of the tokens that get logits
RECURRENT = ("PagedGatedDeltaNet", "PagedCausalConv1D")  # layers with tables of states

HIDDEN = "hidden"  # name of the added output of hidden states
PARTS = "VariadicSplit", "Slice", "StridedSlice"
WEIGHTS = ("Convert", "Multiply", "Subtract", "Reshape")  # of which compressed weights consist
CASTS = ("Reshape", "Convert", "Squeeze", "Unsqueeze")


def named_input(name: str, shape: list[int], kind: ov.Type) -> ov.Node:
    parameter = ops.parameter(ov.PartialShape(shape), kind, name=name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def named_result(name: str, output: ov.Node) -> ov.Node:
    output.output(0).get_tensor().add_names({name})
    return ops.result(output)


def read_ir(core: ov.Core, xml: Path | str) -> ov.Model:
    """Read the IR in `xml`. Raises ModelError if it is not readable."""
    try:
        return core.read_model(str(xml))
    except RuntimeError as error:
        why = "is not a readable OpenVINO model; fetch or export it again."
        raise ModelError(f"{Path(xml).name} {why}") from error


def page_attention(model: ov.Model) -> None:
    """Turn the state of a decoder IR into a paged KV cache and tables of recurrent states, in
    place. Raises ModelError for recurrent layers that OpenVINO cannot page, RuntimeError for
    others without such a state."""
    states = [node for node in model.get_ops() if node.get_type_name() == "ReadValue"]
    shapes = [node.get_output_partial_shape(0) for node in states]
    # A KV cache grows with the text; the state of a recurrent layer has a fixed size.
    recurrent = any(
        shape.rank.is_static and all(size.is_static for size in list(shape)[1:]) for shape in shapes
    )
    try:
        paged_attention_transformation(model, False, False)
        kinds = {node.get_type_name() for node in model.get_ops()}
        paged = "PagedAttentionExtension" in kinds and kinds.intersection(RECURRENT)
        if not recurrent or (paged and "ReadValue" not in kinds):
            return
    except RuntimeError:
        if not recurrent:
            raise
    raise ModelError(
        "The IR has recurrent layers of a kind whose states OpenVINO "
        f"{ov.__version__.split('-')[0]} cannot keep for going back; choose a model with attention "
        "only, or of the families Qwen3.5 and LFM2."
    )


def limit_logits(model: ov.Model, token_ids: np.ndarray | None = None) -> np.ndarray | None:
    """Limit a decoder's logits to the rows listed in the new input ROWS_INPUT, and to those of
    `token_ids` (int64 [V], ascending; None: all) that it has, which are given back. Adds the
    log-sum-exp of each row as an output."""
    output = output_projection(model)
    rows = named_input(ROWS_INPUT, [-1], ov.Type.i32)
    chosen = ops.gather(output.input_value(0), rows, ops.constant(0))
    output.input(0).replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    tokens = output.get_output_partial_shape(0)[-1].get_length()
    if token_ids is not None:
        token_ids = token_ids[token_ids < tokens]
    if token_ids is not None and len(token_ids) < tokens:
        weights, transposed = output.input_value(1), output.get_attributes()["transpose_b"]
        cut = _rows_of(weights.get_node(), token_ids) if transposed else None
        if cut is None:
            cut = ops.gather(weights, token_ids, ops.constant(0 if transposed else 1))
        output.input(1).replace_source_output(cut.output(0))
    add_log_sums(model)
    return token_ids


def add_log_sums(model: ov.Model) -> None:
    """Add an output: the log-sum-exp of each row of logits, which are the first output."""
    logits = model.get_results()[0].input_value(0)
    last = ops.constant([-1])
    top = ops.reduce_max(logits, last, True)
    total = ops.reduce_sum(ops.exp(ops.subtract(logits, top)), last, True)
    model.add_results([ops.result(ops.add(ops.log(total), top).output(0))])
    model.validate_nodes_and_infer_types()


def add_hidden(model: ov.Model, taps: Taps) -> None:
    """Add the states `taps` of all tokens to the outputs of a decoder after `limit_logits`. Raises
    ModelError when the graph has no such states."""
    output = output_projection(model).input_value(0).get_node().input_value(0).get_node()
    width = output.get_output_partial_shape(0)[-1]
    count = layers_of(model)
    inner = taps.layers if taps.layers != (count + 1,) else ()
    parts = [] if inner else [output]
    if inner or taps.fractions:
        stream = residual_stream(model, width)
        if inner:
            parts = _entering(stream, count, inner)
        parts += [stream[max(round(share * (len(stream) - 1)), 1)] for share in taps.fractions]
    add_states(model, parts)


def add_states(model: ov.Model, parts: list[ov.Node]) -> None:
    """Add the states `parts` of all tokens as outputs, float32 [tokens, H] each."""
    shape = ops.constant(np.array([-1, parts[0].get_output_partial_shape(0)[-1].get_length()]))
    flat = [ops.reshape(ops.convert(part, "f32"), shape, False) for part in parts]
    model.add_results([*map(ops.result, flat)])
    model.validate_nodes_and_infer_types()


def layers_of(model: ov.Model) -> int:
    """The number of layers of a decoder, paged or not: those of attention, and recurrent ones,
    which have a convolution each."""
    kinds = [node.get_type_name() for node in model.get_ops()]
    attention = kinds.count("PagedAttentionExtension") or kinds.count("ScaledDotProductAttention")
    return attention + (kinds.count("PagedCausalConv1D") or kinds.count("GroupConvolution"))


def _entering(stream: list[ov.Node], count: int, layers: tuple[int, ...]) -> list[ov.Node]:
    """The nodes of a residual stream that enter `layers` of a decoder of `count` layers; `count`
    itself stands for what leaves the last one."""
    if not all(0 <= layer <= count <= len(stream) for layer in layers):
        raise ModelError(f"The draft head reads layers {layers} of a target that has {count}.")
    # A decoder adds once or twice a layer; learned positions are one addition before the first.
    before, per_layer = (len(stream) - 1) % count, (len(stream) - 1) // count
    return [stream[before + per_layer * layer] for layer in layers]


def residual_stream(model: ov.Model, width: ov.Dimension) -> list[ov.Node]:
    """A decoder's embedding and the additions of its residual stream, in order: the longest chain
    of sums of two activations of this width. Raises ModelError if there is none."""
    chains: dict[str, list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        shape = node.get_output_partial_shape(0) if node.get_type_name() == "Add" else []
        if len(shape) != 3 or shape[-1] != width:
            continue
        sources = [source_of(value.get_node(), *CASTS) for value in node.input_values()]
        if all(source.get_type_name() != "Constant" for source in sources):
            before = [chains.get(source.get_name(), []) for source in sources]
            chains[node.get_name()] = [*max(before, key=len), node]
    if not chains:
        raise ModelError("The IR has no residual stream, which this draft head reads.")
    return [embedding_of(model), *max(chains.values(), key=len)]


def embedding_of(model: ov.Model) -> ov.Node:
    """The lookup of a decoder's embedding: a Gather of rows of a matrix. Raises ModelError."""
    gathers = (node for node in model.get_ordered_ops() if node.get_type_name() == "Gather")
    for node in gathers:
        table, rank = node.get_input_partial_shape(0), node.get_output_partial_shape(0).rank
        if table.is_static and len(table) == 2 and rank.is_static and rank.get_length() == 3:
            return node
    raise ModelError("The IR has no embedding of tokens; export the model again.")


def output_projection(model: ov.Model) -> ov.Node:
    """The last MatMul before the logits."""
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    return node


def is_product(node: ov.Node) -> bool:
    """Whether it multiplies activations by a matrix [rows, columns]."""
    if node.get_type_name() != "MatMul":
        return False
    transposed, weights = node.get_attributes(), node.get_input_partial_shape(1)
    right = transposed["transpose_b"] and not transposed["transpose_a"]
    return bool(right and weights.is_static and len(weights) == 2)


def uncut_tables(model: ov.Model) -> None:
    """Look angles up in whole tables, in place: early exports of optimum-intel cut them to the
    length of the text, which depends on the keys. No position is beyond it."""
    for node in model.get_ops():
        if node.get_type_name() != "Gather" or number(node.input_value(2)) != 0:
            continue
        cut = node.input_value(0).get_node()
        if cut.get_type_name() != "StridedSlice" or not _cuts(cut, [0]):
            continue
        table, begin = cut.input_values()[:2]
        if table.get_node().get_type_name() == "Constant" and number(begin) == 0:
            node.input(0).replace_source_output(table)


def split_products(model: ov.Model) -> None:
    """Make the parts of each product that are read by themselves products of their own, in place:
    queries, keys and values of every head (GPT-NeoX) or of all heads. Bits stay the same."""
    for node in model.get_ordered_ops():
        for output in node.outputs() if node.get_type_name() in PARTS else ():
            if (found := part_of(output)) is not None and (made := _own_product(*found)):
                output.replace(made.output(0))
    model.validate_nodes_and_infer_types()


def _own_product(whole: ov.Output, begin: int, end: int) -> ov.Node | None:
    """A product that gives the columns from `begin` to `end` of a product `whole`, or of each head
    if it is a view with heads of three such parts; None for others."""
    views, bias, node = [], None, whole.get_node()
    while node.get_type_name() in ("Reshape", "Transpose"):
        views.append(node)
        node = node.input_value(0).get_node()
    if node.get_type_name() == "Add":
        bias = source_of(node.input_value(1).get_node(), "Convert")
        node = node.input_value(0).get_node()
    constant = bias is None or (
        bias.get_type_name() == "Constant" and bias.get_element_type() in (ov.Type.f16, ov.Type.f32)
    )
    if not constant or not is_product(node):
        return None
    weights, shape = node.input_value(1).get_node(), whole.get_partial_shape()
    outputs, rank = weights.get_output_shape(0)[0], len(shape)
    orders = [view.input_value(1) for view in views if view.get_type_name() == "Transpose"]
    if any(_last(order) != rank - 1 for order in orders):
        return None  # the last axis is not that of the product
    width = 3 * (end - begin) if views else outputs
    if shape[-1] != width or outputs % width or end > width:
        return None
    values = np.zeros(1) if bias is None else bias.get_tensor_view().data.reshape(-1)
    rows = (np.arange(0, outputs, width)[:, None] + np.arange(begin, end)).reshape(-1)
    if values.size not in (1, outputs) or (cut := _rows_of(weights, rows)) is None:
        return None
    made = ops.matmul(node.input_value(0), cut, False, True)
    if bias is not None:
        made = ops.add(
            made, ops.constant(np.broadcast_to(values, outputs)[rows].astype(np.float32))
        )
    for view in reversed(views):
        if view.get_type_name() == "Transpose":
            made = ops.transpose(made, view.input_value(1))
        else:
            sizes = [0] * (rank - 2) + [outputs // width, end - begin]
            made = ops.reshape(made, sizes, True)
    before, after = list(shape)[:-1], list(made.get_output_partial_shape(0))[:-1]
    same = [old.is_dynamic or old == new for old, new in zip(before, after, strict=True)]
    return made if all(same) else None  # a view of other axes


def _last(output: ov.Output) -> int | None:
    """The last value of a constant; None for anything else."""
    node = output.get_node()
    return int(node.get_tensor_view().data[-1]) if node.get_type_name() == "Constant" else None


def part_of(output: ov.Output) -> tuple[ov.Output, int, int] | None:
    """Of which output this is a part of the last axis, from where to where; None for others."""
    node, kind = output.get_node(), output.get_node().get_type_name()
    if kind not in PARTS:
        return None
    x, *numbers = node.input_values()
    last = x.get_partial_shape()
    parts = [part.get_partial_shape() for part in node.outputs()]
    shapes = [last, *parts]
    if any(shape.rank.is_dynamic or not len(shape) or shape[-1].is_dynamic for shape in shapes):
        return None
    lengths = [shape[-1].get_length() for shape in parts]
    index, axes = output.get_index(), (-1, len(last) - 1)
    begin = end = None
    if kind == "VariadicSplit" and number(numbers[0]) in axes:
        begin = sum(lengths[:index])
    elif kind == "Slice" and any([*map(number, numbers[2:])] == [1, axis] for axis in axes):
        begin, end = number(numbers[0]), number(numbers[1])
    elif kind == "StridedSlice" and _cuts(node, [1] * (len(last) - 1) + [0]):
        begin, end = _last(numbers[0]), _last(numbers[1])
    if begin is None and end is not None:
        size = last[-1].get_length()
        begin = size - lengths[0] if end >= size else None
    if begin is None or begin < 0:
        return None
    return x, int(begin), int(begin) + lengths[index]


def _cuts(node: ov.Node, masks: list[int]) -> bool:
    """Whether a StridedSlice keeps the axes whose mask is 1, and takes a part of others value by
    value."""
    how, steps = node.get_attributes(), node.input_value(3).get_node()
    cut = [how.pop(name) for name in ("begin_mask", "end_mask")]
    if cut != [masks, masks] or any(map(any, how.values())):
        return False
    return steps.get_type_name() == "Constant" and {*steps.get_tensor_view().data} == {1}


def number(output: ov.Output, depth: int = 8) -> float | None:
    """The value of an expression of constants with one element each, which has at most `depth`
    nodes one behind the other; None for anything else."""
    value = _folded(output, depth)
    return None if value is None else float(value.data.item())


def _folded(output: ov.Output, depth: int) -> ov.Tensor | None:
    node, operands = output.get_node(), []
    shapes = [part.get_partial_shape() for part in node.outputs()]
    if any(shape.is_dynamic or np.prod(shape.to_shape()) != 1 for shape in shapes):
        return None
    if node.get_type_name() == "Constant":
        return node.get_tensor_view()
    for source in node.input_values() if depth else ():
        if (value := _folded(source, depth - 1)) is None:
            return None
        operands.append(value)
    values = [ov.Tensor(part.get_element_type(), part.get_shape()) for part in node.outputs()]
    return values[output.get_index()] if operands and node.evaluate(values, operands) else None


def _rows_of(weights: ov.Node, rows: np.ndarray) -> ov.Node | None:
    """The expression `weights` with these rows only (int64 [n]); None where that is not possible
    without unpacking them."""
    all_rows = weights.get_output_partial_shape(0)[0].get_length()

    def chosen(tensor: ov.Tensor) -> ov.Node | None:
        count, *rest = tensor.shape or [1]
        if count != all_rows:  # one value for all rows
            return ops.constant(tensor)
        if tensor.byte_size % count:  # 4-bit elements: a row ends inside a byte
            return None
        cut = ov.Tensor(tensor.element_type, ov.Shape([len(rows), *rest]))
        raw_bytes(cut)[:] = raw_bytes(tensor).reshape(count, -1)[rows].reshape(-1)
        return ops.constant(cut)

    return _rebuilt(weights, chosen)


def _rebuilt(node: ov.Node, constant: Callable[[ov.Tensor], ov.Node | None]) -> ov.Node | None:
    """The expression of weights `node` with what `constant` makes of each constant. So the plugin
    still sees compressed weights. None for other expressions, and if `constant` gives None."""
    kind = node.get_type_name()
    if kind == "Constant":
        return constant(node.get_tensor_view())
    if kind not in WEIGHTS:
        return None
    count = 1 if kind == "Reshape" else None
    inputs = []
    for value in node.input_values()[:count]:
        if (made := _rebuilt(value.get_node(), constant)) is None:
            return None
        inputs.append(made)
    if kind == "Convert":
        return ops.convert(inputs[0], node.get_output_element_type(0).to_string())
    if kind == "Reshape":  # groups of weights that share a scale become rows
        return ops.reshape(inputs[0], [inputs[0].get_output_shape(0)[0], -1], False)
    return (ops.multiply if kind == "Multiply" else ops.subtract)(*inputs)


def source_of(node: ov.Node, *kinds: str) -> ov.Node:
    """The node whose output reaches `node` through nodes of these `kinds`."""
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node


def raw_bytes(tensor: ov.Tensor) -> np.ndarray:
    """A tensor's memory as bytes, uint8 [bytes], whatever its element type."""
    values: np.ndarray = tensor.data
    return values.reshape(-1).view(np.uint8)


def last_line(error: BaseException) -> str:
    """The last line of an error, at most 200 characters; it usually names the cause."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()[:200]
