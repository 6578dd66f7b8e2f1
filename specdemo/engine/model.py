"""A compiled decoder over a paged KV cache: token ids in, rows of logits out. Forgetting tokens is
arithmetic on a `Sequence`, never a copy of the cache."""

from __future__ import annotations

import math
import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import openvino as ov

from .cache import BlockPool, Sequence
from .checkpoint import Checkpoint
from .errors import ModelError
from .graph import last_line, raw_bytes, read_decoder, to_paged, with_fixed_shape
from .instance import Inputs, Instance, Logits

if TYPE_CHECKING:
    from .torch_model import TorchModel

Model: TypeAlias = "PagedModel | TorchModel"

PREFILL_CHUNK = 256
"""Tokens a prefill forward takes at once, so that a stop request waits for at most one chunk."""

CACHE_TOKENS = 16_384
"""Of a model that was not told how many: memory is only taken for blocks that were used."""

COMPILED_TOGETHER = 2
"""Instances: a compilation uses one thread for the most part."""


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
    """How a decoder is compiled: `properties` go to the plugin as they are, `fixed_shapes` are
    numbers of tokens for which `PagedModel` can be compiled once more each, `hidden` the states
    that a draft head reads (`graph.add_hidden`), None for none."""

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()
    fixed_shapes: tuple[int, ...] = ()
    hidden: tuple[float, ...] | None = None


def open_model(
    source: Path | Checkpoint,
    settings: ModelSettings,
    *,
    vocabulary: int | None = None,
    core: ov.Core | None = None,
) -> Model:
    """Compile IR, or load a Checkpoint in torch. Raises ModelError when it does not run here."""
    if isinstance(source, Checkpoint):
        from .torch_model import TorchModel

        return TorchModel(source, settings, vocabulary=vocabulary, core=core)
    return PagedModel(source, settings, vocabulary=vocabulary, core=core)


