"""Integer products of activations and compressed weights in place of the plugin's, with what lies
between them, for processors with AVX2. Without VNNI the plugin unpacks weights to floats; with it
the kernels are faster where a decoder becomes one node.

Activations are rounded to 8 bits, with one scale for each group of columns. The products of a group
are summed as integers, and groups are added in their order. So an output has the same bits whatever
the number of rows, threads and requests is.
"""

import importlib.util
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import addressof, c_char
from functools import cache, partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import openvino as ov

from ..faults import ModelError
from .attention import Attention, remove_cache, take_attention
from .fusion import Program, find_segments, write_program
from .graph import raw_bytes, source_of, split_products, weight_products
from .tiles import LINE_BYTES, Weights, pack, room_for

FORWARD, KERNELS, PLUGIN = "FORWARD", "kernels", "plugin"
"""Among the plugin's properties of a model stands what computes it where there are kernels."""

F32, GROUP = ("INFERENCE_PRECISION_HINT", "f32"), "DYNAMIC_QUANTIZATION_GROUP_SIZE"

WHOLE = 2  # nodes of a decoder that is computed as one: before its last rows are chosen, and after

VNNI = {
    "avx512vnni": ("avx512f", "avx512bw", "avx512vl", "avx512vnni"),
    "avxvnni": ("avxvnni",),
}
"""Forms of kernels.c beside that for AVX2 alone, the best first, with the features of a processor
that each needs."""

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
    """Those that the plugin knows. It does not know that oneDNN is limited, and would ask it for
    what it then has not."""
    known = {name: value for name, value in properties if name != FORWARD}
    return known | (dict([F32, (GROUP, "0")]) if forbids_vnni() else {})


def forward_by(computing: str) -> tuple[str, str]:
    """The property of a model that KERNELS or PLUGIN compute on a processor like this one."""
    return FORWARD, f"{computing} ({instructions()})"


def in_kernels(properties: Iterable[tuple[str, str]]) -> bool:
    return any(name == FORWARD and value.startswith(KERNELS) for name, value in properties)


