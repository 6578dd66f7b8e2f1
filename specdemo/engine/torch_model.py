"""A causal language model of transformers on a torch device: token ids in, rows of logits out.

The same face as `PagedModel`. Imported only where a device of torch is asked for. Each sequence has
keys and values of its own, in buffers written in place: forgetting tokens lowers a length.
"""

from __future__ import annotations

import inspect
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import openvino as ov
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicLayer
from transformers.utils import logging

from .cache import Sequence
from .checkpoint import TORCH, Checkpoint
from .errors import BadInput, ModelError
from .graph import last_line
from .instance import Logits
from .model import ModelSettings, Run
from .stateful import BLOCK_SIZE, OneAtATimeModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GROWTH = 256
"""Tokens by which a buffer of keys and values grows at least."""

CHUNK_MULTIPLE = 64
"""Where shapes are fixed, larger forwards are padded to a multiple of this many tokens."""

_TOLERANCE = 0.05
"""Of the range of the logits: rounding may differ by less after a rollback, a lost state more."""


def properties(device: str, *, exact: bool) -> tuple[tuple[str, str], ...]:
    """How `device` runs a model exactly, or fast.

    Matrix products choose their kernels by the number of rows, so exact numerics pad all short
    forwards to one shape; accelerators run 16 rows in the time of one. HPUs compile a graph for
    every shape, so theirs are always padded.
    """
    kind = device.removeprefix(TORCH).partition(":")[0]
    single = exact and kind == "cpu"
    chosen = [("dtype", "float32" if single else _half_type(kind))]
    exactly = {"cpu": "8", "hpu": "1,16"}.get(kind, "16")
    if exact or kind == "hpu":
        chosen.append(("padding", exactly if exact else "1,2,4,8"))
    return tuple(chosen)


def _half_type(kind: str) -> str:
    """The type of weights and activations that is fastest on a kind of device."""
    if kind == "cpu":
        return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    if kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float16"
    return "bfloat16"


def _device_name(device: str) -> str:
    kind, _, number = device.partition(":")
    name = getattr(getattr(torch, kind, None), "get_device_name", None)
    return name(int(number or 0)) if name else device


