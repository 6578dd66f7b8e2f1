"""How often a draft agrees with its target on text it was not trained on, and what that is worth in rounds.

Greedy speculative decoding keeps a drafted token exactly if it is the target's own, so the rounds of any lookahead can
be read off one forward over the target's answer: no decoding is needed to count them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.training import corpus
from specdemo.training.corpus import Conversation
from specdemo.training.settings import Agreement

LOOKAHEADS = (1, 2, 3, 4, 5, 8)
LONGEST = 2048
_ROWS = 8


def evaluate(model, conversations: Sequence[Conversation], frequent: np.ndarray, target=None) -> Agreement:
    """Measure `model` on greedy answers among `conversations`.

    Args:
        model: the draft, on any device.
        frequent: int64 [n], the only ids the draft may propose.
        target: the target in torch if its probabilities are wanted too; the sampled answers then count for those.
    """
    answered = [conversation for conversation in conversations if conversation.answer]
    greedy = [conversation for conversation in answered if conversation.greedy]
    hits = matches(model, greedy, frequent)
    return Agreement(
        tokens=sum(len(hit) for hit in hits),
        agreement=_mean(hits),
        by_kind={
            kind: _mean([hit for hit, conversation in zip(hits, greedy, strict=True) if conversation.kind == kind])
            for kind in sorted({conversation.kind for conversation in greedy})
        },
        by_position=acceptance_by_position(hits, LOOKAHEADS[-1]),
        tokens_per_round={k: tokens_per_round(hits, k) for k in LOOKAHEADS},
        tv_acceptance=_tv_acceptance(model, target, answered, frequent) if target is not None else None,
    )


def matches(model, conversations: Sequence[Conversation], frequent: np.ndarray) -> list[np.ndarray]:
    """For each conversation, bool [answer tokens]: whether the draft's likeliest token is the answer's."""
    import torch

    from specdemo.training import draft

    device = next(model.parameters()).device
    ids = torch.from_numpy(frequent)
    rows = draft.head_rows(model, ids.to(device))
    order = sorted(range(len(conversations)), key=lambda i: len(conversations[i]))
    found: dict[int, np.ndarray] = {}
    with torch.no_grad():
        for start in range(0, len(order), _ROWS):
            members = order[start : start + _ROWS]
            batch = corpus.make_batch([conversations[i] for i in members], LONGEST)
            guesses = ids[(draft.hidden(model, batch, device) @ rows.T).argmax(1).cpu()].numpy()
            for row, member in enumerate(members):
                found[member] = (guesses == batch.labels)[batch.rows == row]
    return [found[i] for i in range(len(conversations))]


def rounds(hit: np.ndarray, lookahead: int) -> list[int]:
    """Accepted draft tokens of each round of an answer, when every round drafts `lookahead` tokens."""
    accepted, at = [], 0
    while at < len(hit):
        ahead = hit[at : at + lookahead]
        run = len(ahead) if ahead.all() else int(ahead.argmin())
        accepted.append(run)
        at += run + 1
    return accepted


def tokens_per_round(hits: Sequence[np.ndarray], lookahead: int) -> float:
    """Answer tokens over rounds: from 1 (nothing accepted) to lookahead + 1."""
    total = sum(len(rounds(hit, lookahead)) for hit in hits)
    return sum(len(hit) for hit in hits) / total if total else 0.0


def acceptance_by_position(hits: Sequence[np.ndarray], lookahead: int) -> tuple[float, ...]:
    """The share accepted of the first, second, ... draft tokens of a round, among those whose forerunners were."""
    runs = np.array([run for hit in hits for run in rounds(hit, lookahead)])
    shares = []
    for position in range(lookahead):
        reached = int((runs >= position).sum())
        shares.append(float((runs > position).sum() / reached) if reached else 0.0)
    return tuple(shares)


def _tv_acceptance(model, target, conversations: Sequence[Conversation], frequent: np.ndarray) -> float:
    """Mean over answer tokens of the sum of min(p, q): the chance that a sampled draft token is kept (2211.17192)."""
    import torch

    from specdemo.training import draft

    device = next(model.parameters()).device
    ids = torch.from_numpy(frequent).to(device)
    kept, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(conversations), _ROWS):
            batch = corpus.make_batch(conversations[start : start + _ROWS], LONGEST)
            q = (draft.hidden(model, batch, device) @ draft.head_rows(model, ids).T).softmax(1)
            head = target.get_output_embeddings()
            p = head(draft.hidden(target, batch, device)).softmax(1)[:, ids]
            kept += float(torch.minimum(p, q).sum())
            count += len(batch.labels)
    return kept / max(count, 1)


def _mean(hits: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(hits).mean()) if hits else 0.0
