"""A compiled decoder over a paged KV cache: token ids in, rows of logits out.

Knows numpy and OpenVINO only. Forgetting tokens is arithmetic on a `Sequence`, never a copy of the
cache.
"""

from __future__ import annotations

import math
import mmap
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

CACHE_TOKENS = 16_384
"""Of a model that was not told how many: memory is only taken for blocks that were used."""


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a forward: append `tokens`, return logits for the last `rows` of them.

    `stepwise` attends token by token, each as a sub-sequence of its own over the same blocks: for
    few tokens at a long context faster than the kernel for several (docs/reference/numerics.md).
    `unpadded` runs a single token by itself even where the model pads (`least_tokens`).
    """

    sequence: Sequence
    tokens: tuple[int, ...] | list[int]
    rows: int
    stepwise: bool = False
    unpadded: bool = False


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a decoder is compiled.

    `properties` go to the OpenVINO plugin as they are. `cache_tokens` bounds the KV cache. `paged`
    False asks `engine.open` for the stateful path. `fixed_shapes` are numbers of tokens for which
    the model can be compiled once more each, those that pay most first (see `PagedModel`).
    `hidden` names the hidden states that a draft head reads (`graph.add_hidden`), None for none.
    """

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()
    cache_tokens: int = CACHE_TOKENS
    paged: bool = True
    fixed_shapes: tuple[int, ...] = ()
    hidden: tuple[float, ...] | None = None


