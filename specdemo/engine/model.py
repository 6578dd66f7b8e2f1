"""A compiled decoder over a paged KV cache: token ids in, rows of logits out.

Knows numpy and OpenVINO only. Forgetting tokens is arithmetic on a `Sequence`, never a copy of the
cache.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov

from .cache import BlockPool, Sequence
from .errors import ModelError, NoPagedAttention
from .graph import kept_tokens, last_line, raw_bytes, read_decoder, to_paged
from .instance import Inputs, Instance, Logits

PREFILL_CHUNK = 256
"""Tokens a prefill forward takes at once, so that a stop request waits for at most one chunk."""

FIRST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a forward: append `tokens`, return logits for the last `rows` of them.

    `stepwise` attends token by token, each as a sub-sequence of its own over the same blocks: the
    kernel for one query reads the cache as it lies, the one for several first rearranges all of it,
    which for few tokens at a long context takes longer than the attention itself
    (docs/reference/numerics.md). For prompts the latter is faster. `unpadded` runs a single token
    by itself even where the model pads (`least_tokens`).
    """

    sequence: Sequence
    tokens: tuple[int, ...] | list[int]
    rows: int
    stepwise: bool = False
    unpadded: bool = False


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a decoder is compiled.

    `properties` go to the OpenVINO plugin as they are. `block_limit` bounds the KV cache, in
    blocks, which is then allocated at once; with None it grows as needed. `paged` False asks
    `engine.open` for the stateful path. `fixed_shapes` are numbers of tokens for which the model is
    compiled once more each (see `PagedModel`).
    """

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()
    block_limit: int | None = None
    paged: bool = True
    fixed_shapes: tuple[int, ...] = ()


class PagedModel:
    """An OpenVINO decoder IR (stateful, with SDPA), compiled once, its KV cache in blocks we own.

    `head_tokens` (int array [h], ascending) trims the output head to those token ids: logits then
    have h columns, column j standing for token `head_tokens[j]`. `vocabulary` does the same for the
    ids below it, where the model has more. Thread safe: forwards are serialised by a lock.

    Every forward ends with an empty sub-sequence. The plugin chooses between two attention kernels,
    which round differently, by the number of sub-sequences against the number of threads; a
    sub-sequence that does not have exactly one token makes it take the same kernel always
    (docs/reference/numerics.md).

    `least_tokens` is set by whoever measured that a forward of one token still rounds differently:
    smaller forwards are padded to it, but for runs that ask to be `unpadded`.

    Whenever a forward has another number of tokens than the one before, the plugin prepares every
    layer anew, which for a small model takes half a step or more. So stepwise forwards of up to the
    largest of `settings.fixed_shapes` tokens go to an instance of the compiled model that sees one
    number of tokens only, padded to it; all instances share the cache.

    Raises ModelError when the file is not such a decoder, NoPagedAttention when it cannot be had on
    this device.
    """

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
        self.note = ""
        """What a user should know of the path that was taken; nothing for the usual one."""
        self.least_tokens = 1
        self._lock = threading.RLock()
        core = core or ov.Core()
        model = read_decoder(core, xml)
        self.head_tokens = kept_tokens(model, head_tokens, vocabulary)
        to_paged(model, self.head_tokens)
        properties = dict(settings.properties)
        sizes = sorted(settings.fixed_shapes)
        try:
            with ThreadPoolExecutor(
                len(sizes) + 1
            ) as pool:  # together they take little longer than one
                compile_one = lambda _: core.compile_model(model, settings.device, properties)  # noqa: E731
                compiled, *others = pool.map(compile_one, [0, *sizes])
            self._any = Instance(compiled)
            self._fixed = [
                (size, Instance(one, size)) for size, one in zip(sizes, others, strict=True)
            ]
            self._cache_ports = self._any.cache_ports
            values = next(
                port for port in self._cache_ports if port.any_name.startswith("value_cache.")
            )
            self.block_size = values.partial_shape[2].get_length()
        except (RuntimeError, StopIteration) as error:
            raise NoPagedAttention(
                f"{settings.device} cannot run this model with paged attention: {last_line(error)}"
            ) from error
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self.threads = threads_of(compiled)
        self._caches: list[ov.Tensor] = []
        self.pool = BlockPool(0, settings.block_limit)
        self._grow(FIRST_BLOCKS if settings.block_limit is None else settings.block_limit)
        self.seconds = 0.0
        self.forwards = 0
        self._takes_empty = True
        self._takes_empty = self._accepts_empty_part()

    def _accepts_empty_part(self) -> bool:
        """Whether the plugin runs a forward with an empty sub-sequence; `note` says so where it
        does not."""
        try:
            with self.new_sequence() as sequence:
                self.forward([Run(sequence, [0], 1)])
        except ModelError:
            self.note = "the plugin refuses an empty sub-sequence: threads change the rounding"
            return False
        return True

    def keeps_its_cache(self) -> bool:
        """Whether the device writes keys and values where we can keep them: found by running two
        tokens.

        The CPU does. A device that works on a copy of its inputs would lose them without an error.
        """
        with self.new_sequence() as sequence:
            self.forward([Run(sequence, [0, 0], 1)])
            return any(raw_bytes(cache).any() for cache in self._caches)

    # Sequences

    def new_sequence(self) -> Sequence:
        return Sequence(self.pool, self.block_size)

    def fork(self, source: Sequence, length: int) -> Sequence:
        """A new sequence that starts as the first `length` tokens of `source`.

        Their blocks are shared; whoever first writes to a shared block gets a copy of it.
        """
        if not 0 <= length <= source.length:
            raise ValueError(f"cannot fork {length} tokens of a sequence of {source.length}")
        with self._lock:
            fork = self.new_sequence()
            fork.blocks = source.blocks[: -(-length // self.block_size)]
            for block in fork.blocks:
                self.pool.share(block)
            fork.tokens = source.tokens[:length]
            return fork

    def skip(self, sequence: Sequence, count: int) -> None:
        """Count `count` made-up tokens as held, whose keys and values nobody computes: enough to
        measure what a forward costs after a text of that length."""
        sequence.tokens.extend([0] * count)

    # Forwards

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Run every sequence's tokens in one inference and append them to the sequences.

        Returns the logits of each run's last `rows` tokens: views that are valid until the next
        forward of this model. Nothing is appended when it raises (CacheFull, or ModelError when
        inference fails).
        """
        with self._lock:
            return self._forward(batch)

    def _forward(self, batch: list[Run]) -> list[Logits]:
        inputs = Inputs()
        wanted: list[int] = []
        longest = 0
        for run in batch:
            self._add(inputs, run)
            longest = max(longest, run.sequence.length + len(run.tokens))
            wanted += range(len(inputs.ids) - run.rows, len(inputs.ids))
        count = len(inputs.ids)
        size = count if len(batch) == 1 and batch[0].unpadded else max(count, self.least_tokens)
        instance, answers = self._any, range(len(wanted))
        if all(run.stepwise and run.rows for run in batch):
            size, instance = next(
                (fixed for fixed in self._fixed if fixed[0] >= size), (size, instance)
            )
        if instance is not self._any:
            wanted, answers = list(range(size)), wanted  # a fixed shape gives every row
        elif len(wanted) == 1 and size > 1 and self.least_tokens > 1:
            wanted *= 2  # the head's product for a single row rounds differently too
        for _ in range(size - count):
            inputs.add(
                [0], 0, [len(self.pool.references)]
            )  # padding rows attend to a scratch block
        if self._takes_empty:
            inputs.add([], 0, [])
        try:
            logits = instance.run(inputs, longest, wanted or [0])
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        self.seconds += instance.seconds
        self.forwards += 1
        results = []
        begin = 0
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
            first = answers[begin] if run.rows else 0
            results.append(logits.part(first, first + run.rows))
            begin += run.rows
        return results

    def _add(self, inputs: Inputs, run: Run) -> None:
        """Add a run's tokens, with blocks to write them to."""
        sequence, tokens = run.sequence, run.tokens
        if not tokens or not 0 <= run.rows <= len(tokens):
            raise ValueError(f"cannot give {run.rows} rows of logits for {len(tokens)} tokens")
        start = sequence.length
        end = start + len(tokens)
        self._reserve(sequence, start, end)
        if not run.stepwise:
            inputs.add(list(tokens), start, sequence.blocks[: -(-end // self.block_size)])
            return
        # The keys and values of a whole forward are written before any of it attends: a step sees
        # those before it.
        for at, token in enumerate(tokens, start):
            inputs.add([token], at, sequence.blocks[: at // self.block_size + 1])

    # Cache memory

    @property
    def block_bytes(self) -> int:
        """Memory of one cache block: keys and values of `block_size` tokens in all layers."""
        return sum(cache.byte_size for cache in self._caches) // (len(self.pool.references) + 1)

    def fix_cache(self, blocks: int) -> None:
        """Allocate `blocks` cache blocks now: from here on the cache neither grows nor shrinks. Not
        fewer than there are already."""
        with self._lock:
            blocks = max(blocks, len(self.pool.references))
            self.pool.limit = blocks
            if blocks > len(self.pool.references):
                self._grow(blocks)

    def make_free(self, blocks: int) -> None:
        """Where the cache may grow: let it, until `blocks` are free, so that no answer waits for it
        later."""
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
                        view = raw_bytes(cache).reshape(cache.shape[0], -1)
                        view[own] = view[shared]
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
        """Make the cache tensors `blocks` long, and one more for padding, keeping what they hold.
        Doubling keeps the copies amortised."""
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
        for instance in (self._any, *(instance for _, instance in self._fixed)):
            for port, cache in zip(instance.cache_ports, caches, strict=True):
                instance.request.set_tensor(port, cache)
        self.pool.grow(blocks)


def prefill_chunks(
    tokens: list[int], rows: int, size: int = PREFILL_CHUNK
) -> list[tuple[list[int], int]]:
    """Split `tokens` into (chunk, rows wanted of it) so that only the last chunk gives rows, and no
    chunk is of one token unless there is only one in all."""
    if len(tokens) <= size + max(1, rows):
        return [(tokens, rows)]
    return [(tokens[:size], 0), *prefill_chunks(tokens[size:], rows, size)]


def threads_of(compiled: ov.CompiledModel) -> int:
    """Threads of an inference, 0 where the device does not say."""
    try:
        return int(compiled.get_property("INFERENCE_NUM_THREADS"))
    except RuntimeError:
        return 0
