"""Training text from the target alone: made-up instructions, and the target's answers.

Two of three answers are greedy, the others sampled, so that the draft also learns what follows a
less likely token. The text is kept in files of GROUP conversations each, so an interrupted writing
continues, and ends with the same text.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter
from tqdm import tqdm

from specdemo.errors import BadInput
from specdemo.models.load import LoadedPair
from specdemo.session import ACTIVE_REQUESTS, Session
from specdemo.settings import Settings
from specdemo.training import prompts
from specdemo.training.command import TrainSettings

GIVEN = "text"
"""The kind of a user's own conversations."""
GROUP = 64
TEMPERATURE = 0.7
LEAST_PASSAGE = 40
"""Tokens of an answer that passages are cut from."""
LONGEST = 1024
"""Tokens that are read of an answer in a user's own file."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """An instruction, and the target's answer as text and as token ids, with its end token.

    `greedy`: every token of the answer is the target's most likely one.
    """

    kind: str
    greedy: bool
    instruction: str
    text: str
    answer: tuple[int, ...]


def given(path: Path, loaded: LoadedPair) -> list[Conversation]:
    """The conversations of a user's own file, taken for greedy ones. Raises BadInput."""
    conversations = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            answer = tuple(loaded.tokenizer.encode(row["a"], special=False)[:LONGEST])
            conversations.append(Conversation(GIVEN, True, str(row["u"]), row["a"], answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f'--text {path}: line {number} is not {{"u": "INSTRUCTION", "a": "ANSWER"}}.'
            ) from error
    return conversations


def written(
    loaded: LoadedPair, folder: Path, settings: TrainSettings, given: Sequence[Conversation]
) -> list[Conversation]:
    """Let the target answer instructions until the answers in `folder` hold `settings.tokens`
    tokens; with `settings.only` no longer than `settings.minutes`. Passages are cut from earlier
    answers and from those of `given`. Raises what `Session` does."""
    folder.mkdir(exist_ok=True)
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.open("rb")]
    known = [TypeAdapter(Conversation).validate_json(line) for line in lines]
    done = sum(len(one.answer) for one in known)
    if done >= settings.tokens:
        return known
    with (
        tqdm(total=settings.tokens, initial=done, desc="Writing text", unit=" tokens") as bar,
        ThreadPoolExecutor(ACTIVE_REQUESTS) as pool,
        Session(loaded) as session,
    ):
        minutes = settings.minutes if settings.only else None
        until = time.monotonic() + 60 * (minutes or float("inf"))

        def answer(number: int) -> Conversation | None:
            if time.monotonic() > until:
                return None
            kind, instruction = prompts.instruction(number, passages)
            prompt = loaded.template.render(instruction, loaded.tokenizer)
            if len(prompt) + settings.answer_tokens > loaded.context_limit:
                kind, instruction = prompts.instruction(number, ())
            temperature = 0.0 if number % 3 else TEMPERATURE
            how = Settings(settings.answer_tokens, temperature=temperature, seed=number)
            *_, trace = session.answer(instruction, how)
            return Conversation(kind, not temperature, instruction, trace.text, trace.token_ids)

        while done < settings.tokens and time.monotonic() < until:
            passages = [one.text for one in [*given, *known] if len(one.answer) >= LEAST_PASSAGE]
            first = len(known)
            for one in filter(None, pool.map(answer, range(first, first + GROUP))):
                known.append(one)
                done += len(one.answer)
                bar.update(len(one.answer))
            content = "".join(json.dumps(asdict(one)) + "\n" for one in known[first:])
            partial = folder / "partial"
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, folder / f"{first:07d}.jsonl")
    return known
