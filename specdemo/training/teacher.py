"""The target's probabilities for the tokens of a text, computed once, kept on disk, and looked up while training.

The target always sees the whole prompt, however little of it the draft is trained with. One that runs as IR is asked as
IR: torch's arithmetic on a GGUF file's weights is another model's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from specdemo.engine import numerics
from specdemo.engine.model import ModelSettings, Run, prefill_chunks
from specdemo.engine.open import open_model
from specdemo.training import corpus
from specdemo.training.corpus import Conversation
from specdemo.training.settings import Report, TrainProgress

TOP = 16
SHARD = 64
"""Conversations in one file."""

LONGEST = 2048
"""Tokens of a conversation that the target is shown."""

_NEAR = 8.0
"""Logits below the best one within which the likeliest tokens are nearly always found: ranking all takes far longer."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Per label the target's likeliest tokens, int32 [n, TOP], and their probabilities, float16 [n, TOP]."""

    tokens: np.ndarray
    probabilities: np.ndarray


class Teacher(Protocol):
    """A target that says how likely each token of an answer was."""

    def targets(self, prompt: Sequence[int], answer: Sequence[int]) -> Targets:
        """One row per answer token."""


class TorchTeacher:
    """A target in torch, on the device that it lies on."""

    def __init__(self, model) -> None:
        self._model = model

    def targets(self, prompt: Sequence[int], answer: Sequence[int]) -> Targets:
        import torch

        tokens = torch.tensor([[*prompt, *answer[:-1]]], device=self._model.device)
        with torch.no_grad():
            hidden = self._model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0, -len(answer) :]
            logits = self._model.get_output_embeddings()(hidden)
            probabilities, ids = logits.softmax(1).topk(min(TOP, logits.shape[1]))
        return Targets(ids.cpu().numpy().astype(np.int32), probabilities.cpu().numpy().astype(np.float16))


class IRTeacher:
    """A target as IR on the CPU, in the numerics that decoding has by default. Raises ModelError as `open_model` does."""

    def __init__(self, xml: Path) -> None:
        self._model = open_model(xml, ModelSettings("CPU", numerics.exact_candidates(xml)[0]))

    def targets(self, prompt: Sequence[int], answer: Sequence[int]) -> Targets:
        with self._model.new_sequence() as sequence:
            for chunk, rows in prefill_chunks([*prompt, *answer[:-1]], len(answer)):
                [logits] = self._model.forward([Run(sequence, chunk, rows)])
            tokens = np.stack([_likeliest(row) for row in logits.rows])
            values = np.take_along_axis(logits.rows, tokens, axis=1) - logits.log_sum[:, None]
        return Targets(tokens.astype(np.int32), np.exp(values).astype(np.float16))


def _likeliest(row: np.ndarray) -> np.ndarray:
    """The ids of the TOP largest of a row of logits, largest first."""
    near = np.flatnonzero(row > row.max() - _NEAR)
    if len(near) < TOP:
        near = np.arange(len(row))
    return near[np.argsort(-row[near], kind="stable")[:TOP]]


class SoftLabels:
    """Targets of every conversation, in memory: 96 bytes a token."""

    def __init__(self, rows: Sequence[Targets]) -> None:
        self._rows = rows

    def of(self, numbers: Sequence[int]) -> Targets:
        """The targets of a batch of these conversations, in the order of its labels."""
        chosen = [self._rows[number] for number in numbers]
        return Targets(np.concatenate([c.tokens for c in chosen]), np.concatenate([c.probabilities for c in chosen]))


def soft_labels(
    teacher: Teacher,
    conversations: Sequence[Conversation],
    taught: Sequence[Conversation],
    longest: int,
    folder: Path,
    report: Report,
) -> SoftLabels:
    """Ask the target about all conversations, continuing where an earlier call was killed.

    Args:
        conversations: with their whole prompts.
        taught: the same as training reads them (`corpus.lesson`), each cut to `longest` tokens.
        folder: where one file for every SHARD conversations is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers = [corpus.cut_prompt(lesson, longest)[1] for lesson in taught]
    asked = [replace(one, answer=answer) for one, answer in zip(conversations, answers, strict=True)]
    rows: list[Targets] = []
    for first in range(0, len(asked), SHARD):
        path = folder / f"{first // SHARD:05d}.npz"
        if not path.is_file():
            _write(path, [ask(teacher, one) for one in asked[first : first + SHARD]])
        rows += _read(path)
        report(TrainProgress("Asking the target for probabilities", len(rows), len(asked)))
    return SoftLabels(rows)


def ask(teacher: Teacher, conversation: Conversation) -> Targets:
    """The target's probabilities of an answer, after as much of its prompt as LONGEST tokens hold beside it."""
    prompt, answer = corpus.cut_prompt(conversation, LONGEST)
    return teacher.targets(prompt, answer)


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
