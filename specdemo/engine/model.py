"""A compiled decoder over a paged KV cache: token ids in, rows of logits out. Dropping tokens only
shortens a `KVSequence` and never copies the cache."""

import math
import mmap
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import openvino as ov

from .cache import CACHE_TOKENS, BlockPool, KVSequence
from .checkpoint import Checkpoint
from .cost_model import CostModel
from .faults import ModelError
from .graph import ROWS_INPUT, last_line, read_decoder, to_paged, with_fixed_shape
from .messages import Logits, Model, ModelSettings, Run
from .products import raw_bytes, split_products

COMPILED_TOGETHER = 2  # instances at a time: a compilation mostly uses one thread


def open_model(source: Path | Checkpoint, settings: ModelSettings, core: ov.Core) -> Model:
    """Compile IR, or load a Checkpoint in torch. Raises ModelError when it does not run here."""
    if isinstance(source, Checkpoint):
        from .torch_model import TorchModel

        return TorchModel(source, settings, core)
    return PagedModel(source, settings, core)


class Part(NamedTuple):
    """A sub-sequence: `tokens` (may be empty) at the positions from `start`, and its blocks."""

    tokens: list[int]
    start: int
    blocks: list[int]


class Instance:
    """A compiled instance of a model, and its inputs. `seconds` is of the last inference."""

    def __init__(self, compiled: ov.CompiledModel):
        self._outputs = range(len(compiled.outputs))
        self._fixed = all(port.partial_shape.is_static for port in compiled.outputs)
        self._logits: Logits | None = None  # of a fixed shape: views of the same memory each time
        self.request = compiled.create_infer_request()
        inputs = {port.any_name: port for port in compiled.inputs}
        self._ports = {name: port for name, port in inputs.items() if "_cache." not in name}
        self.cache_ports = [port for name, port in inputs.items() if "_cache." in name]
        self._buffers: dict[tuple[str, int], tuple[ov.Tensor, np.ndarray]] = {}
        self._bound: dict[str, list[int]] = {}
        self.seconds = 0.0

    def run(self, parts: list[Part], wanted: list[int], states: dict[str, np.ndarray]) -> Logits:
        """Run one forward, with `states` as further inputs; gives the logits of the rows `wanted`,
        valid until the next run."""
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        begins, block_begins, longest = [0], [0], 0
        for tokens, start, table in parts:
            end = start + len(tokens)
            ids += tokens
            positions += range(start, end)
            begins.append(len(ids))
            blocks += table
            block_begins.append(len(blocks))
            longest = max(longest, end)
        self._bind("input_ids", ids)
        self._bind("position_ids", positions)
        self._bind("past_lens", [part.start for part in parts])
        self._bind("subsequence_begins", begins)
        self._bind("block_indices", blocks)
        self._bind("block_indices_begins", block_begins)
        self._bind("max_context_len", [longest])
        self._bind(ROWS_INPUT, wanted)
        for name, array in states.items():
            self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        before = perf_counter()
        # Without share_outputs the results would be copied into unused arrays.
        self.request.infer(share_outputs=True)
        self.seconds = perf_counter() - before
        if self._logits is None or not self._fixed:
            outputs = [self.request.get_output_tensor(index).data for index in self._outputs]
            rows, log_sum, *state = outputs
            self._logits = Logits(rows.reshape(len(wanted), -1), log_sum.reshape(-1), *state)
        return self._logits

    def _bind(self, name: str, values: list[int]) -> None:
        """Set the input `name` to `values` through a tensor kept for that size: allocation costs
        more. Callers never change `values` afterwards."""
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


