"""Conversations as token ids, and the fixed order in which training reads them. Knows numpy only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

LONGEST_MATCH = 4
LOOP = 16
"""Tokens."""


@dataclass(frozen=True)
class Conversation:
    """One prompt and the target's answer to it.

    `greedy` says that every answer token is the target's most likely one, so agreement can be read off the text.
    `prompt` holds the whole chat template up to the answer, `answer` includes the end token where there was one.
    `weights` say how much each answer token counts in training, all alike where there are none.
    """

    kind: str
    greedy: bool
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Batch:
    """Conversations padded on the right to one length.

    Attributes:
        tokens: int64 [rows, length].
        rows, columns: int64 [n], the positions whose next token is an answer token.
        labels: int64 [n], those next tokens.
        weights: float32 [n], how much each counts in the loss.
    """

    tokens: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def write(path: Path, conversations: Iterable[Conversation]) -> None:
    """Append conversations to a JSONL file."""
    with path.open("a", encoding="utf-8") as file:
        for conversation in conversations:
            row = asdict(conversation)
            del row["weights"]
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[Conversation]:
    """All whole lines of a JSONL file; a line cut short by a kill is left out. An answer may be empty."""
    conversations = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            conversations.append(Conversation(row["kind"], row["greedy"], tuple(row["prompt"]), tuple(row["answer"])))
    return conversations


def frequent_tokens(conversations: Iterable[Conversation], vocabulary: int, count: int) -> np.ndarray:
    """The `count` most frequent ids of the answers (ties: lower id first), most frequent first, int64 [<= count].

    Ids that never occur follow in order of id, so the list is as long as asked for wherever the vocabulary is.
    """
    counts = np.zeros(vocabulary, np.int64)
    for conversation in conversations:
        np.add.at(counts, np.asarray(conversation.answer, np.int64), 1)
    return np.argsort(-counts, kind="stable")[:count]


def make_batch(conversations: Sequence[Conversation], longest: int) -> Batch:
    """Pad conversations to the longest of them, cut to `longest` tokens."""
    cut = [cut_prompt(conversation, longest) for conversation in conversations]
    tokens = np.zeros((len(cut), max(len(prompt) + len(answer) for prompt, answer in cut)), np.int64)
    rows, columns, labels, weights = [], [], [], []
    for row, ((prompt, answer), conversation) in enumerate(zip(cut, conversations, strict=True)):
        tokens[row, : len(prompt)] = prompt
        tokens[row, len(prompt) : len(prompt) + len(answer)] = answer
        rows.append(np.full(len(answer), row))
        columns.append(np.arange(len(prompt) - 1, len(prompt) + len(answer) - 1))
        labels.append(np.asarray(answer, np.int64))
        counts = conversation.weights[: len(answer)] or np.ones(len(answer))
        weights.append(np.asarray(counts, np.float32))
    return Batch(tokens, *(np.concatenate(one) for one in (rows, columns, labels, weights)))


def cut_prompt(conversation: Conversation, longest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and answer in at most `longest` tokens: the answer's end goes first, then the prompt's beginning."""
    answer = conversation.answer[: longest // 2] if len(conversation) > longest else conversation.answer
    room = longest - len(answer)
    return conversation.prompt[-room:], answer


def lookup_hits(prompt: Sequence[int], answer: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """What prompt lookup would have guessed at each answer token.

    Returns:
        int64 [answer tokens], how many of the last tokens (up to LONGEST_MATCH) occurred in a row before; and bool
        [answer tokens], whether what followed them last time is the answer's token.
    """
    text = (*prompt, *answer)
    followed: dict[tuple[int, ...], int] = {}
    lengths, right = [], []
    for at in range(1, len(text)):
        endings = [text[at - n : at] for n in range(min(LONGEST_MATCH, at), 0, -1)]
        if at >= len(prompt):
            known = next((ending for ending in endings if ending in followed), ())
            lengths.append(len(known))
            right.append(bool(known) and followed[known] == text[at])
        followed.update(dict.fromkeys(endings, text[at]))
    return np.array(lengths, np.int64), np.array(right, bool)


def lesson(conversation: Conversation, prompt_tokens: int | None = None) -> Conversation:
    """A conversation as training reads it: weighted, without loops, with the last `prompt_tokens` of its prompt.

    What prompt lookup guesses for nothing, from all of the prompt, is worth little to learn. Small models run in circles
    under greedy decoding: once an answer has repeated itself for LOOP tokens, the rest of it teaches nothing that lookup
    does not know.
    """
    lengths, right = lookup_hits(conversation.prompt, conversation.answer)
    weights = np.where(lengths < 2, 1.0, np.where(right, 0.15, 0.5))
    end = _looping_since((lengths == LONGEST_MATCH) & right)
    prompt = conversation.prompt if prompt_tokens is None else conversation.prompt[-prompt_tokens:]
    return replace(conversation, prompt=prompt, answer=conversation.answer[:end], weights=tuple(weights[:end].tolist()))


def _looping_since(repeated: np.ndarray) -> int:
    """After how many tokens LOOP of them in a row were repeated; all of them if that never happens."""
    run = 0
    for at, one in enumerate(repeated):
        run = run + 1 if one else 0
        if run == LOOP:
            return at + 1
    return len(repeated)


def batches(
    conversations: Sequence[Conversation], *, tokens: int, longest: int, seed: int, pool: int = 512
) -> Iterator[list[int]]:
    """Endless lists of indices into `conversations`, each list at most `tokens` tokens when padded.

    Every epoch is a new order drawn from (seed, epoch). Within a pool conversations of like length go together, which
    keeps padding near 5 %; the batches of a pool are then shuffled.
    """
    epoch = 0
    while True:
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(conversations))
        for start in range(0, len(order), pool):
            members = order[start : start + pool]
            lengths = np.array([min(len(conversations[i]), longest) for i in members])
            groups: list[list[int]] = [[]]
            for position in np.argsort(lengths, kind="stable"):
                # Sorted by length, so the newcomer is the longest of its group and sets the padded size.
                if groups[-1] and (len(groups[-1]) + 1) * lengths[position] > tokens:
                    groups.append([])
                groups[-1].append(int(members[position]))
            for group in rng.permutation(len(groups)):
                yield groups[group]
        epoch += 1
