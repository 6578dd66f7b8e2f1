"""A causal language model of transformers on a torch device, with the interface of `PagedModel`.
Each sequence has its own keys and values; blocks only count tokens."""

import inspect
from time import perf_counter
from typing import Self

import numpy as np
import openvino as ov
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.utils import logging

from ..cache import CACHE_TOKENS, BlockPool, KVSequence
from ..cost_model import CostModel
from ..faults import BadInput, ModelError
from ..forwards import Logits, ModelSettings, Run
from ..pair_files import TORCH, Checkpoint
from .graph import last_line

BLOCK_SIZE, BUFFER_SIZE = 32, 256  # tokens of a block, and of the smallest buffer
_TOLERANCE = 0.05  # of the logits' range: rounding differs by less, a lost state by more


def properties(device: str, *, exact: bool) -> tuple[tuple[str, str], ...]:
    """The properties of `device` for exact or fast numerics. Matrix products choose kernels by the
    number of rows, so exact numerics pad all short forwards to one shape; accelerators run 16 rows
    in the time of one. HPUs compile a graph for every shape, so they always pad."""
    kind = device.removeprefix(TORCH).partition(":")[0]
    dtype = "bfloat16"
    if kind == "cpu" and (exact or not torch.cpu._is_avx512_bf16_supported()):
        dtype = "float32"
    if kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        dtype = "float16"
    if not exact and kind != "hpu":
        return (("dtype", dtype),)
    return ("dtype", dtype), ("padding", {"cpu": "8", "hpu": "1,16"}.get(kind, "16"))


