"""Integer products of activations and compressed weights in place of the plugin's: for processors
with AVX2 and without VNNI, where the plugin unpacks weights to floats.

Activations are rounded to 8 bits, with one scale for each group of columns. The products of a group
are summed as integers, and groups are added in their order. So an output has the same bits whatever
the number of rows, threads and requests is.
"""

import atexit
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
import openvino as ov

from .graph import products_by_input, raw_bytes, source_of

TILE = 16
"""Outputs of a tile, which has the weights of as many rows. Its word s * TILE + o, of 32 bits, has
those of row o at step s: 4 columns of 8 bits or 8 columns of 4 bits."""

BITS = (4, 8)
ROWS = 4  # rows that one pass over a tile computes: their sums fill the processor's registers
PARTS = 16  # of a product: a thread that other work delays takes fewer

SPINS, YIELDS = 200, 1000
"""A helping thread looks for work so often before it lets others run, and lets others run so often
before it sleeps: some milliseconds, more than the plugin needs between two products."""

DONE, JOB = 8, 16
"""Indices of the board, int64 [64]: at first the next part of the job; at DONE, in another line of
the cache, the number of parts that are done; from JOB on the arguments of `multiply`."""

SWITCH_SECONDS = 1e-4
"""After which Python takes the interpreter from a busy thread; every product needs it. Beside one a
1.5 B model gave 0.7 tokens/s with Python's own 5 ms, 7.6 with these (alone 14.7)."""

PROPERTY = ("PRODUCTS", "kernels")
"""Stands among the plugin's properties of a model whose products are computed here."""

WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # values of ONEDNN_MAX_CPU_ISA

FORMS = {
    ov.Type.i4: (4, 0x88, 8),
    ov.Type.u4: (4, 0, 0),
    ov.Type.i8: (8, 0, 0),
    ov.Type.u8: (8, 0x80, -128),
}
"""Bits of a stored weight, those to flip in every byte so that 4 bits have no sign and 8 bits have
one, and what that adds to a zero point."""