class PagedModel:
    """An OpenVINO decoder IR (stateful, with SDPA), compiled once, its KV cache in blocks we own.

    `head_tokens` (int array [h], ascending) trims the output head to those token ids: logits then
    have h columns, column j standing for token `head_tokens[j]`. `vocabulary` does the same for the
    ids below it, where the model has more. Thread safe: forwards are serialised by a lock.

    Every forward ends with an empty sub-sequence, so that the plugin takes the same attention
    kernel always (docs/reference/numerics.md). `least_tokens` is set by whoever measured that a
    forward of one token still rounds differently: smaller forwards are padded to it, but for runs
    that ask to be `unpadded`.

    Another number of tokens than in the forward before makes the plugin prepare every layer anew,
    which for a small model takes half a step or more. So once `compile_next` has made them,
    stepwise forwards of 2 up to the largest of `settings.fixed_shapes` tokens go to an instance
    that sees one number of tokens only, padded to it. All instances share the cache.

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
        to_paged(model, self.head_tokens, settings.hidden)
        self._compile = lambda: core.compile_model(
            model, settings.device, dict(settings.properties)
        )
        self._uncompiled = list(settings.fixed_shapes)
        try:
            compiled = self._compile()
            self._any = Instance(compiled)
            values = next(
                port for port in self._any.cache_ports if port.any_name.startswith("value_cache.")
            )
            self.block_size = values.partial_shape[2].get_length()
        except (RuntimeError, StopIteration) as error:
            raise NoPagedAttention(
                f"{settings.device} cannot run this model with paged attention: {last_line(error)}"
            ) from error
        self._fixed: list[tuple[int, Instance]] = []
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self.threads = threads_of(compiled)
        self.resize_cache(-(-settings.cache_tokens // self.block_size))
        self.seconds = 0.0
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
        """Whether the device writes keys and values where we can keep them, found by running two
        tokens: one that works on a copy of its inputs would lose them without an error."""
        with self.new_sequence() as sequence:
            self.forward([Run(sequence, [0, 0], 1)])
            caches = (raw_bytes(cache).reshape(cache.shape[0], -1) for cache in self._caches)
            return any(cache[sequence.blocks].any() for cache in caches)

    def new_sequence(self) -> Sequence:
        return Sequence(self.pool, self.block_size)

    def fork(self, source: Sequence, length: int) -> Sequence:
        """A new sequence that starts as the first `length` tokens of `source`, whose blocks it
        shares: whoever first writes to a shared block gets a copy of it."""
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

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Run every sequence's tokens in one inference and append them to the sequences.

        Returns the logits of each run's last `rows` tokens: views that are valid until the next
        forward of this model. Nothing is appended when it raises (CacheFull, or ModelError when
        inference fails).
        """
        with self._lock:
            return self._run(batch)

    def _run(self, batch: list[Run]) -> list[Logits]:
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
        if size > 1 and all(run.stepwise and run.rows for run in batch):
            size, instance = next(
                (fixed for fixed in self._fixed if fixed[0] >= size), (size, instance)
            )
        if instance is not self._any:
            wanted, answers = list(range(size)), wanted  # a fixed shape gives every row
        elif len(wanted) == 1 and size > 1 and self.least_tokens > 1:
            wanted *= 2  # the head's product for a single row rounds differently too
        for _ in range(size - count):
            inputs.add([0], 0, [self.pool.limit])  # padding rows attend to a scratch block
        if self._takes_empty:
            inputs.add([], 0, [])
        try:
            logits = instance.run(inputs, longest, wanted or [0])
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        self.seconds += instance.seconds
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

    def compile_next(self, count: int = 1, *, exact: bool = True) -> bool:
        """Compile `count` more of the fixed shapes, side by side; gives whether any was left. With
        `exact` an instance that does not give the bits of the first one is left out."""
        sizes, self._uncompiled = self._uncompiled[:count], self._uncompiled[count:]
        if sizes:
            with ThreadPoolExecutor(len(sizes)) as pool:
                compiled = list(pool.map(lambda _: self._compile(), sizes))
            for size, one in zip(sizes, compiled, strict=True):
                self._add_fixed(size, Instance(one, size), exact)
        if not self._uncompiled:
            self._compile = None  # with it goes the graph
        return bool(sizes)

    def _add_fixed(self, size: int, instance: Instance, exact: bool) -> None:
        run_tokens = list(range(size))
        with self._lock, self.new_sequence() as sequence:
            self._bind_cache(instance)
            fixed, self._fixed = self._fixed, []
            expected = self.forward([Run(sequence, run_tokens, size, stepwise=True)])[0].rows.copy()
            sequence.truncate(0)
            self._fixed = [(size, instance)]
            got = self.forward([Run(sequence, run_tokens, size, stepwise=True)])[0].rows
            same = np.array_equal(got, expected)
            if same or not exact:
                fixed = sorted([*fixed, (size, instance)], key=lambda one: one[0])
            self._fixed = fixed

    @property
    def block_bytes(self) -> int:
        """Memory of one cache block: keys and values of `block_size` tokens in all layers."""
        return sum(cache.byte_size for cache in self._caches) // (self.pool.limit + 1)

    def resize_cache(self, blocks: int) -> None:
        """Bound the cache to `blocks` blocks. Only while there are no sequences.

        The memory is the system's, which gives it page by page as blocks are used for the first
        time: a large bound costs nothing."""
        self._caches = []
        for port in self._any.cache_ports:
            shape = [port.partial_shape[axis].get_length() for axis in range(1, 4)]
            # One block more, for padding.
            size = (blocks + 1) * math.prod(shape) * port.element_type.bitwidth // 8
            memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
            self._caches.append(
                ov.Tensor(memory, ov.Shape([blocks + 1, *shape]), port.element_type)
            )
        for instance in (self._any, *(instance for _, instance in self._fixed)):
            self._bind_cache(instance)
        self.pool = BlockPool(blocks)

    def _bind_cache(self, instance: Instance) -> None:
        for port, cache in zip(instance.cache_ports, self._caches, strict=True):
            instance.request.set_tensor(port, cache)

    def _reserve(self, sequence: Sequence, start: int, end: int) -> None:
        """Give the sequence blocks of its own to write positions `start` to `end` to."""
        first, kept = divmod(start, self.block_size)
        for index in range(first, len(sequence.blocks)):
            shared = sequence.blocks[index]
            if self.pool.references[shared] > 1:
                [own] = self.pool.take()
                if index == first and kept:
                    for cache in self._caches:
                        view = raw_bytes(cache).reshape(cache.shape[0], -1)
                        view[own] = view[shared]
                self.pool.give_back(shared)
                sequence.blocks[index] = own
        missing = -(-end // self.block_size) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self.pool.take(missing)


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