def load_module(checkpoint: Checkpoint, device: str, dtype: str) -> PreTrainedModel:
    """Load a checkpoint on a torch device, ready to run. Raises ModelError."""
    path, kind = checkpoint.path, device.removeprefix(TORCH)
    logging.disable_progress_bar()
    where, gguf = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    try:
        module = AutoModelForCausalLM.from_pretrained(
            where,
            dtype=getattr(torch, dtype),
            trust_remote_code=checkpoint.remote_code,
            local_files_only=True,
            **gguf,
        )
        return module.eval().to(kind)
    except (ImportError, OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{path.name} cannot be loaded on {device}: {last_line(error)}") from error


class BufferLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not followed
    """Keys and values of one layer, [1, heads, tokens, width]; the first `length` tokens are valid.
    New ones are written to `places` (int64 [tokens]). To keep shapes few (`is_compileable` in
    transformers) attention sees buckets of 256, 512, 1024 ... tokens, the rest masked."""

    is_compileable = True
    length = 0
    places: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        if not self.is_initialized:
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        if end > self.keys.shape[-2]:
            self.copy_from(self, self.length, end)
        self.keys[:, :, self.places] = key_states
        self.values[:, :, self.places] = value_states
        self.length = end
        seen = _bucket(end)
        return self.keys[..., :seen, :], self.values[..., :seen, :]

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return _bucket(self.length + query_length), 0

    def copy_from(self, other: Self, length: int, size: int) -> None:
        """Make buffers for `size` tokens: the first `length` tokens of `other`, then zeros."""
        for name in ("keys", "values"):
            buffer = getattr(other, name)
            grown = buffer.new_zeros((*buffer.shape[:2], _bucket(size), buffer.shape[3]))
            grown[..., :length, :] = buffer[..., :length, :]
            setattr(self, name, grown)
        self.is_initialized = True


def _bucket(tokens: int) -> int:
    return max(BUFFER_SIZE, 1 << (tokens - 1).bit_length())


class TorchModel:
    """A checkpoint on `settings.device`, one inference a sequence. In `settings.properties` "dtype"
    is the type of weights, activations and KV cache; "padding" lists numbers of tokens, and
    forwards are padded to the next of them, those of one token only with `min_tokens` above 1.
    Sliding windows are masked, not cut off. Raises ModelError when the checkpoint cannot be loaded,
    BadInput for a model whose state cannot be rolled back."""

    block_size = BLOCK_SIZE
    paged = False

    def __init__(self, checkpoint: Checkpoint, settings: ModelSettings, core: ov.Core):
        device = settings.device.removeprefix(TORCH)
        self.settings = settings
        self.min_tokens = 1
        self.seconds = 0.0
        self.costs = CostModel()
        self.resize_cache(CACHE_TOKENS // BLOCK_SIZE)
        options = dict(settings.properties)
        self.padding = tuple(map(int, filter(None, options.get("padding", "").split(","))))
        self.threads = 0
        if device == "cpu":
            threads = int(core.get_property("CPU", "INFERENCE_NUM_THREADS"))
            if threads:  # a bound that the engine set
                torch.set_num_threads(threads)
            self.threads = torch.get_num_threads()
        module = load_module(checkpoint, settings.device, options["dtype"])
        config = module.config.get_text_config(decoder=True)
        self._accepted = inspect.signature(module.forward).parameters
        self._layers = config.num_hidden_layers
        self._positions = getattr(config, "max_position_embeddings", None) or 1 << 40
        self._device = torch.device(device)
        self._module = module
        size = self.vocabulary_size = module.get_output_embeddings().weight.shape[0]
        ids = settings.token_ids
        self.token_ids = None if ids is None else ids[ids < size]
        self.block_bytes = self._bytes_rolled_back(config.model_type) * BLOCK_SIZE

    def new_sequence(self) -> KVSequence:
        sequence = KVSequence(self.pool, BLOCK_SIZE)
        sequence.cache = Cache(layers=[BufferLayer() for _ in range(self._layers)])
        return sequence

    def fork(self, source: KVSequence, length: int) -> KVSequence:
        fork = self.new_sequence()
        fork.reserve(length)
        fork.tokens = source.tokens[:length]
        with torch.inference_mode():
            for layer, other in zip(fork.cache.layers, source.cache.layers, strict=True):
                if length:
                    layer.copy_from(other, length, length)
        return fork

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Like `PagedModel.forward`, one inference a run; `Run.stepwise` has no effect here."""
        for run in batch:
            run.sequence.reserve(run.sequence.length + max(len(run.tokens), self.min_tokens))
        with torch.inference_mode():
            results = [self._run(run) for run in batch]
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
        return results

    def resize_cache(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)

    def _run(self, run: Run) -> Logits:
        start, count, begun = run.sequence.length, len(run.tokens), perf_counter()
        size = self._padded(count)
        places = torch.arange(start, start + size).to(self._device)
        options = {
            # A product for a single row rounds differently; fixed shapes compute every row.
            "logits_to_keep": size if size in self.padding else size - count + max(run.rows, 1),
            # Padding may go past the model's last position.
            "position_ids": places.clamp(max=self._positions - 1)[None],
        }
        for layer in run.sequence.cache.layers:
            layer.length, layer.places = start, places
        padded = [*run.tokens, *[0] * (size - count)]
        try:
            output = self._module(
                input_ids=torch.tensor([padded], device=self._device),
                past_key_values=run.sequence.cache,
                use_cache=True,
                **{name: value for name, value in options.items() if name in self._accepted},
            )
            end = output.logits.shape[1] - (size - count)
            rows = output.logits[0, end - run.rows : end].float()
            rows = rows if self.token_ids is None else rows[:, self.token_ids]
            logits = Logits(rows.cpu().numpy(), rows.logsumexp(-1).cpu().numpy())
        except (RuntimeError, IndexError) as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        seconds = perf_counter() - begun
        self.seconds += seconds
        self.costs.record(count, seconds, count * start)
        return logits

    def _padded(self, count: int) -> int:
        """The number of tokens after padding: one of the shapes, or a multiple of the largest."""
        count = max(count, self.min_tokens)
        if count == 1 or not self.padding:
            return count
        rounded = -(-count // self.padding[-1]) * self.padding[-1]
        return next((size for size in self.padding if size >= count), rounded)

    def _bytes_rolled_back(self, kind: str) -> int:
        """The bytes of a token's keys and values. Raises BadInput if a rollback fails."""
        first, other = ([id % self.vocabulary_size for id in ids] for ids in (range(4), (5, 6)))
        why = "choose one that attends to all tokens."
        try:
            with self.new_sequence() as rolled_back, self.new_sequence() as fresh:
                self.forward([Run(rolled_back, first, 1)])
                rolled_back.truncate(2)
                [again] = self.forward([Run(rolled_back, other, 1)])
                [expected] = self.forward([Run(fresh, [*first[:2], *other], 1)])
                layers = fresh.cache.layers
                buffers = [buffer for layer in layers for buffer in (layer.keys, layer.values)]
            if np.abs(again.rows - expected.rows).max() <= _TOLERANCE * np.ptp(expected.rows):
                return sum(buffer[..., 0, :].nbytes for buffer in buffers)
        except (ModelError, TypeError, AttributeError, ValueError, KeyError) as error:
            why = last_line(error)
        raise BadInput(f"This model ({kind}) keeps a state that cannot be rolled back: {why}")
