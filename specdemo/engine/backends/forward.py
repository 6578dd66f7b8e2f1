"""The forward of a model in kernels: the plugin computes what its first steps read (embeddings,
cosines and sines of positions), and one call of compiled code all else, logits included."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ctypes import addressof, c_char
from functools import partial
from itertools import accumulate

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ..faults import ModelError
from .attention import ATTENTION, BLOCK_TOKENS, CACHE_TYPE, key_of, source_of_view, token_width
from .forward_steps import NORMS, OPERATIONS, Step, find_steps
from .graph import (
    ROWS_INPUT,
    add_log_sums,
    is_product,
    named_input,
    raw_bytes,
    split_products,
    uncut_tables,
)
from .instance import Form, Inputs, Instance, RowInstances
from .kernels import compiled
from .tiles import LANES, LINE_BYTES, Matrix, pack, room_for

LAYOUT = 4  # slots with the positions, first blocks and blocks of tokens, and the chosen rows


class KernelForward:
    """A model whose results are logits, their log-sum-exp, and states of all tokens. Raises
    ModelError if kernels compute only parts of it."""

    def __init__(self, model: ov.Model, core: ov.Core, properties: dict[str, str]):
        split_products(model)
        uncut_tables(model)
        results = [source_of_view(result.input_value(0)) for result in model.get_results()]
        logits, log_sum, *states = results
        steps, inputs = find_steps(model, [logits, *states])
        self._front = RowInstances(_front(inputs), core, properties)
        self.threads, self.block_tokens = self._front.threads, BLOCK_TOKENS
        self.vocabulary_size, self._log_sums = token_width(logits), None
        if self.vocabulary_size % LANES:  # rows that fill no registers
            self._log_sums = Instance(core.compile_model(_log_sums(logits), "CPU", properties))
            results.remove(log_sum)
        else:
            summed = partial(Step, operation="LogSumExp", key=key_of(log_sum), width=1)
            steps.append(summed(sources=[logits], size=self.vocabulary_size))
        self._program = Program(steps, inputs, [*map(key_of, results)])
        self.attentions = [step.attention for step in steps if step.attention]
        compiled().start(self.threads)

    @property
    def caches(self) -> list[Form]:
        """Keys and values of every layer."""
        return [(CACHE_TYPE, layer.cache_shape) for layer in self.attentions for _ in range(2)]

    def set_caches(self, caches: list[ov.Tensor]) -> None:
        addresses = [raw_bytes(cache).ctypes.data for cache in caches]
        for index, layer in enumerate(self.attentions):
            layer.description[-2:] = addresses[2 * index : 2 * index + 2]

    def run(self, inputs: Inputs) -> list[np.ndarray]:
        """Gives the results, float32 [rows, width] each, valid until the next run. Raises
        ModelError for inputs with different numbers of tokens."""
        values = self._front.run(inputs)
        layout = []
        if self.attentions:
            counts = np.diff(inputs["subsequence_begins"])
            firsts = np.repeat(inputs["block_indices_begins"][:-1], counts)
            parts = inputs["position_ids"], firsts, inputs["block_indices"], inputs[ROWS_INPUT]
            layout = [np.array(part, np.int32) for part in parts]
        logits, *others = self._program.run(values, layout)
        if self._log_sums:
            others.insert(0, self._log_sums.run({"logits": logits})[1])
        return [logits, *others]


def _front(outputs: list[ov.Output]) -> ov.Model:
    """A graph with these `outputs`. Raises ModelError if it has products or attention, which
    kernels should compute."""
    reached, nodes = {}, [output.get_node() for output in outputs]
    while nodes:
        node = nodes.pop()
        if node.get_name() not in reached:
            reached[node.get_name()] = node
            nodes += [value.get_node() for value in node.input_values()]
    if any(node.get_type_name() == ATTENTION or is_product(node) for node in reached.values()):
        raise ModelError("The kernels compute only parts of this model; the plugin computes it.")
    parameters = [node for node in reached.values() if node.get_type_name() == "Parameter"]
    return ov.Model([ops.result(output) for output in outputs], parameters, "front")


def _log_sums(logits: ov.Output) -> ov.Model:
    """A graph that gives its input and the log-sum-exp of each row."""
    rows = named_input("logits", [-1, token_width(logits)], ov.Type.f32)
    model = ov.Model([ops.result(rows)], [rows], "log_sums")
    add_log_sums(model)
    return model


class Program:
    """Steps as the code reads them, which compute `results` of `inputs`, by their keys. It has the
    memory that they need.

    A step has the index of its operation, the slots of its result and its three operands, a width,
    and a number: the address of a matrix or an attention, the columns of a group, the bits of an
    epsilon, the size of a head and of its turned part, or by how much the row of the second operand
    grows with each row. In place of a norm's third operand is its size. Slots hold the addresses of
    the LAYOUT, inputs, results and constants, and of registers with so many bytes for each row.
    Rounded activations are in three registers: values, scales and sums."""

    def __init__(self, steps: list[Step], inputs: list[ov.Output], results: list[str]):
        self._inputs, self._results = [*map(key_of, inputs)], results
        self._widths = [token_width(output) for output in inputs]
        operations = [step.operation for step in steps]
        first = operations.index("Choose") if "Choose" in operations else len(steps)
        self._chosen = {step.key for step in steps[first:]}
        made = (step for step in steps if step.key in results)
        self._made = {step.key: np.empty((0, step.width), np.float32) for step in made}
        self._constants = [step.constant for step in steps if step.constant is not None]
        self._matrices = _packed(steps)
        registers, written = self._write(steps)
        self._steps = np.array(written, np.int64)
        first = LAYOUT + len(inputs) + len(self._made)
        self._registers = first + len(self._constants)
        self._slots = np.zeros(self._registers + len(registers), np.int64)
        self._slots[first : self._registers] = [row.ctypes.data for row in self._constants]
        # In lines of the processor's cache.
        *starts, self._row_bytes = accumulate(
            (-(-size // LINE_BYTES) * LINE_BYTES for size in registers), initial=0
        )
        self._starts, self._memory = np.array(starts, np.int64), (0, 0)
        self._arguments = self._steps.ctypes.data, len(self._steps), self._slots.ctypes.data

    def run(self, given: list[np.ndarray], layout: list[np.ndarray]) -> list[np.ndarray]:
        """Compute the results of inputs, float32 [rows, ...] each; the next run overwrites them.
        `layout`, int32: positions and first blocks [rows], blocks, and the chosen rows; empty
        without attention."""
        rows = given[0].size // self._widths[0]
        if [array.size for array in given] != [rows * width for width in self._widths]:
            raise ModelError("The inputs of this model have different numbers of tokens.")
        chosen = len(layout[-1]) if layout else rows
        pairs = zip(self._inputs, given, strict=True)
        values = {key: array.reshape(rows, -1) for key, array in pairs}
        for key, result in self._made.items():
            count = chosen if key in self._chosen else rows
            if len(result) < count:
                self._made[key] = result = np.empty((count, result.shape[1]), np.float32)
            values[key] = result[:count]
        kernels = compiled()
        with kernels.lock:
            memory = rows, kernels.room(rows * self._row_bytes)
            if memory != self._memory:
                self._memory = memory
                self._slots[self._registers :] = memory[1] + rows * self._starts
            arrays = [*given, *self._made.values()]
            self._slots[: len(layout)] = [*map(_address, layout)]
            self._slots[LAYOUT : LAYOUT + len(arrays)] = [*map(_address, arrays)]
            kernels.run(*self._arguments, rows, chosen)
        return [values[key] for key in self._results]

    def _write(self, steps: list[Step]) -> tuple[list[int], list[tuple[int, ...]]]:
        """Bytes of a row of each register, and the steps. Gives every value a slot; a register that
        is not read any more takes a later result."""
        products = [step.weights for step in steps if step.weights]
        groups = max((weights.columns // weights.group for weights in products), default=0)
        columns = max((weights.columns for weights in products), default=0)
        registers = [2 * columns, 4 * groups, 4 * groups]
        written: list[tuple[int, ...]] = []
        slots = {key: slot for slot, key in enumerate([*self._inputs, *self._made], LAYOUT)}
        constant = LAYOUT + len(slots)
        rounded = constant + len(self._constants)
        cached = None  # what the registers of rounded activations hold
        free: list[int] = []  # registers that are not read any more
        uses = Counter(key_of(source) for step in steps for source in step.sources)
        for step in steps:
            keys = [key_of(source) for source in step.sources]
            x, width, number = slots[keys[0]], step.width, step.number
            if weights := step.weights:
                number = self._matrices[step.key].address
                if cached != (keys[0], weights.bits, weights.group):
                    cached = keys[0], weights.bits, weights.group
                    rounding = OPERATIONS.index(f"Round{weights.bits}")
                    written.append((rounding, 0, x, rounded, 0, weights.columns, weights.group))
            uses.subtract(keys)
            other, third = slots[keys[-1]], 0
            if step.attention:
                store, key, value = OPERATIONS.index("Store"), slots[keys[1]], slots[keys[2]]
                written.append((store, 0, key, value, 0, width, number))
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
            early = {"Attend": later, "Rotate": keys[:1], "Choose": []}.get(step.operation, keys)
            free += [slots[key] for key in ended if key in early]
            if step.key not in slots:
                fitting = (slot for slot in free if registers[slot - rounded] == 4 * width)
                slots[step.key] = next(fitting, rounded + len(registers))
                if slots[step.key] in free:
                    free.remove(slots[step.key])
                else:
                    registers.append(4 * width)
            free += [slots[key] for key in ended if key not in early]
            code = OPERATIONS.index(step.operation)
            written.append((code, slots[step.key], x, other, third, width, number))
        return registers, written


def _address(array: np.ndarray) -> int:
    return addressof(c_char.from_buffer(array.data))  # 1 us less than `ctypes.data`


def _packed(steps: list[Step]) -> dict[str, Matrix]:
    """The matrices of products by their keys."""
    weights = {step.key: step.weights for step in steps if step.weights}
    with ThreadPoolExecutor() as pool:
        packed = pool.map(pack, weights.values(), room_for(weights.values()))
        return dict(zip(weights, packed, strict=True))
