"""One compiled instance of a decoder: binds the inputs of a paged forward, runs it, gives
logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import openvino as ov

from .graph import ROWS_INPUT

FEW_VALUES = 24
"""Up to so many values the call overhead of numpy exceeds that of a loop."""


@dataclass(frozen=True, slots=True)
class Logits:
    """What a forward says of the next tokens: `rows` float32 [n, vocabulary]; `log_sum` float32
    [n], the log-sum-exp of each, computed in the graph. `state` float32 [n, H] is what a draft head
    reads: hidden states of a target model compiled for one, of a draft head its own next state.
    """

    rows: np.ndarray
    log_sum: np.ndarray
    state: np.ndarray | None = None

    @classmethod
    def of(cls, rows: np.ndarray) -> Logits:
        """The same from rows alone, computed with numpy."""
        top = rows.max(axis=-1)
        return cls(rows, top + np.log(np.exp(rows - top[:, None]).sum(axis=-1)))

    @classmethod
    def views(cls, outputs: list[ov.Tensor], rows: int) -> Logits:
        """Views of a request's output tensors, valid until the request runs again."""
        values, log_sum, *state = (tensor.data for tensor in outputs)
        return cls(values.reshape(rows, -1), log_sum.reshape(-1), *state)

    def __len__(self) -> int:
        return len(self.rows)

    def best(self, at: int) -> int:
        """The argmax of row `at`. OpenVINO's TopK takes two hundred times as long as numpy."""
        return int(self.rows[at].argmax())

    def margin(self, at: int) -> float:
        """By how much the best logit of row `at` exceeds every other."""
        row, best = self.rows[at], self.best(at)
        second = max(row[:best].max(initial=-np.inf), row[best + 1 :].max(initial=-np.inf))
        return float(row[best] - second)

    def probability(self, at: int, column: int) -> float:
        """Softmax of row `at` at `column`, temperature 1."""
        return math.exp(min(float(self.rows[at, column]) - float(self.log_sum[at]), 0.0))

    def part(self, begin: int, end: int) -> Logits:
        """Some of the rows: views."""
        if begin == 0 and end == len(self.rows):
            return self
        return Logits(*(None if one is None else one[begin:end] for one in self._fields))

    def last(self) -> Logits:
        """A copy of the last row, which later forwards leave alone."""
        return Logits(*(None if one is None else one[-1:].copy() for one in self._fields))

    @property
    def _fields(self) -> tuple[np.ndarray | None, ...]:
        return self.rows, self.log_sum, self.state

    def state_of(self, at: int) -> np.ndarray | None:
        """A copy of one row's state."""
        return None if self.state is None else self.state[at].copy()


@dataclass(slots=True)
class Inputs:
    """The inputs of one paged forward, while its sub-sequences are added."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    past: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])
    blocks: list[int] = field(default_factory=list)
    block_begins: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: list[int], start: int, blocks: list[int]) -> None:
        """A sub-sequence: `tokens` at the positions from `start` on, over a block table. No tokens:
        an empty one."""
        self.ids += tokens
        self.positions += range(start, start + len(tokens))
        self.past.append(start)
        self.begins.append(len(self.ids))
        self.blocks += blocks
        self.block_begins.append(len(self.blocks))


class Instance:
    """One compiled instance of a model and its inputs; `tokens` is the one number of tokens that it
    runs, with as many rows of logits, None where both vary."""

    def __init__(self, compiled: ov.CompiledModel, tokens: int | None = None):
        self._tokens = tokens
        self._outputs = range(len(compiled.outputs))
        self.request = compiled.create_infer_request()
        inputs = {port.any_name: port for port in compiled.inputs}
        self._ports = {name: port for name, port in inputs.items() if "_cache." not in name}
        self.cache_ports = [port for name, port in inputs.items() if "_cache." in name]
        self._buffers: dict[tuple[str, int], tuple[ov.Tensor, memoryview]] = {}
        self._bound: dict[str, list[int]] = {}
        self._logits: Logits | None = None
        self.seconds = 0.0
        """Of the last inference."""

    def run(self, inputs: Inputs, longest: int, wanted: list[int]) -> Logits:
        """Run one forward; gives the logits of the rows `wanted`, valid until the next run."""
        self._bind("input_ids", inputs.ids)
        self._bind("position_ids", inputs.positions)
        self._bind("past_lens", inputs.past)
        self._bind("subsequence_begins", inputs.begins)
        self._bind("block_indices", inputs.blocks)
        self._bind("block_indices_begins", inputs.block_begins)
        self._bind("max_context_len", [longest])
        self._bind(ROWS_INPUT, wanted)
        before = perf_counter()
        # Without share_outputs the results would be copied into arrays that nobody reads.
        self.request.infer(share_outputs=True)
        self.seconds = perf_counter() - before
        if self._logits is not None:
            return self._logits
        outputs = [self.request.get_output_tensor(index) for index in self._outputs]
        if self._tokens is None:
            return Logits.views(outputs, len(wanted))
        # Every run gives as many rows: from now on they are written to these tensors.
        own = []
        for index, output in enumerate(outputs):
            own.append(ov.Tensor(output.element_type, output.shape))
            own[-1].data[:] = output.data
            self.request.set_output_tensor(index, own[-1])
        self._logits = Logits.views(own, len(wanted))
        return self._logits

    def _bind(self, name: str, values: list[int]) -> None:
        """Put `values`, which nobody changes afterwards, into the input `name`, through a tensor
        kept for that size: allocation costs more than this."""
        bound = self._bound.get(name)
        if bound == values:
            return
        size = len(values)
        buffer = self._buffers.get((name, size))
        if buffer is None:
            port = self._ports[name]
            shape = [] if port.partial_shape.rank.get_length() == 0 else [size]
            tensor = ov.Tensor(port.element_type, ov.Shape(shape))
            if len(self._buffers) > 4096:
                self._buffers.clear()
                bound = None
            buffer = self._buffers[name, size] = (tensor, memoryview(tensor.data.reshape(-1)))
        tensor, view = buffer
        if size <= FEW_VALUES:
            for at, value in enumerate(values):
                view[at] = value
        else:
            np.asarray(view)[:] = values
        if bound is None or len(bound) != size:
            self.request.set_tensor(self._ports[name], tensor)
        self._bound[name] = values
