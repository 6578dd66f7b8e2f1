"""Conversations as token ids: files, the weights of their tokens, and batches in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

LONGEST = 2048
"""Tokens of a conversation that the target is asked about and that evaluation reads."""
LONGEST_MATCH = 4
"""Tokens of the longest context of n-gram lookup."""
LOOP = 16
"""Tokens that an answer may repeat itself before the rest of it is cut."""
POOL = 512
"""Conversations that are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt, with its chat template, and the target's answer, with its end token.

    `greedy`: every answer token is the target's most likely one. `weights` are those of the answer
    tokens in the loss (empty: all are 1), `states` what `states.Read` gives of them.
    """

    kind: str
    greedy: bool
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    weights: tuple[float, ...] = ()
    states: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations padded on the right: tokens, int64 [rows, length], and their weights in the
    loss, float32 [rows, length], above 0 for answer tokens only, the labels."""

    tokens: np.ndarray
    weights: np.ndarray
    states: np.ndarray | None

    @property
    def answered(self) -> np.ndarray:
        """Where the labels are, bool [rows, length]."""
        return self.weights > 0

    @property
    def labels(self) -> np.ndarray:
        """int64 [n], row by row."""
        return self.tokens[self.answered]


def write(path: Path, conversations: Iterable[Conversation]) -> None:
    """Append conversations to a JSONL file, without weights and probabilities."""
    with path.open("a", encoding="utf-8") as file:
        for one in conversations:
            row = {"kind": one.kind, "greedy": one.greedy, "prompt": one.prompt}
            file.write(json.dumps(row | {"answer": one.answer}) + "\n")


def read(path: Path) -> list[Conversation]:
    """All whole lines of a JSONL file; a line that was cut short is left out."""
    conversations = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        prompt, answer = tuple(row["prompt"]), tuple(row["answer"])
        conversations.append(Conversation(row["kind"], row["greedy"], prompt, answer))
    return conversations


def frequent_tokens(
    conversations: Iterable[Conversation], vocabulary: int, count: int
) -> np.ndarray:
    """The `count` most frequent ids of the answers, most frequent first, ties and ids that never
    occur in order of id: int64 [min(count, vocabulary)]."""
    answers = np.concatenate([np.asarray(one.answer, np.int64) for one in conversations])
    return np.argsort(-np.bincount(answers, minlength=vocabulary), kind="stable")[:count]


def cut(one: Conversation, longest: int) -> Conversation:
    """At most `longest` tokens of a conversation: the answer's end goes first, then the prompt's
    beginning."""
    if len(one) <= longest:
        return one
    end = min(len(one.answer), longest // 2)
    states = None if one.states is None else one.states[:end]
    answer, weights = one.answer[:end], one.weights[:end]
    return replace(
        one, prompt=one.prompt[end - longest :], answer=answer, weights=weights, states=states
    )


def make_batch(conversations: Sequence[Conversation], longest: int) -> Batch:
    """Pad conversations to the longest of them, each cut to `longest` tokens."""
    members = [cut(one, longest) for one in conversations]
    tokens = np.zeros((len(members), max(map(len, members))), np.int64)
    weights = np.zeros(tokens.shape, np.float32)
    for row, one in enumerate(members):
        begin, end = len(one.prompt), len(one)
        tokens[row, :end] = one.prompt + one.answer
        weights[row, begin:end] = one.weights or 1
    states = [one.states for one in members if one.states is not None]
    return Batch(tokens, weights, np.concatenate(states) if states else None)


def lookup_hits(conversation: Conversation) -> tuple[np.ndarray, np.ndarray]:
    """What n-gram lookup would have proposed at each answer token: how many of the last tokens (up
    to LONGEST_MATCH) occurred in a row before (int64 [answer tokens]), and whether what followed
    them last time is right (bool)."""
    text = conversation.prompt + conversation.answer
    followed: dict[tuple[int, ...], int] = {}
    lengths, right = [], []
    for at in range(1, len(text)):
        endings = [text[at - n : at] for n in range(min(LONGEST_MATCH, at), 0, -1)]
        if at >= len(conversation.prompt):
            known = next((ending for ending in endings if ending in followed), ())
            lengths.append(len(known))
            right.append(followed.get(known) == text[at])
        followed.update(dict.fromkeys(endings, text[at]))
    return np.array(lengths, np.int64), np.array(right, bool)


def lesson(conversation: Conversation, prompt_tokens: int | None = None) -> Conversation:
    """A conversation as training reads it: weighted, without loops, with the last `prompt_tokens`
    of its prompt.

    What n-gram lookup proposes rightly is drafted by lookup, so those tokens weigh little. Small
    models repeat themselves under greedy decoding: after LOOP repeated tokens the answer ends.
    """
    lengths, right = lookup_hits(conversation)
    weights = np.where(lengths < 2, 1.0, np.where(right, 0.15, 0.5))
    repeated = (lengths == LONGEST_MATCH) & right
    loops = np.flatnonzero(np.convolve(repeated, np.ones(LOOP), "valid") == LOOP)
    end = loops[0] + LOOP if len(loops) else len(repeated)
    prompt = conversation.prompt if prompt_tokens is None else conversation.prompt[-prompt_tokens:]
    answer, weights = conversation.answer[:end], tuple(weights[:end].tolist())
    return replace(conversation, prompt=prompt, answer=answer, weights=weights)


def batches(
    conversations: Sequence[Conversation], tokens: int, longest: int, seed: int
) -> Iterator[list[int]]:
    """Endless lists of indices into `conversations`, each at most `tokens` tokens when padded.
    Within a pool, conversations of similar length go together, which keeps padding near 5 %."""
    epoch = 0
    while True:
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(conversations))
        for start in range(0, len(order), POOL):
            members = order[start : start + POOL]
            lengths = np.array([min(len(conversations[i]), longest) for i in members])
            groups: list[list[int]] = [[]]
            for position in np.argsort(lengths, kind="stable"):
                # Sorted by length, so the last one of a group sets its padded size.
                if groups[-1] and (len(groups[-1]) + 1) * lengths[position] > tokens:
                    groups.append([])
                groups[-1].append(int(members[position]))
            for group in rng.permutation(len(groups)):
                yield groups[group]
        epoch += 1
