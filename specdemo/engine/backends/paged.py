"""A compiled decoder over a paged KV cache: token ids in, rows of logits out. Dropping tokens only
shortens a `KVSequence` and never copies the cache."""

import math
import mmap
from collections.abc import Iterable
from itertools import accumulate, chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino as ov

from ..cache import CACHE_TOKENS, BlockPool, KVSequence, RecurrentPool, RecurrentSequence
from ..cost_model import CostModel
from ..faults import ModelError
from ..forwards import Logits, Model, ModelSettings, Run
from ..pair_files import Checkpoint
from . import graph, kernels, recurrent
from .forward import KernelForward
from .instance import Form, Instance

CACHE = ("KV_CACHE_PRECISION", "f16")  # with which kernels compute attention


def open_model(source: Path | Checkpoint, settings: ModelSettings, core: ov.Core) -> Model:
    """Compile IR, or load a Checkpoint in torch. Raises ModelError when it does not run here."""
    if isinstance(source, Checkpoint):
        from .torch_model import TorchModel

        return TorchModel(source, settings, core)
    return PagedModel(source, settings, core)


Part = tuple[list[int], int, list[int]]
"""A sub-sequence: its tokens, which may be none, the position of the first one, and its blocks."""


class PagedModel:
    """A decoder IR (stateful, with SDPA) with its own paged KV cache. Raises ModelError.

    Every forward ends with an empty sub-sequence, so that the plugin always takes the same
    attention kernel (docs/reference/numerics.md). Forwards are padded to `min_tokens`."""

    paged = True

    def __init__(
        self, xml: Path, settings: ModelSettings | None = None, core: ov.Core | None = None
    ):
        settings = self.settings = settings or ModelSettings()
        self.min_tokens = 1
        self.seconds = 0.0
        self.costs = CostModel()
        core = core or ov.Core()
        self.plugin = kernels.plugin_properties(settings.properties)
        self.kernels = kernels.in_kernels(settings.properties)
        if self.kernels:
            kernels.compilation()  # while the model is read
        model = self._read(core, xml)
        self._instance: Instance | KernelForward
        try:
            if self.kernels:
                self._instance = KernelForward(model, core, self.plugin)
            else:
                self._instance = Instance(core.compile_model(model, "CPU", self.plugin))
        except RuntimeError as error:
            raise ModelError(f"The CPU cannot run this model: {graph.last_line(error)}") from error
        self.threads, self.block_size = self._instance.threads, self._instance.block_tokens
        self.vocabulary_size = self._instance.vocabulary_size
        blocks = -(-CACHE_TOKENS // self.block_size)
        self.resize_cache(blocks)
        if states := self.pool.state_blocks(CACHE_TOKENS):
            self.resize_cache(blocks + states)

    def _read(self, core: ov.Core, xml: Path) -> ov.Model:
        """The graph to compile: its outputs are logits, their log-sum-exp, and states, if any."""
        model = graph.read_ir(core, xml)
        try:
            graph.page_attention(model)
            recurrent.separate_sequences(model)
            self.token_ids = graph.limit_logits(model, self.settings.token_ids)
        except ModelError:
            raise
        except RuntimeError as error:
            why = "The IR is no decoder with a KV cache; export the model again"
            raise ModelError(f"{why}: {graph.last_line(error)}") from error
        if self.settings.hidden is not None:
            graph.add_hidden(model, self.settings.hidden)
        return model

    def _states(self, batch: list[Run], size: int) -> dict[str, np.ndarray]:
        """Further inputs of a forward of `size` tokens, by name."""
        return {}

    def new_sequence(self) -> KVSequence:
        if isinstance(self.pool, RecurrentPool):
            return RecurrentSequence(self.pool, self.block_size)
        return KVSequence(self.pool, self.block_size)

    def fork(self, source: KVSequence, length: int) -> KVSequence:
        """A new sequence with the first `length` tokens of `source`, or as many before them as it
        can go back to. Both share its blocks; before a sequence writes to a shared block, it gets a
        copy."""
        fork, length = self.new_sequence(), source.reach(length)
        fork.tokens = source.tokens[:length]
        fork.blocks = source.blocks[: -(-length // self.block_size)]
        for block in fork.blocks:
            self.pool.references[block] += 1
        if isinstance(fork, RecurrentSequence) and isinstance(source, RecurrentSequence):
            fork.share_states(source)
        return fork

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Append every run's tokens to its sequence, in one inference. Gives the logits of its last
        `rows` tokens, valid until the next forward. Appends nothing if it raises CacheFull or
        ModelError."""
        begun = perf_counter()
        for run in batch:
            self._reserve(run)
        size = sum(len(run.tokens) for run in batch)
        attended = sum(len(run.tokens) * run.sequence.length for run in batch)
        padded = max(size, self.min_tokens)
        inputs = self._inputs(batch, padded) | self._states(batch, padded)
        before = perf_counter()
        try:
            rows, log_sums, *states = self._instance.run(inputs)
        except ModelError:
            raise
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {graph.last_line(error)}") from error
        ended = perf_counter()
        self.seconds += ended - before
        self.costs.record(size, ended - begun, attended)
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
        rows, log_sums = rows.reshape(len(inputs[graph.ROWS_INPUT]), -1), log_sums.reshape(-1)
        joined = [np.concatenate(states, 1)] if states else []
        parts = _slices([run.rows for run in batch]), _slices([len(run.tokens) for run in batch])
        return [
            Logits(rows[part], log_sums[part], *(state[tokens] for state in joined))
            for part, tokens in zip(*parts, strict=True)
        ]

    def _inputs(self, batch: list[Run], size: int) -> dict[str, Any]:
        """The inputs of a forward of this batch, padded to `size` tokens, by name."""
        ends = [*accumulate(len(run.tokens) for run in batch)]
        runs = zip(batch, ends, strict=True)
        wanted = [token for run, end in runs for token in range(end - run.rows, end)]
        if len(wanted) == 1 and size > 1 and self.min_tokens > 1:
            wanted *= 2  # the output matrix rounds a single row differently too
        parts = [part for run in batch for part in self._parts(run)]
        # Padding attends to a scratch block.
        parts += [([0], 0, [self.pool.limit])] * (size - ends[-1]) + [([], 0, [])]
        tokens, starts, blocks = zip(*parts, strict=True)
        further = {}
        if isinstance(self.pool, RecurrentPool):
            further = recurrent.inputs_of(batch, size - ends[-1])
        ends = [start + len(ids) for ids, start in zip(tokens, starts, strict=True)]
        return {
            "input_ids": _joined(tokens),
            "position_ids": _joined(map(range, starts, ends)),
            "past_lens": starts,
            "subsequence_begins": [0, *accumulate(map(len, tokens))],
            "block_indices": _joined(blocks),
            "block_indices_begins": [0, *accumulate(map(len, blocks))],
            "max_context_len": [max(ends)],
            graph.ROWS_INPUT: wanted or [0],
            **further,
        }

    def _parts(self, run: Run) -> list[Part]:
        tokens, start, blocks = list(run.tokens), run.sequence.length, run.sequence.blocks
        if self.kernels or not run.stepwise:  # kernels read the blocks of each token's positions
            return [(tokens, start, blocks[: -(-(start + len(tokens)) // self.block_size)])]
        # All keys and values are written before any token attends, so each sees those before it.
        return [
            ([token], position, blocks[: position // self.block_size + 1])
            for position, token in enumerate(tokens, start)
        ]

    def _reserve(self, run: Run) -> None:
        """Give the sequence unshared blocks for the tokens of a run."""
        assert 0 <= run.rows <= len(run.tokens) > 0, "a run has tokens, and no more rows than those"
        sequence = run.sequence
        first, filled = divmod(sequence.length, self.block_size)
        for index in range(first, len(sequence.blocks)):
            shared = sequence.blocks[index]
            if self.pool.references[shared] > 1:
                [copy] = self.pool.take()
                if index == first and filled:
                    for cache in self._caches:
                        view = graph.raw_bytes(cache).reshape(cache.shape[0], -1)
                        view[copy] = view[shared]
                self.pool.give_back(shared)
                sequence.blocks[index] = copy
        sequence.reserve(sequence.length + len(run.tokens))
        if isinstance(sequence, RecurrentSequence):
            sequence.reserve_states(len(run.tokens), run.stepwise)

    def resize_cache(self, blocks: int) -> None:
        """Bound the cache to `blocks` blocks, before there are sequences. Memory is taken when a
        block is used for the first time."""
        # One block more, for padding.
        self._caches, self.block_bytes = _tables(self._instance.caches, blocks + 1)
        self._instance.set_caches(self._caches)
        self.pool = BlockPool(blocks)
        if isinstance(self._instance, Instance) and (forms := self._instance.tables):
            _, state_bytes = _tables(forms, 1)
            pool = RecurrentPool(blocks, -(-state_bytes // self.block_bytes), self.block_size)
            self._tables, _ = _tables(forms, pool.states.limit + recurrent.FURTHER_BLOCKS)
            self._instance.set_tables(self._tables)
            self.pool = pool


def _tables(forms: list[Form], blocks: int) -> tuple[list[ov.Tensor], int]:
    """Caches of so many blocks in these forms, and the bytes of a block of all of them."""
    tables, total = [], 0
    for kind, shape in forms:
        size = math.prod(shape) * kind.bitwidth // 8
        memory = np.frombuffer(mmap.mmap(-1, blocks * size), np.uint8)
        tables.append(ov.Tensor(memory, ov.Shape([blocks, *shape]), kind))
        total += size
    return tables, total


def _joined(parts: Iterable[Iterable[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def _slices(lengths: list[int]) -> list[slice]:
    """Slices of these lengths, one after the other."""
    ends = accumulate(lengths)
    return [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]
