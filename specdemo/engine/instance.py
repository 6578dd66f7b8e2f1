"""One compiled instance of a decoder: binds the inputs of a paged forward, runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
import openvino as ov

from .graph import ROWS_INPUT


class Logits(NamedTuple):
    """What a forward says of the next tokens: `rows` float32 [n, vocabulary]; `log_sum` float32
    [n], the log-sum-exp of each, computed in the graph. `state` float32 [n, H] is what a draft head
    reads: hidden states of a target model compiled for one, of a draft head its own next state."""

    rows: np.ndarray
    log_sum: np.ndarray
    state: np.ndarray | None = None

    @classmethod
    def of(cls, rows: np.ndarray) -> Logits:
        """The same from rows alone, computed with numpy."""
        top = rows.max(axis=-1)
        return cls(rows, top + np.log(np.exp(rows - top[:, None]).sum(axis=-1)))

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
        return Logits(*(None if one is None else one[begin:end] for one in self))

    def last(self) -> Logits:
        """A copy of the last row, which later forwards leave alone."""
        return Logits(*(None if one is None else one[-1:].copy() for one in self))

    def state_of(self, at: int) -> np.ndarray | None:
        """A copy of one row's state."""
        return None if self.state is None else self.state[at].copy()


@dataclass
class Inputs:
    """The inputs of one paged forward by their names, while its sub-sequences are added."""

    input_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    past_lens: list[int] = field(default_factory=list)
    subsequence_begins: list[int] = field(default_factory=lambda: [0])
    block_indices: list[int] = field(default_factory=list)
    block_indices_begins: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: list[int], start: int, blocks: list[int]) -> None:
        """A sub-sequence: `tokens` at the positions from `start` on, over a block table. No tokens:
        an empty one."""
        self.input_ids += tokens
        self.position_ids += range(start, start + len(tokens))
        self.past_lens.append(start)
        self.subsequence_begins.append(len(self.input_ids))
        self.block_indices += blocks
        self.block_indices_begins.append(len(self.block_indices))


class Instance:
    """One compiled instance of a model and its inputs."""

    def __init__(self, compiled: ov.CompiledModel):
        self._outputs = range(len(compiled.outputs))
        self.request = compiled.create_infer_request()
        inputs = {port.any_name: port for port in compiled.inputs}
        self._ports = {name: port for name, port in inputs.items() if "_cache." not in name}
        self.cache_ports = [port for name, port in inputs.items() if "_cache." in name]
        self._buffers: dict[tuple[str, int], tuple[ov.Tensor, np.ndarray]] = {}
        self._bound: dict[str, list[int]] = {}
        self.seconds = 0.0
        """Of the last inference."""

    def run(self, inputs: Inputs, longest: int, wanted: list[int]) -> Logits:
        """Run one forward; gives the logits of the rows `wanted`, valid until the next run."""
        for name, values in vars(inputs).items():
            self._bind(name, values)
        self._bind("max_context_len", [longest])
        self._bind(ROWS_INPUT, wanted)
        before = perf_counter()
        # Without share_outputs the results would be copied into arrays that nobody reads.
        self.request.infer(share_outputs=True)
        self.seconds = perf_counter() - before
        outputs = (self.request.get_output_tensor(index).data for index in self._outputs)
        rows, log_sum, *state = outputs
        return Logits(rows.reshape(len(wanted), -1), log_sum.reshape(-1), *state)

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
            buffer = self._buffers[name, size] = (tensor, tensor.data.reshape(-1))
        tensor, view = buffer
        view[:] = values
        if bound is None or len(bound) != size:
            self.request.set_tensor(self._ports[name], tensor)
        self._bound[name] = values
