"""Instructions of the kinds people give, made of prompts.toml and of the target's own answers, the
passages to summarise or to ask about. No data set is used."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

_DATA = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
_TEMPLATES = jinja2.Environment(variable_start_string="{", variable_end_string="}")
MIX: dict[str, float] = _DATA["mix"]
"""The share of each kind of instruction."""


def instruction(number: int, answers: Sequence[str]) -> tuple[str, str]:
    """The kind and the text of instruction `number`; equal arguments give equal instructions.

    Passages are cut from `answers`; without any, kinds that need one become writing tasks.
    """
    rng = random.Random(number)
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    values: dict[str, Any] = {}
    if kind in ("summary", "passage question"):
        if answers:
            values = _passage(rng, answers)
        else:
            kind = "writing"
    elif kind == "translation":
        sentences = [("German", _draw(rng, "german", {}))]
        sentences += [(name, rng.choice(_DATA[name.lower()])) for name in ("French", "Spanish")]
        values["language"], values["sentence"] = rng.choices(sentences, (8, 1, 1))[0]
    return kind, _draw(rng, kind, values)


def _draw(rng: random.Random, kind: str, values: dict[str, Any]) -> str:
    """A text of `kind`, whose values are drawn in the order of the file, then its template."""
    table = _DATA[kind]
    for names, source in table.get("values", {}).items():
        if isinstance(source, list):
            values[names] = rng.randint(*source)
        else:
            drawn = rng.sample(_DATA[source], len(names.split()))
            values.update(zip(names.split(), drawn, strict=True))
    form = rng.choices(table["forms"], table.get("weights"))[0]
    return _TEMPLATES.from_string(form).render(values)


def _passage(rng: random.Random, answers: Sequence[str]) -> dict[str, str]:
    """One to four answers, cut at a word, and a question about some words of them."""
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(answers).split()) for _ in range(rng.randint(1, 4)))
    passage = passage[: rng.randint(400, 2200)].rsplit(" ", 1)[0]
    words = [word.strip('.,:;()"') for word in passage.split()]
    at = rng.randrange(max(1, len(words) - 4))
    phrase = " ".join(words[at : at + rng.randint(2, 4)])
    question = rng.choice(_DATA["passage question"]["questions"])
    return {"passage": passage, "question": _TEMPLATES.from_string(question).render(phrase=phrase)}