def load_module(checkpoint: Checkpoint, device: str, dtype: str) -> PreTrainedModel:
    """The weights of a checkpoint (a GGUF file's are unpacked) on a torch device, ready to run.

    Raises ModelError.
    """
    path = checkpoint.path
    logging.disable_progress_bar()
    where = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    kind = device.removeprefix(TORCH)
    try:
        if kind.startswith("hpu"):  # registers the device with torch
            import habana_frameworks.torch.core  # noqa: F401
        module = AutoModelForCausalLM.from_pretrained(
            where[0],
            dtype=getattr(torch, dtype),
            trust_remote_code=checkpoint.remote_code,
            local_files_only=True,
            **where[1],
        )
        return module.eval().to(kind)
    except (ImportError, OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{path.name} cannot be loaded on {device}: {last_line(error)}") from error


class BufferLayer(DynamicLayer):
    """Keys and values of one layer, [1, heads, tokens, width], of which the first `length` tokens
    count.

    In forwards of a fixed shape `places` (int64 [tokens]) is where the tokens go, as data: a graph
    compiled for numbers would be one of many. Attention then sees buckets of 256, 512, 1024 ...
    tokens, the rest masked.
    """

    def __init__(self):
        super().__init__()
        self.length = 0
        self.places: torch.Tensor | None = None

    @property
    def is_compileable(self) -> bool:
        """Keeps transformers from leaving out the mask."""
        return self.places is not None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        seen = self._seen(end)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        if seen > self.keys.shape[-2]:
            size = max(seen, -(-self.keys.shape[-2] * 3 // 2 // GROWTH) * GROWTH, GROWTH)
            self._grow_from(self, size, self.length)
        if self.places is None:
            self.keys[..., self.length : end, :] = key_states
            self.values[..., self.length : end, :] = value_states
        else:
            self.keys.index_copy_(2, self.places, key_states)
            self.values.index_copy_(2, self.places, value_states)
        self.length = end
        return self.keys[..., :seen, :], self.values[..., :seen, :]

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._seen(self.length + query_length), 0

    def copy_from(self, other: BufferLayer, length: int) -> None:
        self.lazy_initialization(other.keys, other.values)
        self._grow_from(other, -(-length // GROWTH) * GROWTH, length)
        self.length = length

    def _grow_from(self, other: BufferLayer, size: int, length: int) -> None:
        """New buffers of `size` tokens with the first `length` of another layer's; zeros after:
        attention weighs masked values with 0."""
        for name in ("keys", "values"):
            buffer = getattr(other, name)
            grown = buffer.new_zeros((*buffer.shape[:2], size, buffer.shape[3]))
            grown[..., :length, :] = buffer[..., :length, :]
            setattr(self, name, grown)

    def _seen(self, end: int) -> int:
        return end if self.places is None else max(GROWTH, 1 << (end - 1).bit_length())


class TorchSequence(Sequence):
    """A sequence with its own keys and values."""

    def __init__(self, model: TorchModel):
        super().__init__(model.pool, BLOCK_SIZE)
        self._model = model
        self.cache = model.new_cache()

    def release(self) -> None:
        super().release()
        self.cache = self._model.new_cache()


class TorchModel(OneAtATimeModel):
    """A checkpoint that transformers loads, on `settings.device` ("torch:cpu", "torch:cuda:1").

    Of `settings.properties` "dtype" is the type of weights, activations and KV cache; "padding"
    (numbers of tokens) the fixed shapes, to the next of which forwards are padded, those of one
    token only with `least_tokens` above 1. Other arguments, attributes and thread safety are those
    of `PagedModel`. Sliding windows are masked, not cut off, so they roll back too. Raises
    ModelError when the checkpoint cannot be loaded, BadInput for a model whose state cannot be
    rolled back.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: ModelSettings,
        *,
        head_tokens: np.ndarray | None = None,
        vocabulary: int | None = None,
        core: ov.Core | None = None,
    ):
        device = settings.device.removeprefix(TORCH)
        super().__init__(settings, "")
        options = dict(settings.properties)
        self.padding = tuple(map(int, filter(None, options.get("padding", "").split(","))))
        self.threads = 0
        if device == "cpu":
            threads = int((core or ov.Core()).get_property("CPU", "INFERENCE_NUM_THREADS"))
            if threads:  # a bound that the engine set
                torch.set_num_threads(threads)
            self.threads = torch.get_num_threads()
        module = load_module(checkpoint, settings.device, options.get("dtype", "float32"))
        self.note = f"PyTorch on {_device_name(device)}, one sequence at a time"
        config = module.config.get_text_config(decoder=True)
        accepted = inspect.signature(module.forward).parameters
        self._layers = config.num_hidden_layers
        self._most_positions = getattr(config, "max_position_embeddings", None) or 1 << 40
        self._takes_positions = "position_ids" in accepted
        self._keeps_rows = "logits_to_keep" in accepted
        self._device = torch.device(device)
        self._module = module
        size = module.get_output_embeddings().weight.shape[0]
        if head_tokens is None and vocabulary is not None and size > vocabulary:
            head_tokens = np.arange(vocabulary)
        self.head_tokens = head_tokens
        if head_tokens is not None:
            _trim_head(module, head_tokens)
        self.vocabulary_size = size if head_tokens is None else len(head_tokens)
        self._require_rollback(config.model_type)

    def new_sequence(self) -> TorchSequence:
        return TorchSequence(self)

    def new_cache(self) -> Cache:
        return Cache(layers=[BufferLayer() for _ in range(self._layers)])

    @property
    def block_bytes(self) -> int:
        """Memory of the keys and values of `block_size` tokens."""
        with self.new_sequence() as sequence:
            self.forward([Run(sequence, [0], 1)])
            buffers = [
                kept for layer in sequence.cache.layers for kept in (layer.keys, layer.values)
            ]
            return sum(kept[..., :1, :].nbytes for kept in buffers) * BLOCK_SIZE

    @torch.inference_mode()
    def _copy(self, source: TorchSequence, into: TorchSequence, length: int) -> None:
        for layer, other in zip(into.cache.layers, source.cache.layers, strict=True):
            layer.copy_from(other, length)

    @torch.inference_mode()
    def _run(self, run: Run) -> Logits:
        start, count = run.sequence.length, len(run.tokens)
        size = self._padded(count, run.unpadded)
        after = size - count
        # A product for one row alone rounds differently; fixed shapes compute every row.
        least = min(self.least_tokens, size)
        keep = size if size in self.padding else max(after + run.rows, least)
        options = {"logits_to_keep": keep} if self._keeps_rows else {}
        before = perf_counter()
        places = torch.arange(start, start + size).to(self._device)
        if self._takes_positions:  # padding may pass the end of learned positions
            options["position_ids"] = places.clamp(max=self._most_positions - 1)[None]
        fixed = self.padding and size >= min(self.padding)
        for layer in run.sequence.cache.layers:
            layer.length = start
            layer.places = places if fixed else None
        try:
            output = self._module(
                input_ids=torch.tensor([[*run.tokens, *[0] * after]], device=self._device),
                past_key_values=run.sequence.cache,
                use_cache=True,
                **options,
            )
            end = output.logits.shape[1] - after
            rows = output.logits[0, end - run.rows : end].float()
            values, log_sums = (one.cpu().numpy() for one in (rows, rows.logsumexp(-1)))
        except (RuntimeError, IndexError) as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        self.seconds += perf_counter() - before
        return Logits(values, log_sums)

    def _padded(self, count: int, unpadded: bool) -> int:
        """The tokens that a forward of `count` tokens runs."""
        least = 1 if unpadded else self.least_tokens
        if count == least == 1 or not self.padding:
            return max(count, least)
        multiple = -(-count // CHUNK_MULTIPLE) * CHUNK_MULTIPLE
        return next((size for size in self.padding if size >= max(count, least)), multiple)

    def _require_rollback(self, kind: str) -> None:
        """Raise BadInput unless tokens that were forgotten leave no trace: found by trying."""
        first, other = ([at % self.vocabulary_size for at in ids] for ids in (range(4), (5, 6)))
        try:
            with self.new_sequence() as rolled_back, self.new_sequence() as fresh:
                self.forward([Run(rolled_back, first, 1)])
                rolled_back.truncate(2)
                [again] = self.forward([Run(rolled_back, other, 1)])
                [expected] = self.forward([Run(fresh, [*first[:2], *other], 1)])
                held = {bool(layer.is_initialized) for layer in fresh.cache.layers}
        except (ModelError, TypeError, AttributeError, ValueError, KeyError) as error:
            raise BadInput(
                f"This model ({kind}) does not run with a KV cache that can be rolled back: "
                f"{last_line(error)}"
            ) from error
        difference = np.abs(again.rows - expected.rows).max()
        if held != {True} or not difference <= _TOLERANCE * np.ptp(expected.rows):
            raise BadInput(
                f"This model ({kind}) keeps a state that cannot be rolled back to an earlier "
                "token; choose one that attends to all tokens."
            )


def _trim_head(module: PreTrainedModel, kept: np.ndarray) -> None:
    """Make the output head compute only the logits of the ids `kept`."""
    head = module.get_output_embeddings()
    trimmed = torch.nn.Linear(1, 1, bias=head.bias is not None)
    ids = torch.from_numpy(np.ascontiguousarray(kept)).to(head.weight.device)
    for name, weights in head.named_parameters():
        setattr(trimmed, name, torch.nn.Parameter(weights.detach()[ids], requires_grad=False))
    module.set_output_embeddings(trimmed)
