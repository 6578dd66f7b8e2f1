"""The target's hidden states over conversations, which a draft head learns from.

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
from specdemo.training import corpus
from specdemo.training.corpus import Conversation, States

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

Read = Callable[[Sequence[int], Sequence[int]], States]
"""Takes the tokens of a prompt and of its answer; may be called from THREADS threads."""


def of(
    target: Target, model: PreTrainedModel | None, device: str, fractions: tuple[float, ...]
) -> Read:
    """What reads a target: its IR if it has one, else `model` on `device`. The states are those
    that the output matrix reads, and the residual stream at `fractions` of its additions."""
    if target.ir_folder:
        return _of_ir(target.ir_folder / ir.MODEL, fractions)
    return _of_torch(model.to(device), fractions)


def read_all(read: Read, conversations: Sequence[Conversation], folder: Path) -> list[States]:
    """The states of every answer, from `folder` where they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    states: list[States] = []
    starts = tqdm(range(0, len(conversations), SHARD), desc="Reading the target's states")
    with ThreadPoolExecutor(THREADS) as pool:
        for start in starts:
            path, partial = folder / f"{start // SHARD:04d}.npz", folder / "partial.npz"
            if not path.is_file():
                pairs = [
                    corpus.cut(one, corpus.LONGEST) for one in conversations[start : start + SHARD]
                ]
                found = list(pool.map(lambda pair: read(*pair), pairs))
                np.savez(
                    partial,
                    hidden=np.concatenate([one.hidden for one in found]),
                    log_sum=np.concatenate([one.log_sums for one in found]),
                    lengths=[len(one.hidden) for one in found],
                )
                os.replace(partial, path)
            with np.load(path) as held:
                hidden, log_sums, lengths = held["hidden"], held["log_sum"], held["lengths"]
            bounds = pairwise([0, *np.cumsum(lengths)])
            states += [States(hidden[begin:end], log_sums[begin:end]) for begin, end in bounds]
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

    def read(prompt: Sequence[int], answer: Sequence[int]) -> States:
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
        hidden = request.get_tensor(graph.HIDDEN).data.astype(np.float16)
        log_sums = request.get_output_tensor(2).data.reshape(-1).astype(np.float32)
        free.append(request)
        return States(hidden, log_sums)

    return read


def _of_torch(model: PreTrainedModel, fractions: tuple[float, ...]) -> Read:
    import torch

    chosen = [round(fraction * len(model.base_model.layers)) for fraction in fractions]
    lock = Lock()

    def read(prompt: Sequence[int], answer: Sequence[int]) -> States:
        tokens = torch.tensor([[*prompt, *answer[:-1]]], device=model.device)
        with lock, torch.no_grad():
            found = model.base_model(tokens, use_cache=False, output_hidden_states=True)
            last = found.last_hidden_state[0, len(prompt) - 1 :]
            log_sums = model.get_output_embeddings()(last).float().logsumexp(1)
            others = [found.hidden_states[at][0, len(prompt) - 1 :] for at in chosen]
            hidden = torch.cat([last, *others], 1)
        return States(hidden.half().cpu().numpy(), log_sums.cpu().numpy())

    return read


def whole_layers(layers: int) -> tuple[float, ...]:
    """THIRDS, rounded to the ends of layers; none for a target that has no layers between."""
    return tuple(round(third * layers) / layers for third in THIRDS if layers >= 3)
