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
from specdemo.training.corpus import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DRAFT_LENGTHS = (1, 2, 3, 4, 5, 8)
ROWS = 8
"""Conversations in a forward."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a draft is right on the target's greedy answers, after the answer's own tokens.

    `unaided` is the agreement where n-gram lookup matches fewer than two tokens.
    `tokens_per_round[K]` belongs to draft length K. `tv_acceptance` is one minus total variation,
    the acceptance rate when sampling; None without soft labels.
    """

    tokens: int
    agreement: float
    unaided: float
    by_kind: dict[str, float]
    by_position: tuple[float, ...]
    tokens_per_round: dict[int, float]
    tv_acceptance: float | None


def evaluate(
    model: PreTrainedModel, held: Sequence[Conversation], frequent: np.ndarray, title: str
) -> Agreement:
    """Measure a draft model on greedy answers; it may propose the ids `frequent` only. `title` is
    for the progress bar."""
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
            if batch.states is not None:
                # The chance that a sampled draft token is accepted (arXiv 2211.17192).
                wanted = distil.soft_labels(model, batch, frequent)
                overlaps.append(torch.minimum(scores.softmax(1), wanted).sum(1).cpu().numpy())
    tv_acceptance = float(np.concatenate(overlaps).mean()) if overlaps else None
    return summarise(ordered, [chains(hit, DRAFT_LENGTHS[-1]) for hit in hits], tv_acceptance)


def summarise(
    held: Sequence[Conversation], hits: Sequence[np.ndarray], tv_acceptance: float | None = None
) -> Agreement:
    """The figures of conversations and their `hits`, bool [answer tokens, K]: whether each draft
    token of a round that begins there is right, if those before it are."""
    first = [hit[:, 0] for hit in hits]
    unaided = [
        hit[corpus.lookup_hits(one)[0][: len(hit)] < 2]
        for one, hit in zip(held, first, strict=True)
    ]
    by_kind = {
        kind: _mean([hit for one, hit in zip(held, first, strict=True) if one.kind == kind])
        for kind in sorted({one.kind for one in held})
    }
    most = hits[0].shape[1]
    lengths = [length for length in DRAFT_LENGTHS if length <= most]
    return Agreement(
        tokens=sum(map(len, hits)),
        agreement=_mean(first),
        unaided=_mean(unaided),
        by_kind=by_kind,
        by_position=acceptance_by_position(hits),
        tokens_per_round={k: tokens_per_round([hit[:, :k] for hit in hits]) for k in lengths},
        tv_acceptance=tv_acceptance,
    )


def _mean(arrays: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(arrays).mean()) if any(map(len, arrays)) else 0.0


def chains(hit: np.ndarray, length: int) -> np.ndarray:
    """The hits of a draft that reads all tokens before, bool [n, length], from those of its single
    tokens, bool [n]."""
    padded = np.concatenate([hit, np.zeros(length, bool)])
    return np.lib.stride_tricks.sliding_window_view(padded, length)[: len(hit)]


def rounds(hits: np.ndarray) -> list[int]:
    """Accepted draft tokens of each round of an answer with these hits, bool [tokens, K]."""
    accepted, at = [], 0
    while at < len(hits):
        accepted.append(int(np.argmin([*hits[at], False])))
        at += accepted[-1] + 1
    return accepted


def tokens_per_round(hits: Sequence[np.ndarray]) -> float:
    """Answer tokens over rounds: from 1 (nothing accepted) to K + 1."""
    return sum(map(len, hits)) / sum(len(rounds(one)) for one in hits)


def acceptance_by_position(hits: Sequence[np.ndarray]) -> tuple[float, ...]:
    """The acceptance rate of the first, second, ... draft token of a round, among those whose
    predecessors were accepted; 0 where there is none."""
    accepted = np.array([count for one in hits for count in rounds(one)])
    return tuple(
        float((accepted > position).sum() / max(1, (accepted >= position).sum()))
        for position in range(hits[0].shape[1])
    )
