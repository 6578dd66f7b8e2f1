"""A compiled decoder over a paged KV cache: token ids in, rows of logits out.

Knows numpy and OpenVINO only. A `Sequence` is a block table and the tokens whose keys and values those blocks
hold; forgetting tokens is arithmetic on it, never a copy of the cache.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from .errors import CacheFull, ModelError, NoPagedAttention
from .graph import ROWS_INPUT, kept_tokens, last_line, raw_bytes, read_decoder, to_paged

PREFILL_CHUNK = 256
"""Tokens a prefill forward takes at once, so that a stop request waits for at most one chunk."""

FIRST_BLOCKS = 32

FEW_VALUES = 24
"""Written one by one: numpy has taken that time before it begins."""

OUTPUTS = 4
"""Of a shaped graph: the fields of `Logits`, in their order."""


class BlockPool:
    """Which cache blocks are free, and how many sequences share each used one. Holds no tensors."""

    def __init__(self, blocks: int, limit: int | None = None):
        self.limit = limit
        self.references = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))

    @property
    def used(self) -> int:
        return len(self.references) - len(self.free)

    def take(self) -> int | None:
        """A free block, now referenced once, or None when there is none."""
        if not self.free:
            return None
        block = self.free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        assert self.references[block] > 0, "only a used block can be shared"
        self.references[block] += 1

    def give_back(self, block: int) -> None:
        assert self.references[block] > 0, "a block was given back twice"
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)

    def grown_size(self, wanted: int) -> int:
        """The pool size that gives `wanted` more free blocks: doubling, up to the limit. Raises CacheFull."""
        needed = self.used + wanted
        if self.limit is not None and needed > self.limit:
            raise CacheFull(f"The KV cache is full: {needed} blocks wanted, {self.limit} allowed.")
        size = max(len(self.references), 1)
        while size < needed:
            size *= 2
        return size if self.limit is None else min(size, self.limit)

    def grow(self, size: int) -> None:
        old = len(self.references)
        self.references.extend([0] * (size - old))
        self.free[:0] = range(size - 1, old - 1, -1)


class Sequence:
    """The tokens whose keys and values are in the cache, and the blocks that hold them.

    Made by `PagedModel.new_sequence` and `fork`; `release` it when done (also a context manager). `min_tokens` is the
    least number of tokens it contributes to a forward: with 2, no kernel for a single token is ever taken, and logits
    do not depend on how many tokens are run together (docs/numerics.md).
    """

    def __init__(self, pool: BlockPool, block_size: int, min_tokens: int):
        self._pool = pool
        self._block_size = block_size
        self.min_tokens = min_tokens
        self.tokens: list[int] = []
        self.blocks: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Forget every token past the first `length`: O(tokens forgotten), whatever the context.

        Blocks stay in the table: the next forward writes over the forgotten slots.
        """
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate a sequence of {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]

    def trim_blocks(self) -> None:
        """Give back the blocks past the last token."""
        keep = -(-len(self.tokens) // self._block_size)
        while len(self.blocks) > keep:
            self._pool.give_back(self.blocks.pop())

    def release(self) -> None:
        """Give every block back; the sequence is empty afterwards. Twice is harmless."""
        self.tokens.clear()
        self.trim_blocks()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Logits:
    """What a forward says of the tokens to come: `rows` float32 [n, vocabulary]; `best` int32 [n], each row's argmax;
    `log_sum` float32 [n], its log-sum-exp; `margin` float32 [n], by how much the best logit exceeds every other.

    All but the rows are computed in the graph: there the rows are still in the processor's cache, here they would be
    read from memory again.
    """

    rows: np.ndarray
    best: np.ndarray
    log_sum: np.ndarray
    margin: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Logits:
        """The same from rows alone, computed here."""
        top = rows.max(axis=-1)
        second = np.partition(rows, -2, axis=-1)[:, -2]
        log_sum = top + np.log(np.exp(rows - top[:, None]).sum(axis=-1))
        return cls(rows, rows.argmax(axis=-1), log_sum, top - second)

    @classmethod
    def read(cls, request: ov.InferRequest, rows: int) -> Logits:
        """The outputs of a graph that `shape_head` has shaped: views, valid until the request runs again."""
        return cls.views([request.get_output_tensor(index) for index in range(OUTPUTS)], rows)

    @classmethod
    def views(cls, outputs: list[ov.Tensor], rows: int) -> Logits:
        """The same from the output tensors themselves."""
        values, *others = (tensor.data for tensor in outputs)
        return cls(values.reshape(rows, -1), *(other.reshape(-1) for other in others))

    def __len__(self) -> int:
        return len(self.rows)

    def probability(self, at: int, column: int) -> float:
        """Softmax of row `at` at `column`, temperature 1."""
        return math.exp(min(float(self.rows[at, column]) - float(self.log_sum[at]), 0.0))

    def part(self, begin: int, end: int) -> Logits:
        """Some of the rows: views."""
        if begin == 0 and end == len(self.best):
            return self
        return Logits(self.rows[begin:end], self.best[begin:end], self.log_sum[begin:end], self.margin[begin:end])

    def last(self) -> Logits:
        """A copy of the last row, that later forwards leave alone."""
        return Logits(self.rows[-1:].copy(), self.best[-1:].copy(), self.log_sum[-1:].copy(), self.margin[-1:].copy())


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a forward: append `tokens`, return logits for the last `rows` of them.

    `stepwise` attends token by token, each as a part of the forward of its own over the same blocks: the kernel for a
    single query reads the cache as it lies, the one for several first rearranges all of it, which for a few tokens at
    a long context takes longer than the attention itself (docs/numerics.md). For prompts the latter is the faster.
    `lone` runs a single token without padding, whatever the sequence's `min_tokens`: faster, and rounded differently.
    """

    sequence: Sequence
    tokens: tuple[int, ...] | list[int]
    rows: int
    stepwise: bool = False
    lone: bool = False


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a decoder is compiled.

    `properties` go to the OpenVINO plugin as they are. `block_limit` bounds the KV cache, in blocks, which is then
    allocated at once; with None it grows as needed. `paged` False asks `engine.open` for the stateful path. `lanes` are
    numbers of tokens for which the model is compiled once more each (see `PagedModel`).
    """

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()
    block_limit: int | None = None
    paged: bool = True
    lanes: tuple[int, ...] = ()


class _Lane:
    """One compiled instance of a model, with its inputs; `tokens` is the one number of tokens that it runs, with as many
    rows of logits, None where both vary."""

    def __init__(self, compiled: ov.CompiledModel, tokens: int | None = None):
        self._tokens = tokens
        self.request = compiled.create_infer_request()
        inputs = {port.any_name: port for port in compiled.inputs}
        self._ports = {name: port for name, port in inputs.items() if "_cache." not in name}
        self.cache_ports = [port for name, port in inputs.items() if "_cache." in name]
        self._buffers: dict[tuple[str, int], tuple[ov.Tensor, memoryview]] = {}
        self._bound: dict[str, list[int]] = {}
        self._logits: Logits | None = None

    def bind(self, name: str, values: list[int]) -> None:
        """Put `values`, which nobody changes afterwards, into the input `name`, through a tensor kept for that size:
        allocation costs more than this."""
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

    def infer(self, rows: int) -> Logits:
        """Run the inputs as they are bound; gives the logits of `rows` rows, valid until the next run."""
        # Without this the results would be copied, into arrays that nobody asked for.
        self.request.infer(share_outputs=True)
        if self._logits is None:
            if self._tokens is None:
                return Logits.read(self.request, rows)
            # All runs give as many rows: from now on they are written where we have them at hand.
            own = []
            for index in range(OUTPUTS):
                tensor = self.request.get_output_tensor(index)
                own.append(ov.Tensor(tensor.element_type, tensor.shape))
                own[-1].data[:] = tensor.data
                self.request.set_output_tensor(index, own[-1])
            self._logits = Logits.views(own, rows)
        return self._logits


class PagedModel:
    """An OpenVINO decoder IR (stateful, with SDPA), compiled once, its KV cache in blocks we own.

    `head_tokens` (int array [h], ascending) trims the output head to those token ids: logits then have h columns,
    column j standing for token `head_tokens[j]`. `vocabulary` does the same for the ids below it, where the model has
    more. Thread safe: forwards are serialised by a lock.

    Whenever a forward has another number of tokens than the one before, the plugin prepares every layer anew, which for a
    small model costs half a step or a whole one. So stepwise forwards of up to the largest of `settings.lanes` tokens go
    to an instance of the compiled model that sees one number of tokens only, filled up to it with tokens that nobody
    reads; all instances share the cache.

    Raises ModelError when the file is not such a decoder, NoPagedAttention when it cannot be had for it on this device.
    """

    note = ""
    """What a user should know of the path that was taken; nothing for this one."""

    def __init__(
        self,
        xml: Path | str,
        settings: ModelSettings = ModelSettings(),
        *,
        head_tokens: np.ndarray | None = None,
        vocabulary: int | None = None,
        core: ov.Core | None = None,
    ):
        self.settings = settings
        self._lock = threading.RLock()
        core = core or ov.Core()
        model = read_decoder(core, xml)
        self.head_tokens = kept_tokens(model, head_tokens, vocabulary)
        to_paged(model, self.head_tokens)
        properties = dict(settings.properties)
        sizes = sorted(settings.lanes)
        try:
            with ThreadPoolExecutor(len(sizes) + 1) as pool:  # together they take little longer than one
                instances = pool.map(lambda _: core.compile_model(model, settings.device, properties), [0, *sizes])
                compiled, *others = instances
            self._any = _Lane(compiled)
            self._lanes = [(size, _Lane(other, size)) for size, other in zip(sizes, others, strict=True)]
            self._cache_ports = self._any.cache_ports
            values = next(port for port in self._cache_ports if port.any_name.startswith("value_cache."))
            self.block_size = values.partial_shape[2].get_length()
        except (RuntimeError, StopIteration) as error:
            raise NoPagedAttention(
                f"{settings.device} cannot run this model with paged attention: {last_line(error)}"
            ) from error
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self._caches: list[ov.Tensor] = []
        self.pool = BlockPool(0, settings.block_limit)
        self._grow(FIRST_BLOCKS if settings.block_limit is None else settings.block_limit)
        self.seconds = 0.0
        self.forwards = 0

    def keeps_its_cache(self) -> bool:
        """Whether the device writes keys and values where we can keep them: found by running two tokens.

        The CPU does. A device that works on a copy of its inputs would lose them without an error.
        """
        with self.new_sequence() as sequence:
            self.forward([Run(sequence, [0, 0], 1)])
            return any(raw_bytes(cache).any() for cache in self._caches)

    # Sequences

    def new_sequence(self, *, min_tokens: int = 1) -> Sequence:
        return Sequence(self.pool, self.block_size, min_tokens)

    def fork(self, source: Sequence, length: int, *, min_tokens: int | None = None) -> Sequence:
        """A new sequence that starts as the first `length` tokens of `source`.

        Their blocks are shared; whoever first writes to a shared block gets a copy of it.
        """
        if not 0 <= length <= source.length:
            raise ValueError(f"cannot fork {length} tokens of a sequence of {source.length}")
        with self._lock:
            fork = self.new_sequence(min_tokens=min_tokens or source.min_tokens)
            fork.blocks = source.blocks[: -(-length // self.block_size)]
            for block in fork.blocks:
                self.pool.share(block)
            fork.tokens = source.tokens[:length]
            return fork

    def skip(self, sequence: Sequence, count: int) -> None:
        """Count `count` made-up tokens as held, whose keys and values nobody computes: enough to measure what a forward
        costs after a text of that length."""
        sequence.tokens.extend([0] * count)

    # Forwards

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Run every sequence's tokens in one inference and append them to the sequences.

        Returns the logits of each run's last `rows` tokens: views that are valid until the next forward of this
        model. Nothing is appended when it raises (CacheFull, or ModelError when inference fails).
        """
        with self._lock:
            return self._forward(batch)

    def _forward(self, batch: list[Run]) -> list[Logits]:
        ids: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        wanted: list[int] = []
        longest = 0
        for run in batch:
            sequence = run.sequence
            tokens = run.tokens
            if not tokens or not 0 <= run.rows <= len(tokens):
                raise ValueError(f"cannot give {run.rows} rows of logits for {len(tokens)} tokens")
            start = len(sequence.tokens)
            end = start + len(tokens)
            longest = max(longest, end)
            self._reserve(sequence, start, end)
            first = len(ids)
            ids += tokens
            positions += range(start, end)
            # The keys and values of a whole forward are written before any of it attends: a step sees those before it.
            steps = range(start, end) if run.stepwise else (start,)
            for at in steps:
                stop = at + 1 if run.stepwise else end
                past.append(at)
                begins.append(first + stop - start)
                blocks += sequence.blocks[: -(-stop // self.block_size)]
                block_begins.append(len(blocks))
            wanted += range(len(ids) - run.rows, len(ids))
        size = max(len(ids), *(1 if run.lone else run.sequence.min_tokens for run in batch))
        lane, answers = self._any, range(len(wanted))
        if all(run.stepwise and run.rows for run in batch):
            size, lane = next(((fits, lane) for fits, lane in self._lanes if fits >= size), (size, lane))
        if lane is not self._any:
            wanted, answers = list(range(size)), wanted  # a lane gives every row
        elif len(wanted) == 1 and size > 1 and batch[0].sequence.min_tokens > 1:
            wanted *= 2  # the head's product for a single row rounds differently too
        elif size > len(wanted) == len(ids):
            wanted += range(len(wanted), size)
        # What fills the forward up is nobody's text: it attends to itself, in a block of its own.
        while len(ids) < size:
            ids.append(0)
            positions.append(0)
            past.append(0)
            begins.append(len(ids))
            blocks.append(len(self.pool.references))
            block_begins.append(len(blocks))
        lane.bind("input_ids", ids)
        lane.bind("position_ids", positions)
        lane.bind("past_lens", past)
        lane.bind("subsequence_begins", begins)
        lane.bind("block_indices", blocks)
        lane.bind("block_indices_begins", block_begins)
        lane.bind("max_context_len", [longest])
        lane.bind(ROWS_INPUT, wanted or [0])
        before = perf_counter()
        try:
            logits = lane.infer(len(wanted) or 1)
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        self.seconds += perf_counter() - before
        self.forwards += 1
        results = []
        begin = 0
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
            first = answers[begin] if run.rows else 0
            results.append(logits.part(first, first + run.rows))
            begin += run.rows
        return results

    # Cache memory

    @property
    def block_bytes(self) -> int:
        """Memory of one cache block: keys and values of `block_size` tokens in all layers."""
        return sum(cache.byte_size for cache in self._caches) // (len(self.pool.references) + 1)

    def fix_cache(self, blocks: int) -> None:
        """Allocate `blocks` cache blocks now: from here on the cache neither grows nor shrinks. Not fewer than there
        are already."""
        with self._lock:
            blocks = max(blocks, len(self.pool.references))
            self.pool.limit = blocks
            if blocks > len(self.pool.references):
                self._grow(blocks)

    def make_free(self, blocks: int) -> None:
        """Where the cache may grow: let it, until `blocks` are free. In the midst of an answer it would hold that up."""
        with self._lock:
            if self.pool.limit is None and len(self.pool.free) < blocks:
                self._grow(self.pool.grown_size(blocks))

    def _reserve(self, sequence: Sequence, start: int, end: int) -> None:
        """Give the sequence blocks of its own to write positions `start` to `end` to."""
        first, kept = divmod(start, self.block_size)
        for index in range(first, len(sequence.blocks)):
            shared = sequence.blocks[index]
            if self.pool.references[shared] > 1:
                [own] = self._take_blocks(1)
                if index == first and kept:
                    for cache in self._caches:
                        _copy_block(cache, shared, own)
                self.pool.give_back(shared)
                sequence.blocks[index] = own
        missing = -(-end // self.block_size) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self._take_blocks(missing)

    def _take_blocks(self, count: int) -> list[int]:
        if len(self.pool.free) < count:
            self._grow(self.pool.grown_size(count))
        return [self.pool.take() for _ in range(count)]

    def _grow(self, blocks: int) -> None:
        """Make the cache tensors `blocks` long, and one more for what fills forwards up, keeping what they hold. Doubling
        keeps the copies amortised."""
        caches = []
        for index, port in enumerate(self._cache_ports):
            shape = [blocks + 1, *(port.partial_shape[axis].get_length() for axis in range(1, 4))]
            cache = ov.Tensor(port.element_type, ov.Shape(shape))
            view = raw_bytes(cache)
            view[:] = 0
            if self._caches:
                old = raw_bytes(self._caches[index])
                view[: old.size] = old
            caches.append(cache)
        self._caches = caches
        for lane in (self._any, *(lane for _, lane in self._lanes)):
            for port, cache in zip(lane.cache_ports, caches, strict=True):
                lane.request.set_tensor(port, cache)
        self.pool.grow(blocks)


def prefill_chunks(tokens: list[int], rows: int, size: int = PREFILL_CHUNK) -> list[tuple[list[int], int]]:
    """Split `tokens` into (chunk, rows wanted of it) so that only the last chunk gives rows, and no chunk is of
    one token unless there is only one in all."""
    if len(tokens) <= size + max(1, rows):
        return [(tokens, rows)]
    return [(tokens[:size], 0), *prefill_chunks(tokens[size:], rows, size)]


def _copy_block(cache: ov.Tensor, source: int, destination: int) -> None:
    view = raw_bytes(cache).reshape(cache.shape[0], -1)
    view[destination] = view[source]
