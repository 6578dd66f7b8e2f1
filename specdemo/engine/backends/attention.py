"""Finds in a decoder what kernels compute of its attention: attention over the paged cache, and the
rotation of queries and keys before it."""

from dataclasses import dataclass

import numpy as np
import openvino as ov

from .graph import number, part_of
from .tiles import TILE

BLOCK_TOKENS = 32  # of a block of the cache
CACHE_TYPE = ov.Type.f16
ALL_TOKENS = 1 << 31  # a window that no text fills

ATTENTION = "PagedAttentionExtension"
_SIZES = ("num_k_heads", "num_v_heads", "k_head_size", "v_head_size")


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of a layer over blocks of a cache."""

    key_heads: int
    size: int  # values of a head
    description: np.ndarray
    """What the code reads: heads, key heads, size, bits of the scale, how many tokens up to its own
    one attends to, and the addresses of keys and values."""

    @property
    def cache_shape(self) -> list[int]:
        return [self.key_heads, BLOCK_TOKENS, self.size]


def attention_of(node: ov.Node) -> Attention | None:
    """The attention of a node of a paged decoder; None unless a token attends to tokens up to its
    own with nothing added to their scores."""
    key_heads, value_heads, size, value_size = _sizes(node)
    values = node.input_values()
    scale, window = map(number, values[9:11])
    added = [value.get_partial_shape() for value in (values[11], *values[20:21])]
    if not key_heads == value_heads > 0 or not size == value_size > 0 or size % TILE:
        return None
    queries, keys, read = map(token_width, values[:3])
    plain = (
        queries > 0
        and queries % (key_heads * size) == 0
        and keys == read == key_heads * size
        and all(value.get_element_type() == ov.Type.f32 for value in values[:3])
        and all(shape.is_static and 0 in shape.to_shape() for shape in added)
    )
    if not plain or scale is None or window is None or not 0 <= window <= ALL_TOKENS:
        return None
    bits = int(np.float32(scale).view(np.int32))
    numbers = [queries // size, key_heads, size, bits, int(window) or ALL_TOKENS, 0, 0]
    return Attention(key_heads, size, np.array(numbers, np.int64))


def _sizes(node: ov.Node) -> list[int]:
    info = node.get_rt_info()
    return [info[name].astype(int) if name in info else 0 for name in _SIZES]


def key_of(output: ov.Output) -> str:
    """The name of a node, with the index of any but its first output."""
    name, index = output.get_node().get_name(), output.get_index()
    return f"{name}.{index}" if index else name


def source_of_view(output: ov.Output) -> ov.Output:
    """The output of which `output` is a view: the same values in the same order with the tokens
    first."""
    while token_width(output):
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Transpose":
            order = node.input_value(1).get_node()
            if order.get_type_name() != "Constant":
                break
            sizes = node.get_input_partial_shape(0)
            moved = [axis for axis in order.get_tensor_view().data if sizes[int(axis)] != 1]
            if moved != sorted(moved):
                break
        elif kind in ("Slice", "StridedSlice"):  # of a part that is turned, which may be all
            if (part := part_of(output)) is None or token_width(part[0]) != token_width(output):
                break
        elif kind not in ("Reshape", "Unsqueeze", "Squeeze", "Convert"):
            break
        source = node.input_value(0)
        if tokens_and_width(source) != tokens_and_width(output):
            break  # of other tokens
        if source.get_element_type() != output.get_element_type():
            break
        output = source
    return output


def token_width(output: ov.Output) -> int:
    """The values of a token in an output [tokens, ...]; 0 for other shapes."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) < 2:
        return 0
    _, *others = shape
    if any(size.is_dynamic for size in others):
        return 0
    return int(np.prod([size.get_length() for size in others]))


def tokens_and_width(output: ov.Output) -> tuple[int, int]:
    """The tokens of an output [tokens, ...], -1 for any number, and the values of each; zeros for
    other shapes."""
    width = token_width(output)
    tokens = output.get_partial_shape()[0] if width else ov.Dimension(0)
    return tokens.get_length() if tokens.is_static else -1, width


def rotation(node: ov.Node) -> tuple[list[ov.Output], int, int] | None:
    """Of x * cosines + concat(-second half of x, first half) * sines, or that of the first part of
    x with the rest behind it: x, cosines and sines, the values of a head of x, and how many of them
    are turned. None for other nodes."""
    turned, *rest = _joined(node) or [node.output(0)]
    if (operands := _rotation(turned.get_node())) is None:
        return None
    x, *angles = operands
    size = length = _last_size(x)
    if rest:
        if (whole := _joint(x, *rest)) is None:
            return None
        x, _ = whole
        size = _last_size(x)
    return ([x, *angles], size, length) if size % TILE == 0 else None


def _rotation(node: ov.Node) -> list[ov.Output] | None:
    terms = [value.get_node() for value in node.input_values()]
    kinds = [term.get_type_name() for term in terms]
    if node.get_type_name() != "Add" or kinds != ["Multiply"] * 2:
        return None
    for straight, crossed in (terms, terms[::-1]):
        for swapped, sines in _both_ways(crossed):
            if (x := _swapped_halves(swapped.get_node())) is None:
                continue
            for same, cosines in _both_ways(straight):
                if key_of(same) == key_of(x) and _are_angles(x, cosines, sines):
                    return [x, cosines, sines]
    return None


def _are_angles(x: ov.Output, *angles: ov.Output) -> bool:
    """Whether each has a row for every token of `x`, which all heads share."""
    (tokens, _), rank, size = tokens_and_width(x), len(x.get_partial_shape()), _last_size(x)
    shapes = [angle.get_partial_shape() for angle in angles]
    same_axes = all(len(shape) == rank and shape[-1] == size for shape in shapes)
    return same_axes and all(tokens_and_width(angle) == (tokens, size) for angle in angles)


def _swapped_halves(node: ov.Node) -> ov.Output | None:
    """The x of concat(-second half, first half) along the last axis; None for anything else."""
    if not (joined := _joined(node)) or (second := _negated(joined[0].get_node())) is None:
        return None
    if (whole := _joint(joined[1], second)) is None:
        return None
    x, half = whole
    return x if 2 * half == _last_size(x) else None


def _joined(node: ov.Node) -> list[ov.Output]:
    """The two outputs that `node` joins along the last axis; none for other nodes."""
    values = node.input_values()
    if node.get_type_name() != "Concat" or len(values) != 2:
        return []
    last = len(node.get_output_partial_shape(0)) - 1
    return values if node.get_attributes()["axis"] in (-1, last) else []


def _joint(first: ov.Output, rest: ov.Output) -> tuple[ov.Output, int] | None:
    """The output that is `first` and then `rest` along the last axis, and where `rest` begins; None
    for outputs that are not its parts."""
    before, after = part_of(first), part_of(rest)
    if before is None or after is None or key_of(before[0]) != key_of(after[0]):
        return None
    (x, *low), (_, *high), middle = before, after, before[2]
    return (x, middle) if (low, high) == ([0, middle], [middle, _last_size(x)]) else None


def _last_size(output: ov.Output) -> int:
    return int(output.get_partial_shape()[-1].get_length())


def _both_ways(product: ov.Node) -> list[tuple[ov.Output, ov.Output]]:
    first, second = product.input_values()
    return [(first, second), (second, first)]


def _negated(node: ov.Node) -> ov.Output | None:
    """The output of which `node` gives the negative; None for another node."""
    if node.get_type_name() == "Negative":
        return node.input_value(0)
    ways = _both_ways(node) if node.get_type_name() == "Multiply" else []
    return next((value for value, factor in ways if number(factor) == -1), None)