class PagedModel:
    """An OpenVINO decoder IR (stateful, with SDPA), compiled once, its KV cache in blocks we own.

    `vocabulary` bounds the logits to the ids below it. Used from one thread at a time.

    Every forward ends with an empty sub-sequence, so that the plugin takes the same attention
    kernel always (docs/reference/numerics.md). Forwards of fewer than `least_tokens` are padded to
    it, but for runs that ask to be `unpadded`.

    Another number of tokens than in the forward before makes the plugin prepare every layer anew,
    which for a small model takes half a step or more, and looking whether the number has changed
    takes 2 ms. So once `compile_next` has made them, stepwise forwards go to instances of
    `settings.fixed_shapes`, padded, whose graphs have no other shape. All share the cache.

    Raises ModelError when the file is not such a decoder, or the device does not run it.
    """

    note = ""

    def __init__(
        self,
        xml: Path | str,
        settings: ModelSettings = ModelSettings(),
        *,
        vocabulary: int | None = None,
        core: ov.Core | None = None,
    ):
        self.settings = settings
        self.least_tokens = 1
        if settings.device != "CPU":
            raise ModelError(
                f"IR runs on CPU only, not on {settings.device}, which does not keep a KV cache in "
                "main memory; run a PyTorch checkpoint on a torch device."
            )
        core = core or ov.Core()
        model = read_decoder(core, xml)
        to_paged(model, vocabulary, settings.hidden)
        properties = dict(settings.properties)
        self._compile = lambda tokens: core.compile_model(
            with_fixed_shape(model, tokens), "CPU", properties
        )
        self._uncompiled = list(settings.fixed_shapes)
        try:
            compiled = core.compile_model(model, "CPU", properties)
            self.threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        except RuntimeError as error:
            raise ModelError(f"The CPU cannot run this model: {last_line(error)}") from error
        self._any = Instance(compiled)
        caches = self._any.cache_ports
        values = next(port for port in caches if port.any_name.startswith("value_cache."))
        self.block_size = values.partial_shape[2].get_length()
        self._fixed: list[tuple[int, Instance]] = []
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self.resize_cache(-(-CACHE_TOKENS // self.block_size))
        self.seconds = 0.0

    def new_sequence(self) -> Sequence:
        return Sequence(self.pool, self.block_size)

    def fork(self, source: Sequence, length: int) -> Sequence:
        """A new sequence that starts as the first `length` tokens of `source`. Both share its
        blocks: whoever first writes to one gets a copy of it."""
        fork = self.new_sequence()
        fork.blocks = source.blocks[: -(-length // self.block_size)]
        for block in fork.blocks:
            self.pool.share(block)
        fork.tokens = source.tokens[:length]
        return fork

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Run every sequence's tokens in one inference and append them to the sequences. Gives the
        logits of each run's last `rows` tokens: views that are valid until the next forward.
        Nothing is appended when it raises (CacheFull, or ModelError when inference fails)."""
        inputs = Inputs()
        wanted: list[int] = []
        longest = 0
        for run in batch:
            self._add(inputs, run)
            longest = max(longest, run.sequence.length + len(run.tokens))
            wanted += range(len(inputs.input_ids) - run.rows, len(inputs.input_ids))
        count = len(inputs.input_ids)
        size = count if len(batch) == 1 and batch[0].unpadded else max(count, self.least_tokens)
        instance, answers = self._any, range(len(wanted))
        if all(run.stepwise and run.rows for run in batch):
            # A single token is padded only by `least_tokens`.
            fitting = (one for one in self._fixed if one[0] == size or one[0] > size > 1)
            size, instance = next(fitting, (size, instance))
        if instance is not self._any:
            wanted, answers = list(range(size)), wanted  # a fixed shape gives every row
        elif len(wanted) == 1 and size > 1 and self.least_tokens > 1:
            wanted *= 2  # the head's product for a single row rounds differently too
        for _ in range(size - count):
            inputs.add([0], 0, [self.pool.limit])  # padding rows attend to a scratch block
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
        assert 0 <= run.rows <= len(tokens) > 0, "a run has tokens, and no more rows than those"
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

    def compile_next(self) -> bool:
        """Compile the next fixed shapes, side by side; gives whether any was left. An instance that
        does not give the bits of the first one is left out."""
        sizes = self._uncompiled[:COMPILED_TOGETHER]
        del self._uncompiled[:COMPILED_TOGETHER]
        if sizes:
            with ThreadPoolExecutor(len(sizes)) as pool:
                compiled = list(pool.map(self._compile, sizes))
            for size, one in zip(sizes, compiled, strict=True):
                self._add_fixed(size, Instance(one))
        if not self._uncompiled:
            self._compile = None  # with it goes the graph
        return bool(sizes)

    def _add_fixed(self, size: int, instance: Instance) -> None:
        with self.new_sequence() as sequence:
            run = Run(sequence, list(range(size)), size, stepwise=True, unpadded=size == 1)
            self._bind_cache(instance)
            others, rows = self._fixed, []
            for self._fixed in ([], [(size, instance)]):
                rows.append(self.forward([run])[0].rows.copy())
                sequence.truncate(0)
            self._fixed = others
            if np.array_equal(*rows):
                self._fixed = sorted([*others, (size, instance)], key=lambda one: one[0])

    @property
    def block_bytes(self) -> int:
        """Memory of one cache block: keys and values of `block_size` tokens in all layers."""
        return sum(cache.byte_size for cache in self._caches) // (self.pool.limit + 1)

    def resize_cache(self, blocks: int) -> None:
        """Bound the cache to `blocks` blocks. Only while there are no sequences. The system gives
        the memory page by page as blocks are used for the first time."""
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
        sequence.reserve(end)


def prefill_chunks(
    tokens: list[int], rows: int, size: int = PREFILL_CHUNK
) -> list[tuple[list[int], int]]:
    """Split `tokens` into (chunk, rows wanted of it) so that only the last chunk gives rows, and no
    chunk is of one token unless there is only one in all."""
    if len(tokens) <= size + max(1, rows):
        return [(tokens, rows)]
    return [(tokens[:size], 0), *prefill_chunks(tokens[size:], rows, size)]
