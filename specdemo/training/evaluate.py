"""How often a draft agrees with its target on held-back text, and what that is worth in rounds.

Greedy speculative decoding keeps a draft token exactly if it is the target's own, so the rounds of
any draft length can be counted on one forward over the target's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from specdemo.training import corpus, distil
from specdemo.training.corpus import Batch, Conversation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

DRAFT_LENGTHS = (1, 2, 3, 4, 5, 8)
ROWS = 8
"""Conversations in a forward."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a draft is right on the target's greedy answers, after the answer's own tokens.

    `tokens_per_round[K]` belongs to draft length K. `tv_acceptance` is one minus total variation,
    the acceptance rate when sampling; None without soft labels.
    """

    tokens: int
    agreement: float
    by_kind: dict[str, float]
    by_position: tuple[float, ...]
    tokens_per_round: dict[int, float]
    tv_acceptance: float | None


def evaluate(
    model: PreTrainedModel, held: Sequence[Conversation], frequent: np.ndarray, title: str
) -> Agreement:
    """Measure `model` on greedy answers; it may propose the ids `frequent` only. `title` is for the
    progress bar."""
    import torch

    hits: list[np.ndarray] = []
    overlaps: list[np.ndarray] = []
    ordered = sorted(held, key=len)
    with torch.no_grad():
        for start in tqdm(range(0, len(ordered), ROWS), desc=title):
            members = ordered[start : start + ROWS]
            batch = corpus.make_batch(members, corpus.LONGEST)
            scores = distil.logits(model, batch, frequent)
            right = frequent[scores.argmax(1).cpu().numpy()] == batch.labels
            hits += np.split(right, np.cumsum(batch.answered.sum(1))[:-1])
            if batch.soft:
                overlaps.append(_overlaps(scores, batch, frequent))
    kinds = sorted({one.kind for one in ordered})
    return Agreement(
        tokens=sum(map(len, hits)),
        agreement=_mean(hits),
        by_kind={
            kind: _mean([hit for one, hit in zip(ordered, hits, strict=True) if one.kind == kind])
            for kind in kinds
        },
        by_position=acceptance_by_position(hits, DRAFT_LENGTHS[-1]),
        tokens_per_round={k: tokens_per_round(hits, k) for k in DRAFT_LENGTHS},
        tv_acceptance=_mean(overlaps) if overlaps else None,
    )


def _overlaps(scores: torch.Tensor, batch: Batch, frequent: np.ndarray) -> np.ndarray:
    """For each label the sum of min(p, q), the chance that a sampled draft token is accepted
    (2211.17192), over the target's likeliest tokens, so a little less than over all."""
    soft = batch.soft
    place = np.full(max(frequent.max(), soft.tokens.max()) + 1, -1)
    place[frequent] = np.arange(len(frequent))
    places = place[soft.tokens]
    q = np.take_along_axis(scores.softmax(1).cpu().numpy(), places, axis=1)
    return np.minimum(np.where(places < 0, 0.0, q), soft.probabilities).sum(1)


def _mean(arrays: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(arrays).mean())


def rounds(hit: np.ndarray, draft_length: int) -> list[int]:
    """Accepted draft tokens of each round, where bool [answer tokens] says which are right."""
    accepted, at = [], 0
    while at < len(hit):
        ahead = hit[at : at + draft_length]
        accepted.append(len(ahead) if ahead.all() else int(ahead.argmin()))
        at += accepted[-1] + 1
    return accepted


def tokens_per_round(hits: Sequence[np.ndarray], draft_length: int) -> float:
    """Answer tokens over rounds: from 1 (nothing accepted) to draft_length + 1."""
    return sum(map(len, hits)) / sum(len(rounds(hit, draft_length)) for hit in hits)


def acceptance_by_position(hits: Sequence[np.ndarray], draft_length: int) -> tuple[float, ...]:
    """The acceptance rate of the first, second, ... draft token of a round, among those whose
    predecessors were accepted; 0 where there is none."""
    accepted = np.array([count for hit in hits for count in rounds(hit, draft_length)])
    return tuple(
        float((accepted > position).sum() / max(1, (accepted >= position).sum()))
        for position in range(draft_length)
    )