class PagedModel:
    """A decoder IR (stateful, with SDPA) with its own paged KV cache. Raises ModelError.

    Every forward ends with an empty sub-sequence, so that the plugin always takes the same
    attention kernel (docs/reference/numerics.md). Forwards are padded to `least_tokens`, and
    stepwise ones to the size that `costs` chooses, except a single `unpadded` run. A new size makes
    the plugin prepare every layer anew. So sizes in `settings.fixed_shapes` have instances of their
    own, once `compiling` has made them. All instances share the cache."""

    def __init__(
        self, xml: Path, settings: ModelSettings | None = None, core: ov.Core | None = None
    ):
        settings = self.settings = settings or ModelSettings()
        self.least_tokens = 1
        self.seconds = 0.0
        self.costs = CostModel()
        self.size = 0
        core = core or ov.Core()
        model = self._read(core, xml)
        if settings.properties:  # without any, exactness is not asked for
            split_products(core, model, dict(settings.properties))
        self.compiling = self._compile_fixed(core, model)
        try:
            compiled = core.compile_model(model, "CPU", dict(settings.properties))
            self.threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        except RuntimeError as error:
            raise ModelError(f"The CPU cannot run this model: {last_line(error)}") from error
        self._any = Instance(compiled)
        self._fixed: dict[int, Instance] = {}
        ports = self._any.cache_ports
        values = next(port for port in ports if port.any_name.startswith("value_cache."))
        self.block_size = values.partial_shape[2].get_length()
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self.resize_cache(-(-CACHE_TOKENS // self.block_size))

    def _read(self, core: ov.Core, xml: Path) -> ov.Model:
        """The graph to compile: its outputs are logits, their log-sum-exp, and states, if any."""
        model = read_decoder(core, xml)
        to_paged(model, self.settings.vocabulary, self.settings.hidden)
        return model

    def _inputs(self, batch: list[Run], size: int) -> dict[str, np.ndarray]:
        """Further inputs of a forward of `size` tokens, by name."""
        return {}

    def new_sequence(self) -> KVSequence:
        return KVSequence(self.pool, self.block_size)

    def fork(self, source: KVSequence, length: int) -> KVSequence:
        """A new sequence with the first `length` tokens of `source`. Both share its blocks; before
        a sequence writes to a shared block, it gets a copy."""
        fork = self.new_sequence()
        fork.tokens = source.tokens[:length]
        fork.blocks = source.blocks[: -(-length // self.block_size)]
        for block in fork.blocks:
            self.pool.references[block] += 1
        return fork

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Append every run's tokens to its sequence, in one inference. Gives the logits of its last
        `rows` tokens, valid until the next forward. Appends nothing if it raises CacheFull or
        ModelError."""
        begun = perf_counter()
        parts: list[Part] = []
        wanted: list[int] = []
        count = attended = 0
        for run in batch:
            attended += len(run.tokens) * run.sequence.length
            parts += self._parts(run)
            count += len(run.tokens)
            wanted += range(count - run.rows, count)
        exact = len(batch) == 1 and batch[0].unpadded
        stepwise = all(run.stepwise and run.rows for run in batch)
        size = self.costs.choose(count) if stepwise and not exact else count
        size = size if exact else max(size, self.least_tokens)
        instance = self._fixed.get(size, self._any) if stepwise else self._any
        answers = list(range(len(wanted)))
        if instance is not self._any:
            wanted, answers = list(range(size)), wanted  # a fixed shape gives every row
        elif len(wanted) == 1 and size > 1 and self.least_tokens > 1:
            wanted *= 2  # the head's product for a single row rounds differently too
        # Padding rows attend to a scratch block.
        parts += [Part([0], 0, [self.pool.limit])] * (size - count) + [Part([], 0, [])]
        try:
            logits = instance.run(parts, wanted or [0], self._inputs(batch, size))
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        self.seconds += instance.seconds
        self.size = size
        self.costs.record(size, perf_counter() - begun, attended)
        results = []
        begin = read = 0
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
            first = answers[begin] if run.rows else 0
            part = logits.part(first, first + run.rows)
            if logits.state is not None:
                part = part._replace(state=logits.state[read : read + len(run.tokens)])
            results.append(part)
            begin += run.rows
            read += len(run.tokens)
        return results

    def _parts(self, run: Run) -> list[Part]:
        """The sub-sequences of a run. Reserves the blocks that their tokens are written to."""
        sequence, tokens, size = run.sequence, list(run.tokens), self.block_size
        assert 0 <= run.rows <= len(tokens) > 0, "a run has tokens, and no more rows than those"
        start = sequence.length
        end = start + len(tokens)
        self._reserve(sequence, start, end)
        if not run.stepwise:
            return [Part(tokens, start, sequence.blocks[: -(-end // size)])]
        # All keys and values are written before any token attends, so each sees those before it.
        return [
            Part([token], position, sequence.blocks[: position // size + 1])
            for position, token in enumerate(tokens, start)
        ]

    def _reserve(self, sequence: KVSequence, start: int, end: int) -> None:
        """Give the sequence blocks of its own for the positions `start` to `end`."""
        first, filled = divmod(start, self.block_size)
        for index in range(first, len(sequence.blocks)):
            shared = sequence.blocks[index]
            if self.pool.references[shared] > 1:
                [own] = self.pool.take()
                if index == first and filled:
                    for cache in self._caches:
                        view = raw_bytes(cache).reshape(cache.shape[0], -1)
                        view[own] = view[shared]
                self.pool.give_back(shared)
                sequence.blocks[index] = own
        sequence.reserve(end)

    def _compile_fixed(self, core: ov.Core, model: ov.Model) -> Generator[None]:
        """Compile the fixed shapes, COMPILED_TOGETHER before each yield. Holds the graph."""
        properties, sizes = dict(self.settings.properties), self.settings.fixed_shapes
        for begin in range(0, len(sizes), COMPILED_TOGETHER):
            chosen = sizes[begin : begin + COMPILED_TOGETHER]
            with ThreadPoolExecutor(COMPILED_TOGETHER) as pool:
                graphs = [with_fixed_shape(model, size) for size in chosen]
                compiled = pool.map(
                    lambda graph: core.compile_model(graph, "CPU", properties), graphs
                )
                for size, instance in zip(chosen, compiled, strict=True):
                    self._add_fixed(size, Instance(instance))
            yield

    def _add_fixed(self, size: int, instance: Instance) -> None:
        """Use an instance if it gives the same bits as the first one."""
        self._bind_cache(instance)
        before, rows = self._fixed, []
        with self.new_sequence() as sequence:
            run = Run(sequence, list(range(size)), size, stepwise=True, unpadded=True)
            for self._fixed in ({}, {size: instance}):
                rows.append(self.forward([run])[0].rows.copy())
                sequence.truncate(0)
        self._fixed = before | {size: instance} if np.array_equal(rows[0], rows[1]) else before

    @property
    def block_bytes(self) -> int:
        """Bytes of one cache block: keys and values of `block_size` tokens in all layers."""
        size: int = sum(cache.byte_size for cache in self._caches)
        return size // (self.pool.limit + 1)

    def resize_cache(self, blocks: int) -> None:
        """Bound the cache to `blocks` blocks, before there are sequences and fixed shapes. Memory
        is taken when a block is used for the first time."""
        self._caches = []
        for port in self._any.cache_ports:
            # One block more, for padding.
            shape = [blocks + 1, *(port.partial_shape[axis].get_length() for axis in (1, 2, 3))]
            memory = mmap.mmap(-1, math.prod(shape) * port.element_type.bitwidth // 8)
            view = np.frombuffer(memory, np.uint8)
            self._caches.append(ov.Tensor(view, ov.Shape(shape), port.element_type))
        self._bind_cache(self._any)
        self.pool = BlockPool(blocks)

    def _bind_cache(self, instance: Instance) -> None:
        for port, cache in zip(instance.cache_ports, self._caches, strict=True):
            instance.request.set_tensor(port, cache)
