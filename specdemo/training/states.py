"""What a draft head is trained on: the target's hidden states at each token of its answers, which
are what the head reads and, times the output matrix, what it learns. Kept in files, so an
interrupted reading continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from tqdm import tqdm

from specdemo.engine import graph
from specdemo.models.load import LoadedPair
from specdemo.training.text import Conversation

SHARD = 64  # conversations in a file
PADDING = 32  # of lengths, to a multiple: the plugin prepares its kernels anew for each length
THIRDS = (1 / 3, 2 / 3)
"""Parts of the residual stream that a head reads beside the last hidden state: agreement 0.400 with
them, 0.376 without, for SmolLM2-135M after 164,000 chains."""
LOOKUP = 4  # tokens of the longest context of n-gram lookup


@dataclass(frozen=True, slots=True)
class Rows:
    """Answer tokens, one after the other: their `states`, float16 [n, H + 1]: the hidden state that
    gave each token, of which the first columns times the output matrix are its logits, and the
    logarithm of the sum of the logits' exponentials; the `tokens`, int64 [n]; their `weights` in
    the loss, float32 [n]; and where the answer of each `ends`, int64 [n]."""

    states: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray
    ends: np.ndarray


def read_rows(loaded: LoadedPair, said: Sequence[Conversation], folder: Path) -> Rows:
    """The rows of all answers, with their states in `folder`. Raises ModelError."""
    folder.mkdir(exist_ok=True)
    files, read = [], None
    for start in tqdm(range(0, len(said), SHARD), desc="Reading the target's states"):
        files.append(folder / f"{start:07d}.npy")
        if not files[-1].is_file():
            read = read or _reader(loaded)
            partial = folder / "partial.npy"
            np.save(partial, np.concatenate([*map(read, said[start : start + SHARD])]))
            os.replace(partial, files[-1])
    prompts = [tuple(loaded.template.render(one.instruction, loaded.tokenizer)) for one in said]
    answers = [one.answer for one in said]
    lengths = [len(answer) for answer in answers]
    return Rows(
        np.concatenate([np.load(file, mmap_mode="r") for file in files]),
        np.concatenate([np.asarray(answer, np.int64) for answer in answers]),
        np.concatenate([*map(lookup_weights, prompts, answers)]),
        np.repeat(np.cumsum(lengths), lengths),
    )


def lookup_weights(prompt: tuple[int, ...], answer: tuple[int, ...]) -> np.ndarray:
    """The weight of each answer token, float32: 1 where fewer than two of the last tokens occurred
    in a row before, else 0.15 where what followed them last time is right, which the engine drafts
    by lookup, and 0.5 where not."""
    known = prompt + answer
    followed: dict[tuple[int, ...], int] = {}
    weights = []
    for at in range(1, len(known)):
        endings = [known[at - n : at] for n in range(min(LOOKUP, at), 0, -1)]
        if at >= len(prompt):
            longest = next((ending for ending in endings if ending in followed), ())
            wrong = 0.15 if followed.get(longest) == known[at] else 0.5
            weights.append(wrong if len(longest) > 1 else 1.0)
        followed.update(dict.fromkeys(endings, known[at]))
    return np.array(weights, np.float32)


def _reader(loaded: LoadedPair) -> Callable[[Conversation], np.ndarray]:
    """What reads one conversation, in the plugin's own numerics. With several streams OpenVINO
    2026.4.1 gives wrong numbers for some widths."""
    core = ov.Core()
    model = graph.read_decoder(core, loaded.target_xml)
    graph.shape_head(model, None, 1)
    graph.add_hidden(model, THIRDS)
    names = {name for port in model.inputs for name in port.names}
    request = core.compile_model(model, "CPU").create_infer_request()

    def read(one: Conversation) -> np.ndarray:
        prompt = loaded.template.render(one.instruction, loaded.tokenizer)
        tokens = [*prompt, *one.answer[:-1]]
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
        rows = np.hstack([request.get_tensor(graph.HIDDEN).data, log_sums])
        return rows.clip(-65504, 65504).astype(np.float16)

    return read
