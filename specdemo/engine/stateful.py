"""A compiled decoder that keeps its own KV cache as OpenVINO state: what runs where paged attention
is not to be had.

The same methods and answers as `PagedModel`, at a price: one inference a sequence, and forgetting
tokens copies the keys and values that stay.
"""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from .cache import BlockPool, Sequence
from .errors import ModelError
from .graph import ROWS_INPUT, kept_tokens, last_line, read_decoder, shape_head
from .instance import Logits
from .model import ModelSettings, Run, threads_of

BLOCK_SIZE = 32
"""Tokens a block of the pool stands for. The state is the plugin's own; blocks only count what it
holds."""

_PROBES = (3, 5)
_FED = {"input_ids", "attention_mask", "position_ids", "beam_idx", ROWS_INPUT}


class OneAtATimeModel:
    """What models share whose sequences each have a KV cache of their own: one inference a
    sequence, blocks that only count tokens.

    A subclass has `new_sequence()`, `_run(run)`, which gives its Logits and appends nothing, and
    `_copy(source, into, length)` for the keys and values of the first tokens, at least one. Thread
    safe: forwards are serialised by a lock.
    """

    block_size = BLOCK_SIZE

    def __init__(self, settings: ModelSettings, note: str):
        self.settings = settings
        self.note = note
        self.least_tokens = 1
        self._lock = threading.RLock()
        self.pool = BlockPool(-(-settings.cache_tokens // BLOCK_SIZE))
        self.seconds = 0.0

    def fork(self, source: Sequence, length: int) -> Sequence:
        """A new sequence that starts as the first `length` tokens of `source`, with its own copy of
        their keys and values."""
        if not 0 <= length <= source.length:
            raise ValueError(f"cannot fork {length} tokens of a sequence of {source.length}")
        with self._lock:
            fork = self.new_sequence()
            if length:
                self._reserve(fork, length)
                self._copy(source, fork, length)
                fork.tokens = source.tokens[:length]
            return fork

    def skip(self, sequence: Sequence, count: int) -> None:
        """Hold `count` made-up tokens more; here they have to be run."""
        self.forward([Run(sequence, [0] * count, 0)])

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Run every sequence's tokens, one inference each, and append them to the sequences
        (`Run.stepwise` has no meaning here).

        Returns the logits of each run's last `rows` tokens: views that are valid until the next
        forward of this model. Nothing is appended when it raises (CacheFull, or ModelError when
        inference fails).
        """
        with self._lock:
            for run in batch:
                count = len(run.tokens)
                if not count or not 0 <= run.rows <= count:
                    raise ValueError(f"cannot give {run.rows} rows of logits for {count} tokens")
                self._reserve(run.sequence, run.sequence.length + max(count, self.least_tokens))
            results = [self._run(run) for run in batch]
            for run in batch:
                run.sequence.tokens.extend(run.tokens)
            return results

    def resize_cache(self, blocks: int) -> None:
        """Bound the cache to `blocks` blocks. Only while there are no sequences."""
        self.pool = BlockPool(blocks)

    def compile_next(self, count: int = 1, *, exact: bool = True) -> bool:
        """Nothing: there are no fixed-shape instances."""
        return False

    def _reserve(self, sequence: Sequence, end: int) -> None:
        """Count the blocks of `end` tokens as the sequence's. Raises CacheFull."""
        missing = -(-end // BLOCK_SIZE) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self.pool.take(missing)


class StatefulSequence(Sequence):
    """A sequence with an inference request of its own, whose state holds the keys and values of the
    first `held` tokens; the last of those may have been forgotten since."""

    def __init__(self, model: StatefulModel):
        super().__init__(model.pool, BLOCK_SIZE)
        self._model = model
        self.request: ov.InferRequest | None = None
        self.held = 0

    def release(self) -> None:
        super().release()
        if self.request is not None:
            self._model.take_back(self.request)
            self.request, self.held = None, 0


class StatefulModel(OneAtATimeModel):
    """An OpenVINO decoder IR (stateful), compiled once as it is; `note` says why it runs this way.

    Arguments, attributes and thread safety are those of `PagedModel`. Raises ModelError when the
    file is not such a decoder, when the device cannot compile it, or when its state is not a KV
    cache that can be cut.
    """

    def __init__(
        self,
        xml: Path | str,
        settings: ModelSettings,
        *,
        head_tokens: np.ndarray | None = None,
        vocabulary: int | None = None,
        core: ov.Core | None = None,
        reason: str = "it was asked for",
    ):
        note = f"stateful KV cache, one sequence at a time ({reason.rstrip('.')})"
        super().__init__(settings, note)
        core = core or ov.Core()
        model = read_decoder(core, xml)
        self.head_tokens = kept_tokens(model, head_tokens, vocabulary)
        shape_head(model, self.head_tokens, 1)
        if unknown := sorted({port.any_name for port in model.inputs} - _FED):
            raise ModelError(
                f"The IR has an input {unknown[0]} that no text decoder needs; export it again."
            )
        try:
            self._compiled = core.compile_model(model, settings.device, dict(settings.properties))
        except RuntimeError as error:
            raise ModelError(
                f"{settings.device} cannot run this model: {last_line(error)}"
            ) from error
        self._inputs = {port.any_name: port.element_type for port in self._compiled.inputs}
        self.vocabulary_size = self._compiled.outputs[0].partial_shape[-1].get_length()
        self.threads = threads_of(self._compiled)
        self._idle: list[ov.InferRequest] = []
        self._axes = self._token_axes()

    # Sequences

    def new_sequence(self) -> StatefulSequence:
        return StatefulSequence(self)

    def _copy(self, source: StatefulSequence, into: StatefulSequence, length: int) -> None:
        into.request = self._take_request()
        self._copy_state(source.request, into.request, length)
        into.held = length

    def take_back(self, request: ov.InferRequest) -> None:
        """Keep the request of a released sequence for the next one."""
        with self._lock:
            self._idle.append(request)

    # Forwards

    def _run(self, run: Run) -> Logits:
        sequence = run.sequence
        start = sequence.length
        # What is run beyond the tokens is cut off again before the next inference.
        least = 1 if run.unpadded else self.least_tokens
        tokens = [*run.tokens, *[0] * (least - len(run.tokens))]
        end = start + len(tokens)
        if sequence.request is None:
            sequence.request = self._take_request()
        request = sequence.request
        before = perf_counter()
        try:
            if sequence.held > start:
                self._copy_state(request, request, start)
                sequence.held = start
            self._feed(request, "input_ids", [tokens])
            self._feed(request, "attention_mask", [[1] * end])
            self._feed(request, "position_ids", [range(start, end)])
            self._feed(request, "beam_idx", [0])
            # A padded token's head is run with the padding's: a product for one row alone rounds
            # differently.
            wanted = list(range(len(run.tokens) - run.rows, len(tokens))) or [0]
            if len(wanted) == 1 and least > 1:
                wanted *= 2
            self._feed(request, ROWS_INPUT, wanted)
            request.infer(share_outputs=True)
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        sequence.held = end
        self.seconds += perf_counter() - before
        outputs = [request.get_output_tensor(index) for index in range(len(self._compiled.outputs))]
        return Logits.views(outputs, len(wanted)).part(0, run.rows)

    def _feed(self, request: ov.InferRequest, name: str, values: list) -> None:
        if name in self._inputs:  # some decoders take no position_ids, some no beam_idx
            request.set_tensor(name, ov.Tensor(np.array(values, self._inputs[name].to_dtype())))

    # State

    def _take_request(self) -> ov.InferRequest:
        request = self._idle.pop() if self._idle else self._compiled.create_infer_request()
        request.reset_state()
        return request

    def _copy_state(
        self, source: ov.InferRequest, destination: ov.InferRequest, length: int
    ) -> None:
        """Put the first `length` tokens of the source's state into the destination, which may be
        the same request."""
        if not length:
            destination.reset_state()
            return
        into = {state.name: state for state in destination.query_state()}
        for state in source.query_state():
            whole = state.state
            ends = list(whole.shape)
            ends[self._axes[state.name]] = length
            part = ov.Tensor(whole.element_type, ov.Shape(ends))
            ov.Tensor(whole, ov.Coordinate([0] * len(ends)), ov.Coordinate(ends)).copy_to(part)
            into[state.name].state = part

    def _token_axes(self) -> dict[str, int]:
        """For each state the axis along which it grows by tokens, found by running a few. Raises
        ModelError if none does: such a state (of a recurrent model, say) cannot be taken back to an
        earlier token."""
        shapes: dict[str, list[ov.Shape]] = {}
        for count in _PROBES:
            with self.new_sequence() as sequence:
                self.forward([Run(sequence, [0] * count, 1)])
                for state in sequence.request.query_state():
                    shapes.setdefault(state.name, []).append(state.state.shape)
        axes = {}
        for name, (few, more) in shapes.items():
            sizes = list(zip(few, more, strict=True))
            if sizes.count(_PROBES) != 1:
                raise ModelError(
                    f"The IR keeps a state ({name}) that is no KV cache and cannot be cut."
                )
            axes[name] = sizes.index(_PROBES)
        return axes

    @property
    def block_bytes(self) -> int:
        """Memory of the keys and values of `block_size` tokens."""
        with self.new_sequence() as sequence:
            self.forward([Run(sequence, [0] * BLOCK_SIZE, 1)])
            return sum(state.state.byte_size for state in sequence.request.query_state())
