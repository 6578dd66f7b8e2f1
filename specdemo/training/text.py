"""Training text from the target alone: made-up instructions, and the target's answers.

Instructions are of the kinds people give, made of prompts.toml and of passages of the target's
earlier answers. Two of three answers are greedy, the others sampled, so that the draft also learns
what follows a less likely token. The text is kept in files of GROUP conversations each, so an
interrupted writing continues, and ends with the same text.
"""

from __future__ import annotations

import json
import os
import random
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2
from pydantic import TypeAdapter
from tqdm import tqdm

from specdemo.errors import BadInput
from specdemo.models.load import LoadedPair
from specdemo.session import ACTIVE_REQUESTS, Session
from specdemo.settings import Settings
from specdemo.training.command import TrainSettings

_DATA = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
_FORMS = jinja2.Environment(
    variable_start_string="{", variable_end_string="}", undefined=jinja2.StrictUndefined
)
MIX: dict[str, float] = _DATA["mix"]  # the share of each kind of instruction
GIVEN = "text"  # the kind of a user's own conversations
GROUP, TEMPERATURE = 64, 0.7
LEAST_PASSAGE = 40  # tokens of an answer that passages are cut from
LONGEST = 1024  # tokens that are read of an answer in a user's own file


@dataclass(frozen=True, slots=True)
class Conversation:
    """An instruction, and the target's answer as text and as token ids, with its end token;
    `greedy`: every token of it is the target's most likely one."""

    kind: str
    greedy: bool
    instruction: str
    text: str
    answer: tuple[int, ...]


def instruction(number: int, answers: Sequence[str]) -> tuple[str, str]:
    """The kind and the text of instruction `number`; equal arguments give equal instructions.

    Passages are cut from `answers`; without any, kinds that need one become writing tasks.
    """
    rng = random.Random(number)
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    if not answers and kind in ("summary", "passage question"):
        kind = "writing"
    values = _passage(rng, answers or [""])
    for names, source in _DATA["values"].items():
        if isinstance(source, list):
            values[names] = rng.randint(*source)
        else:
            drawn = rng.sample(" ".join(source.split()).split(", "), len(names.split()))
            values |= zip(names.split(), drawn, strict=True)
    for name, forms in _DATA["parts"].items():
        values[name] = _FORMS.from_string(rng.choice(forms)).render(values)
    form = rng.choices(_DATA[kind]["forms"], _DATA[kind].get("weights"))[0]
    return kind, _FORMS.from_string(form).render(values)


def _passage(rng: random.Random, answers: Sequence[str]) -> dict[str, str | int]:
    """One to four answers, cut at a word, and some words of them."""
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(answers).split()) for _ in range(rng.randint(1, 4)))
    passage = passage[: rng.randint(400, 2200)].rsplit(" ", 1)[0]
    words = [word.strip('.,:;()"') for word in passage.split()]
    at = rng.randrange(max(1, len(words) - 4))
    return {"passage": passage, "phrase": " ".join(words[at : at + rng.randint(2, 4)])}


def given(path: Path, loaded: LoadedPair) -> list[Conversation]:
    """The conversations of a user's own file, taken for greedy ones. Raises BadInput."""
    conversations = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = TypeAdapter(dict[str, str]).validate_json(line)
            asked, said = row["u"], row["a"]
        except (ValueError, KeyError) as error:
            raise BadInput(
                f'--text {path}: line {number} is not {{"u": "INSTRUCTION", "a": "ANSWER"}}.'
            ) from error
        answer = tuple(loaded.tokenizer.encode(said, special=False)[:LONGEST])
        conversations.append(Conversation(GIVEN, True, asked, said, answer))
    return conversations


def written(loaded: LoadedPair, folder: Path, settings: TrainSettings) -> list[Conversation]:
    """Let the target answer instructions until the answers in `folder` hold `settings.tokens`
    tokens. Raises what `Session` does."""
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

        def answer(number: int) -> Conversation:
            kind, asked = instruction(number, passages)
            prompt = loaded.template.render(asked, loaded.tokenizer)
            if len(prompt) + settings.answer_tokens > loaded.context_limit:
                kind, asked = instruction(number, ())
            temperature = 0.0 if number % 3 else TEMPERATURE
            how = Settings(settings.answer_tokens, temperature=temperature, seed=number)
            *_, trace = session.answer(asked, how)
            return Conversation(kind, not temperature, asked, trace.text, trace.token_ids)

        while bar.n < settings.tokens:
            passages = [one.text for one in known if len(one.answer) >= LEAST_PASSAGE]
            first = len(known)
            for one in pool.map(answer, range(first, first + GROUP)):
                known.append(one)
                bar.update(len(one.answer))
            content = "".join(json.dumps(asdict(one)) + "\n" for one in known[first:])
            partial = folder / "partial"
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, folder / f"{first:07d}.jsonl")
    return known
