"""What the target knew at each token of its answers: hidden states, and so its probabilities.

Kept in files of some conversations each, so an interrupted reading continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from specdemo.models import ir
from specdemo.training.corpus import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specdemo.training.target import Target

THREADS = os.cpu_count() or 1
SHARD = 64
"""Conversations in a file."""
PADDING = 32
"""Lengths are padded to a multiple: the plugin prepares its kernels anew for each length."""
THIRDS = (1 / 3, 2 / 3)
"""Parts of the residual stream that a head reads beside the last hidden state: agreement 0.400 with
them, 0.376 without, for SmolLM2-135M after 164,000 chains."""

Read = Callable[[Sequence[int], Sequence[int]], np.ndarray]
"""Takes the tokens of a prompt and of its answer, in up to THREADS threads. The result is float16
[answer tokens, H + 1]: the hidden state that gave each, of which the first columns times the output
matrix are its logits, and the logarithm of the sum of the logits' exponentials."""


def of(
    target: Target, model: PreTrainedModel | None, device: str, fractions: tuple[float, ...]
) -> Read:
    """What reads a target: its IR if it has one, else `model` on `device`. The states are those
    that the output matrix reads, and the residual stream at `fractions` of its additions."""
    if target.ir_folder:
        return _of_ir(target.ir_folder / ir.MODEL, fractions)
    return _of_torch(model.to(device), fractions)


def read_all(read: Read, conversations: Sequence[Conversation], folder: Path) -> list[np.ndarray]:
    """The states of every answer, views of files in `folder`; what is there is not read again."""
    folder.mkdir(parents=True, exist_ok=True)
    states: list[np.ndarray] = []
    starts = tqdm(range(0, len(conversations), SHARD), desc="Reading the target's states")
    with ThreadPoolExecutor(THREADS) as pool:
        for start in starts:
            path, partial = folder / f"{start // SHARD:04d}.npy", folder / "partial.npy"
            some = conversations[start : start + SHARD]
            if not path.is_file():
                found = pool.map(lambda one: read(one.prompt, one.answer)[: len(one.answer)], some)
                np.save(partial, np.concatenate(list(found)))
                os.replace(partial, path)
            rows = np.load(path, mmap_mode="r")
            ends = np.cumsum([len(one.answer) for one in some])
            states += [rows[begin:end] for begin, end in pairwise([0, *ends])]
    return states


def _of_ir(xml: Path, fractions: tuple[float, ...]) -> Read:
    """On the CPU, in the plugin's own numerics. Raises ModelError."""
    import openvino as ov

    from specdemo.engine import graph

    core = ov.Core()
    model = graph.read_decoder(core, xml)
    graph.shape_head(model, None, 1)
    graph.add_hidden(model, fractions)
    names = {name for port in model.inputs for name in port.names}
    options = {"NUM_STREAMS": str(THREADS), "INFERENCE_NUM_THREADS": str(THREADS)}
    compiled = core.compile_model(model, "CPU", options)
    free = [compiled.create_infer_request() for _ in range(THREADS)]

    def read(prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        request = free.pop()
        tokens = [*prompt, *answer[:-1]]
        size = -(-len(tokens) // PADDING) * PADDING  # what is behind a token does not change it
        ids = np.zeros((1, size), np.int64)
        ids[0, : len(tokens)] = tokens
        values = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(size)[None],
            "beam_idx": np.zeros(1, np.int32),
            graph.ROWS_INPUT: np.arange(len(prompt) - 1, len(tokens), dtype=np.int32),
        }
        request.reset_state()
        request.infer({name: value for name, value in values.items() if name in names})
        log_sums = request.get_output_tensor(1).data.reshape(-1, 1)
        rows = np.hstack([request.get_tensor(graph.HIDDEN).data, log_sums]).astype(np.float16)
        free.append(request)
        return rows

    return read


def _of_torch(model: PreTrainedModel, fractions: tuple[float, ...]) -> Read:
    import torch

    chosen = [round(fraction * len(model.base_model.layers)) for fraction in fractions]
    lock = Lock()

    def read(prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        tokens = torch.tensor([[*prompt, *answer[:-1]]], device=model.device)
        with lock, torch.no_grad():
            found = model.base_model(tokens, use_cache=False, output_hidden_states=True)
            last = found.last_hidden_state[0, len(prompt) - 1 :]
            log_sums = model.get_output_embeddings()(last).float().logsumexp(1, True)
            others = [found.hidden_states[at][0, len(prompt) - 1 :] for at in chosen]
            return torch.cat([last, *others, log_sums], 1).half().cpu().numpy()

    return read


def whole_layers(layers: int) -> tuple[float, ...]:
    """THIRDS, rounded to the ends of layers; none for a target that has no layers between."""
    return tuple(round(third * layers) / layers for third in THIRDS if layers >= 3)