def forbids_vnni() -> bool:
    """Whether oneDNN must not use VNNI."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI


@cache
def available() -> bool:
    """Whether this processor has AVX2, and llvmlite is installed."""
    if os.name != "posix" or importlib.util.find_spec("llvmlite") is None:
        return False
    features = _features()
    return all(features.get(name) for name in ("avx2", "fma", "f16c"))


@cache
def vnni() -> str:
    """Which of VNNI the processor has; nothing where oneDNN must not use it."""
    features = {} if forbids_vnni() else _features()
    return next((name for name, needed in VNNI.items() if all(map(features.get, needed))), "")


def text_path(vnni: str) -> Path:
    """The LLVM text of kernels.c for AVX2 and one of VNNI, or nothing."""
    return Path(__file__).with_name(f"kernels.{vnni or 'avx2'}.ll")


def instructions() -> str:
    """What the kernels use here: "VNNI" or "AVX2"; "" where there are none."""
    return ("VNNI" if vnni() else "AVX2") if available() else ""


def _features() -> dict[str, bool]:
    from llvmlite import binding

    features: dict[str, bool] = binding.get_host_cpu_features()
    return features


def keep_code(key: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """The object file of a `key`, made now. To be replaced by a function that keeps it on disk."""
    return make()


@cache
def compilation() -> Future[Any]:
    """The `kernel_code.Kernels` of this process, once they are compiled, which takes a second."""
    pool = ThreadPoolExecutor(1, "kernels")
    try:
        return pool.submit(_compiled)
    finally:
        pool.shutdown(wait=False)


def _compiled() -> Any:
    import llvmlite

    from .kernel_code import Kernels, compiled

    text = text_path(vnni()).read_text("ascii")
    features = ",".join(name for name, has in _features().items() if has)
    key = text, llvmlite.__version__, platform.machine(), features
    return Kernels(keep_code(key, partial(compiled, text)))


def compiled() -> Any:
    return compilation().result()


class BoundProgram:
    """A program with the slots that it fills anew in every forward. Its compiled `nodes` are those
    made before it `ran`: OpenVINO keeps what they compute, not what they are in Python."""

    def __init__(self, program: Program, nodes: list[ov.Node]):
        self.program = program
        self.nodes = nodes
        self.ran = False
        self._tensors = len(program.inputs), len(program.outputs)
        self._steps = np.array(program.steps, np.int64)
        first = sum(self._tensors)
        constants = [constant.ctypes.data for constant in program.constants]
        self._registers = first + len(constants)
        self._slots = np.zeros(self._registers + len(program.registers) + 2, np.int64)
        self._slots[first : self._registers] = constants
        # In lines of the processor's cache.
        *starts, self._row_bytes = accumulate(
            (-(-size // LINE_BYTES) * LINE_BYTES for size in program.registers), initial=0
        )
        self._starts = np.array(starts, np.int64)
        self._arguments = self._steps.ctypes.data, len(self._steps), self._slots.ctypes.data
        self._memory = (0, 0)

    def run(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        """Compute the outputs; gives False, and computes nothing, for inputs of a wrong size."""
        inputs_count, outputs_count = self._tensors
        # Iterating over the lists themselves takes 14 us.
        tensors = [inputs[index] for index in range(inputs_count)]
        tensors += [outputs[index] for index in range(outputs_count)]
        widths = self.program.inputs
        rows = tensors[0].size // widths[0]
        if any(
            width and tensor.size != rows * width
            for tensor, width in zip(tensors, widths, strict=False)
        ):
            return False  # no decoder: the code would read beyond an input
        kernels, self.ran = compiled(), True
        with kernels.lock:
            memory = rows, kernels.room(rows * self._row_bytes)
            if memory != self._memory:
                self._memory = memory
                self._slots[self._registers : -2] = memory[1] + rows * self._starts
            self._slots[: len(tensors)] = [_address(tensor) for tensor in tensors]
            kernels.run(*self._arguments, rows)
        return True


class FusedSegment(ov.Op):  # type: ignore[misc]
    """A segment of a decoder as one node, which the plugin clones for every inference. Of two with
    the same input and `number` it keeps one. Given the node itself, as its examples show, it would
    never free it."""

    numbers = count()

    def __init__(self, inputs: list[ov.Output], bound: BoundProgram, number: int):
        super().__init__(None)
        self.bound, self.number = bound, number
        if not bound.ran:
            bound.nodes.append(self)
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        first = self.get_input_partial_shape(0)  # iterating over it takes 40 us
        outputs = self.bound.program.outputs
        self.set_output_size(len(outputs))
        for index, sizes in enumerate(outputs):
            shape = [first[axis] if size < 0 else size for axis, size in enumerate(sizes)]
            self.set_output_type(index, ov.Type.f32, ov.PartialShape(shape))

    def clone_with_new_inputs(self, inputs: list[ov.Output]) -> ov.Node:
        return FusedSegment(inputs, self.bound, self.number)

    def visit_attributes(self, visitor: Any) -> bool:
        visitor.on_attributes({"number": self.number})
        return True

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        return self.bound.run(outputs, inputs)


def _address(tensor: ov.Tensor) -> int:
    return addressof(c_char.from_buffer(tensor.data))  # 1 us less than `data.ctypes.data`


def use_kernels(
    model: ov.Model, owner: object, attend: bool = False, only_whole: bool = False
) -> list[Attention]:
    """Replace the products of compressed weights, where the code knows their shape, and what lies
    between them, in place, until the `owner` of the compiled model is freed. With `attend` also
    attention, if the kernels can compute all of it; it is given back, and its caches are to be set.
    Raises ModelError for a decoder in pieces if `only_whole`."""
    if attend:
        split_products(model)
    products = weight_products(model)
    found = {node.get_name(): _weights(node.input_value(1).get_node()) for node in products}
    weights = {name: stored for name, stored in found.items() if stored and stored.group}
    attentions = take_attention(model) if attend else {}
    segments = find_segments(model, weights, attentions)
    if only_whole and len(segments) > WHOLE:
        raise ModelError("The kernels compute this decoder in pieces; with VNNI the plugin does.")
    with ThreadPoolExecutor() as pool:
        packed = pool.map(pack, weights.values(), room_for(weights.values()))
        matrices = dict(zip(weights, packed, strict=True))
    replaced: dict[str, ov.Output] = {}
    nodes: list[ov.Node] = []
    finalize(owner, nodes.clear).atexit = False
    for segment in segments:
        inputs = [replaced.get(key, source) for key, source in segment.inputs.items()]
        bound = BoundProgram(write_program(segment, matrices), nodes)
        made = FusedSegment(inputs, bound, next(FusedSegment.numbers))
        for output, step in zip(made.outputs(), segment.outputs, strict=True):
            step.node.output(0).replace(output)
            replaced[step.name] = output
    if attentions:
        remove_cache(model)
    model.validate_nodes_and_infer_types()
    return list(attentions.values())


def _weights(node: ov.Node) -> Weights | None:
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
    shape, form = list(stored.get_output_shape(0)), FORMS.get(stored.get_element_type())
    if form is None or len(shape) < 2 or 0 in shape:
        return None
    *groups, _ = shape
    per_group = [*groups, 1]
    # Scales of each column may be as many as those of each group.
    if list(scale.get_output_shape(0)) != per_group:
        return None
    if scale.get_element_type() != ov.Type.f16:
        return None
    (bits, flipped, moved), rows = form, groups[0]
    raw = raw_bytes(stored.get_tensor_view())
    scales = scale.get_tensor_view().data.reshape(rows, -1)
    zeros = np.zeros(1, np.float32) if zero is None else _numbers(zero)
    if zeros is None or raw.size * 8 % (rows * bits):
        return None
    if zero is not None and zeros.size > 1 and list(zero.get_output_shape(0)) != per_group:
        return None
    zeros = zeros + moved
    halves = zeros.astype(np.float16)
    if not np.array_equal(halves, zeros) or not np.isfinite(halves).all():
        return None
    halves = np.broadcast_to(halves.reshape(rows, -1) if halves.size > 1 else halves, scales.shape)
    return Weights(raw.reshape(rows, -1), bits, scales, halves, flipped)


def _numbers(constant: ov.Node) -> np.ndarray | None:
    """The values of a constant of 4, 8 or 16 bits, float32; None for others."""
    kind, raw = constant.get_element_type(), raw_bytes(constant.get_tensor_view())
    if kind == ov.Type.u4:
        halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)
        return halves[: int(np.prod(constant.get_output_shape(0)))].astype(np.float32)
    types = {ov.Type.u8: np.uint8, ov.Type.i8: np.int8, ov.Type.f16: np.float16}
    return raw.view(types[kind]).astype(np.float32) if kind in types else None
