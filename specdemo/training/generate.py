"""Training text from the target alone: instructions, and the target's answers.

Of the questions, four in ten are finished by the target itself from their first words (Magpie,
arXiv 2406.08464). Two of three answers are greedy, the others sampled, so that the draft also
learns what follows a less likely token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from specdemo.training import corpus, prompts
from specdemo.training.corpus import Conversation
from specdemo.training.target import AT_ONCE, Request, Target, Write

TEMPERATURE = 0.7
OPENING_TEMPERATURE = 0.9
OPENING_TOKENS = 40
FIRST_PHASE = 0.3
"""Share of the text that is written before passages are cut from it."""
LEAST_PASSAGE = 40
"""Tokens of an answer that passages are cut from."""


def write_text(
    target: Target, writer: Write, path: Path, tokens: int, *, limit: int, seed: int
) -> None:
    """Write conversations to `path` until their answers hold `tokens` tokens, at most `limit` each;
    an interrupted call that is repeated ends with the same text."""
    path.touch()
    conversations = corpus.read(path)
    del conversations[len(conversations) // AT_ONCE * AT_ONCE :]
    path.write_text("")
    corpus.write(path, conversations)
    written = sum(len(one.answer) for one in conversations)
    passages: list[str] = []
    with tqdm(total=tokens, initial=written, desc="Writing text", unit=" tokens") as bar:
        while written < tokens:
            if written >= FIRST_PHASE * tokens and not passages:
                passages = _passages(target, conversations, tokens)
            numbers = range(len(conversations), len(conversations) + AT_ONCE)
            group = _group(target, writer, numbers, passages, limit, seed)
            corpus.write(path, group)
            conversations += group
            added = sum(len(one.answer) for one in group)
            written += added
            bar.update(added)


def _passages(target: Target, conversations: Sequence[Conversation], tokens: int) -> list[str]:
    """The longer answers of the first phase, as text."""
    lengths = np.array([len(one.answer) for one in conversations])
    first_phase = np.cumsum(lengths) - lengths < FIRST_PHASE * tokens
    chosen = np.flatnonzero(first_phase & (lengths >= LEAST_PASSAGE))
    return [target.tokenizer.decode(conversations[at].answer) for at in chosen]


def _group(
    target: Target, write: Write, numbers: range, passages: list[str], limit: int, seed: int
) -> list[Conversation]:
    """The conversations `numbers`: their prompts, some finished by the target, and its answers."""
    template, tokenizer = target.template, target.tokenizer
    after = tokenizer.encode(template.after) if template.after else []
    # Only a model that ends a user turn itself can write a question.
    openings = bool(after) and after[0] in target.stop_ids
    asked = [prompts.instruction(seed, at, passages, openings=openings) for at in numbers]
    begun: dict[int, Request] = {}
    requests = []
    for number, one in zip(numbers, asked, strict=True):
        temperature = TEMPERATURE if number % 3 == 0 else 0.0
        prompt = tuple(template.render(one.text, tokenizer))
        if one.opening:
            prompt = tuple(tokenizer.encode(template.before + one.text, bos=template.bos))
            begun[len(requests)] = Request(
                prompt, OPENING_TOKENS, OPENING_TEMPERATURE, seed + number
            )
        requests.append(Request(prompt, limit, temperature, seed + number))
    endings = write(list(begun.values())) if begun else []
    for at, ending in zip(begun, endings, strict=True):
        question = ending[:-1] if ending and ending[-1] in target.stop_ids else ending
        prompt = (*requests[at].prompt, *question, *after)
        requests[at] = replace(requests[at], prompt=prompt)
    return [
        Conversation(one.kind, request.temperature == 0, request.prompt, answer)
        for one, request, answer in zip(asked, requests, write(requests), strict=True)
    ]
