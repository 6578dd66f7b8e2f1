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
from specdemo.training.teacher import LONGEST, Targets

LOOKAHEADS = (1, 2, 3, 4, 5, 8)
_ROWS = 8


def evaluate(
    model,
    conversations: Sequence[Conversation],
    frequent: np.ndarray,
    known: Sequence[Targets] | None = None,
) -> Agreement:
    """Measure `model` on greedy answers among `conversations`.

    Args:
        model: the draft, on any device.
        frequent: int64 [n], the only ids the draft may propose.
        known: the target's probabilities for each of the conversations; None leaves acceptance under sampling out.
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
        tv_acceptance=None if known is None else _tv_acceptance(model, conversations, frequent, known),
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


def _tv_acceptance(
    model, conversations: Sequence[Conversation], frequent: np.ndarray, known: Sequence[Targets]
) -> float:
    """Mean over answer tokens of the sum of min(p, q): the chance that a sampled draft token is kept (2211.17192). Of the
    target only the likeliest tokens are known, so it is a little more than this."""
    import torch

    from specdemo.training import draft

    device = next(model.parameters()).device
    rows = draft.head_rows(model, torch.from_numpy(frequent).to(device))
    columns = np.full(model.get_output_embeddings().weight.shape[0], -1)
    columns[frequent] = np.arange(len(frequent))
    kept, count = 0.0, 0
    with torch.no_grad():
        for conversation, targets in zip(conversations, known, strict=True):
            if not conversation.answer:
                continue
            batch = corpus.make_batch([conversation], LONGEST)
            p = (draft.hidden(model, batch, device) @ rows.T).softmax(1).cpu().numpy()
            places = columns[targets.tokens]
            mine = np.where(places >= 0, np.take_along_axis(p, np.maximum(places, 0), axis=1), 0.0)
            kept += float(np.minimum(mine, targets.probabilities).sum())
            count += len(batch.labels)
    return kept / max(count, 1)


def _mean(hits: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(hits).mean()) if hits else 0.0
