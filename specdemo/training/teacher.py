"""The target's probabilities for the tokens of a text, computed once, kept on disk, and looked up while training.

Only for targets whose torch weights are the target itself: a GGUF target runs in another arithmetic, and its own text
is then the better teacher.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdemo.training import corpus
from specdemo.training.corpus import Conversation
from specdemo.training.settings import Report, TrainProgress

TOP = 16
SHARD = 64
"""Conversations in one file."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Per label the target's likeliest tokens, int32 [n, TOP], and their probabilities, float16 [n, TOP]."""

    tokens: np.ndarray
    probabilities: np.ndarray


class SoftLabels:
    """Targets of every conversation, in memory: 96 bytes a token."""

    def __init__(self, rows: Sequence[Targets]) -> None:
        self._rows = rows

    def of(self, numbers: Sequence[int]) -> Targets:
        """The targets of a batch of these conversations, in the order of its labels."""
        chosen = [self._rows[number] for number in numbers]
        return Targets(np.concatenate([c.tokens for c in chosen]), np.concatenate([c.probabilities for c in chosen]))


def soft_labels(
    model, conversations: Sequence[Conversation], longest: int, folder: Path, report: Report
) -> SoftLabels:
    """Run the target over all conversations, continuing where an earlier call was killed.

    Args:
        model: the target, on the device to use.
        longest: conversations are cut to so many tokens, as training will cut them.
        folder: where one file for every SHARD conversations is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Targets] = []
    for first in range(0, len(conversations), SHARD):
        path = folder / f"{first // SHARD:05d}.npz"
        shard = conversations[first : first + SHARD]
        if not path.is_file():
            _write(path, [_targets(model, conversation, longest) for conversation in shard])
        rows += _read(path)
        report(TrainProgress("Asking the target for probabilities", len(rows), len(conversations)))
    return SoftLabels(rows)


def _targets(model, conversation: Conversation, longest: int) -> Targets:
    import torch

    batch = corpus.make_batch([conversation], longest)
    with torch.no_grad():
        tokens = torch.from_numpy(batch.tokens).to(model.device)
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[batch.rows, batch.columns]
        probabilities, ids = model.get_output_embeddings()(hidden).softmax(1).topk(min(TOP, model.config.vocab_size))
    return Targets(ids.cpu().numpy().astype(np.int32), probabilities.cpu().numpy().astype(np.float16))


def _write(path: Path, rows: Sequence[Targets]) -> None:
    partial = path.with_name("partial.npz")
    np.savez(
        partial,
        lengths=[len(row.tokens) for row in rows],
        tokens=np.concatenate([row.tokens for row in rows]),
        probabilities=np.concatenate([row.probabilities for row in rows]),
    )
    os.replace(partial, path)


def _read(path: Path) -> list[Targets]:
    with np.load(path) as held:
        ends = np.cumsum(held["lengths"])[:-1]
        pairs = zip(np.split(held["tokens"], ends), np.split(held["probabilities"], ends), strict=True)
        return [Targets(tokens, probabilities) for tokens, probabilities in pairs]
