"""Training text from the target alone: instructions, and the target's answers and probabilities.

Of the questions, four in ten are finished by the target itself from their first words (Magpie,
arXiv 2406.08464). Two of three answers are greedy, the others sampled, so that the draft also
learns what follows a less likely token.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from specdemo.training import corpus, prompts
from specdemo.training.corpus import Conversation, SoftLabels
from specdemo.training.target import Ask, OpenVINOWriter, Request, Target, TorchWriter

TEMPERATURE = 0.7
OPENING_TEMPERATURE = 0.9
OPENING_TOKENS = 40
FIRST_PHASE = 0.3
"""Share of the text that is written before passages are cut from it."""
LEAST_PASSAGE = 40
"""Tokens of an answer that passages are cut from."""


def write_text(
    target: Target,
    writer: OpenVINOWriter | TorchWriter,
    path: Path,
    tokens: int,
    *,
    limit: int,
    seed: int,
) -> None:
    """Write conversations to `path` until their answers hold `tokens` tokens, at most `limit` each.

    A file that is there is continued: conversations come in groups that depend only on the seed,
    their number and the first phase's answers, so an interrupted run ends with the same text.
    """
    path.touch()
    conversations = corpus.read(path)
    del conversations[len(conversations) // writer.at_once * writer.at_once :]
    path.write_text("")
    corpus.write(path, conversations)
    written = sum(len(one.answer) for one in conversations)
    passages: list[str] = []
    bar = tqdm(total=tokens, initial=written, desc="Writing text", unit=" tokens")
    with bar:
        while written < tokens:
            if written >= FIRST_PHASE * tokens and not passages:
                passages = _passages(target, conversations, tokens)
            numbers = range(len(conversations), len(conversations) + writer.at_once)
            group = _group(target, writer, numbers, passages, limit, seed)
            corpus.write(path, group)
            conversations += group
            added = sum(len(one.answer) for one in group)
            written += added
            bar.update(added)


def _passages(target: Target, conversations: Sequence[Conversation], tokens: int) -> list[str]:
    """The longer answers of the first phase, as text."""
    chosen, written = [], 0
    for one in conversations:
        if written >= FIRST_PHASE * tokens:
            break
        written += len(one.answer)
        if len(one.answer) >= LEAST_PASSAGE:
            chosen.append(target.tokenizer.decode(one.answer))
    return chosen


def _group(
    target: Target, writer, numbers: range, passages: list[str], limit: int, seed: int
) -> list[Conversation]:
    """The conversations `numbers`: their prompts, some finished by the target, and its answers."""
    template, tokenizer = target.template, target.tokenizer
    after = tokenizer.encode(template.after) if template.after else []
    # Only a model that ends a user turn itself can write a question.
    openings = bool(after) and after[0] in target.stop_ids
    kinds: list[str] = []
    rendered: dict[int, tuple[int, ...]] = {}
    begun: dict[int, Request] = {}
    for number in numbers:
        one = prompts.instruction(seed, number, passages, openings=openings)
        kinds.append(one.kind)
        if one.opening:
            tokens = tuple(tokenizer.encode(template.before + one.text, bos=template.bos))
            begun[number] = Request(tokens, OPENING_TOKENS, OPENING_TEMPERATURE, seed + number)
        else:
            rendered[number] = tuple(template.render(one.text, tokenizer))
    endings = writer.write(list(begun.values())) if begun else []
    for (number, request), ending in zip(begun.items(), endings, strict=True):
        question = ending[:-1] if ending and ending[-1] in target.stop_ids else ending
        rendered[number] = (*request.prompt, *question, *after)
    requests = [
        Request(rendered[number], limit, TEMPERATURE if number % 3 == 0 else 0.0, seed + number)
        for number in numbers
    ]
    return [
        Conversation(kind, request.temperature == 0, request.prompt, answer)
        for kind, request, answer in zip(kinds, requests, writer.write(requests), strict=True)
    ]


def add_soft_labels(
    ask: Ask, conversations: Sequence[Conversation], lessons: Sequence[Conversation], folder: Path
) -> list[Conversation]:
    """`lessons` with the target's probabilities, continuing an interrupted call.

    Args:
        conversations: with their whole prompts; the target gets corpus.LONGEST tokens of each.
        lessons: the same as training reads them (`corpus.lesson`).
        folder: keeps a file for each conversation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labelled = []
    pairs = list(zip(conversations, lessons, strict=True))
    for number, (whole, lesson) in enumerate(tqdm(pairs, desc="Asking the target")):
        path, partial = folder / f"{number:06d}.npz", folder / "partial.npz"
        if not path.is_file():
            asked = ask(*corpus.cut(replace(whole, answer=lesson.answer), corpus.LONGEST))
            np.savez(partial, tokens=asked.tokens, probabilities=asked.probabilities)
            os.replace(partial, path)
        with np.load(path) as held:
            labelled.append(replace(lesson, soft=SoftLabels(**held)))
    return labelled