def plugin_properties(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those that the plugin knows."""
    return {name: value for name, value in properties if (name, value) != PROPERTY}


@cache
def available() -> bool:
    """Whether this processor has AVX2 and no VNNI (or oneDNN must not use it), and llvmlite is
    installed."""
    if os.name != "posix" or importlib.util.find_spec("llvmlite") is None:
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI
    vnni = not limited and (features.get("avx512vnni") or features.get("avxvnni"))
    return not vnni and all(features.get(name) for name in ("avx2", "fma", "f16c"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Compressed weights in tiles. `columns` are rounded in groups of `group`. The code reads the
    description at `address`; `content` holds its memory."""

    outputs: int
    columns: int
    bits: int
    group: int
    address: int
    content: tuple[np.ndarray, ...]


def pack(
    weights: np.ndarray, bits: int, scales: np.ndarray, zeros: np.ndarray, flipped: int = 0
) -> Matrix | None:
    """Arrange `weights`, bytes [outputs, columns * bits / 8]: int8, or two of 0 to 15 a byte, the
    first in the low half, once the bits `flipped` are turned. Each stands for (stored - zero) *
    scale; `scales` (float16) and `zeros` (int8) are [outputs, groups]. None for shapes that the
    code does not compute."""
    outputs, columns, groups = len(weights), weights.shape[1] * 8 // bits, scales.shape[1]
    group = next((size for size in (128, 64, 32) if columns // groups % size == 0), 0)
    if outputs % TILE or not group or (groups > 1 and columns // groups != group):
        return None
    steps = columns * bits // 32
    words = np.full((outputs // TILE, steps, TILE), flipped * 0x01010101, np.uint32)
    words ^= weights.view(np.uint32).reshape(-1, TILE, steps).transpose(0, 2, 1)
    # Copies: the memory of a graph's constants does not stay.
    scales, zeros = (
        np.array(values.reshape(-1, TILE, groups).transpose(0, 2, 1), order="C")
        for values in (scales, zeros)
    )
    pointers = [array.ctypes.data for array in (words, scales, zeros)]
    sizes = columns, columns // group, group * bits // 32
    between_groups = TILE if groups > 1 else 0  # from the scales of one to those of the next
    code = BITS.index(bits) * ROWS
    numbers = *sizes, between_groups, groups * TILE, outputs, code
    description = np.array([*pointers, *numbers], np.int64)
    content = words, scales, zeros, description
    return Matrix(outputs, columns, bits, group, description.ctypes.data, content)


class Kernels:
    """The compiled code, and threads that help with every product."""

    def __init__(self) -> None:
        from . import kernel_code

        self._code = kernel_code.functions()
        self._board = np.zeros(64, np.int64)
        self._board[0] = PARTS  # no part is left
        self._lock = Lock()
        self._room: list[np.ndarray] = []
        self._wakes: list[Event] = []
        self._helpers: list[Thread] = []
        self._ended = False
        atexit.register(self.close)  # the code is unmapped when the interpreter ends

    def start(self, threads: int) -> None:
        """Let so many threads compute every product: the calling one, and helpers."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        with self._lock:
            while len(self._helpers) < threads - 1:
                self._wakes.append(Event())
                arguments = [self._wakes[-1]]
                helper = Thread(target=self._help, args=arguments, name="kernels", daemon=True)
                self._helpers.append(helper)
                helper.start()

    def multiply(self, matrices: list[Matrix], x: int, outputs: list[int], rows: int) -> None:
        """Multiply `rows` rows of float32 at the address `x` with each of `matrices`, which have
        the same columns, bits and groups, to float32 at the addresses `outputs`."""
        first = matrices[0]
        board, groups = self._board.ctypes.data, rows * first.columns // first.group
        for wake in self._wakes:
            if not wake.is_set():
                wake.set()
        with self._lock:
            rounded = self._rounded(rows * first.columns, groups)
            self._code[f"round_{first.bits}"](x, *rounded, groups, first.group)
            for matrix, y in zip(matrices, outputs, strict=True):
                self._code["multiply"](board, matrix.address, *rounded, y, rows)

    def close(self) -> None:
        """Stop the helping threads."""
        self._ended = True
        for wake, helper in zip(self._wakes, self._helpers, strict=True):
            wake.set()
            helper.join()

    def _help(self, wake: Event) -> None:
        while not self._ended:
            wake.wait()
            self._code["help"](self._board.ctypes.data)
            wake.clear()

    def _rounded(self, values: int, groups: int) -> list[int]:
        """Addresses with room for rounded activations: values, the scale and the sum of a group."""
        if not self._room or len(self._room[0]) < values or len(self._room[1]) < groups:
            kinds = (values, np.int8), (groups, np.float32), (groups, np.float32)
            self._room = [np.empty(size, kind) for size, kind in kinds]
            self._addresses = [array.ctypes.data for array in self._room]
        return self._addresses


@cache
def shared() -> Kernels:
    """The kernels of this process."""
    return Kernels()


class Product(ov.Op):  # type: ignore[misc]
    """The products of an input with `matrices`, an output each. Of two with the same input and
    `number` the plugin keeps one."""

    numbers = count()

    def __init__(self, inputs: list[ov.Output], matrices: list[Matrix], number: int):
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
        shared().multiply(self.matrices, x.ctypes.data, places, rows)
        return True


def use_kernels(model: ov.Model) -> None:
    """Replace the products of compressed weights in place, where `pack` knows their shape."""
    for products in products_by_input(model):
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


def _packed(node: ov.Node) -> Matrix | None:
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
    form, rows = FORMS.get(stored.get_element_type()), stored.get_output_shape(0)[0]
    groups = int(np.prod(scale.get_output_shape(0))) // rows
    if form is None or scale.get_element_type() != ov.Type.f16 or not groups:
        return None
    bits, flipped, moved = form
    raw = raw_bytes(stored.get_tensor_view())
    scales = scale.get_tensor_view().data.reshape(rows, groups)
    zeros = np.zeros(1, np.int16) if zero is None else _integers(zero)
    if zeros is None or raw.size * 8 % (rows * bits) or zeros.size not in (1, rows * groups):
        return None
    zeros = np.broadcast_to(zeros.reshape(-1, groups) if zeros.size > 1 else zeros, scales.shape)
    return pack(raw.reshape(rows, -1), bits, scales, (zeros + moved).astype(np.int8), flipped)


def _integers(constant: ov.Node) -> np.ndarray | None:
    """The values of a constant of 4 or 8 bits, int16; None for others."""
    kind, raw = constant.get_element_type(), raw_bytes(constant.get_tensor_view())
    if kind == ov.Type.u4:
        halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)
        return halves[: int(np.prod(constant.get_output_shape(0)))].astype(np.int16)
    if kind in (ov.Type.u8, ov.Type.i8):
        return raw.view(np.int8 if kind == ov.Type.i8 else np.uint8).astype(np.int16)
    return None
