"""Instructions of the kinds people give, from a seeded generator and the target's own answers.

No data set is used: prompts.toml holds word lists and templates, and the passages to summarise or
to ask about are answers that the target wrote earlier.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

_DATA = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
_TEMPLATES = jinja2.Environment(variable_start_string="{", variable_end_string="}")
MIX: dict[str, float] = _DATA["mix"]
"""The share of each kind of instruction."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One user turn. With `opening`, `text` is only its beginning and the target finishes it."""

    kind: str
    text: str
    opening: bool = False


def instruction(
    seed: int, index: int, texts: Sequence[str], *, openings: bool = True
) -> Instruction:
    """Instruction number `index` of the stream of `seed`; equal arguments give equal instructions.

    Passages are cut from `texts`, answers of the target; without any, kinds that need one become
    writing tasks. With `openings` some questions are left for the target to finish.
    """
    rng = random.Random(f"{seed}/{index}")
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    values: dict[str, Any] = {}
    if kind in ("summary", "passage question"):
        if texts:
            values = _passage(rng, kind, texts)
        else:
            kind = "writing"
    if kind == "translation":
        sentences = [("German", _draw(rng, "german"))]
        sentences += [(name, rng.choice(_DATA[name.lower()])) for name in ("French", "Spanish")]
        values["language"], values["sentence"] = rng.choices(sentences, (8, 1, 1))[0]
    elif kind == "question":
        values["subject"] = rng.choice(_DATA["subjects"])
        if rng.random() < 0.4 and openings:
            opening = rng.choice(_DATA["question_openings"])
            ending = " " + values["subject"].lower() if rng.random() < 0.3 else ""
            return Instruction(kind, opening + ending, opening=True)
    return Instruction(kind, _draw(rng, kind, values))


def _draw(rng: random.Random, kind: str, given: dict[str, Any] | None = None) -> str:
    """A text of `kind`: its values are drawn in the order of the file, then its template."""
    table = _DATA[kind]
    values = dict(given or {})
    for names, source in table.get("values", {}).items():
        if isinstance(source, list):
            values[names] = rng.randint(*source)
        elif " " in names:
            drawn = rng.sample(_DATA[source], len(names.split()))
            values.update(zip(names.split(), drawn, strict=True))
        else:
            values[names] = rng.choice(_DATA[source])
    forms, weights = table["forms"], table.get("weights")
    form = rng.choices(forms, weights)[0] if weights else rng.choice(forms)
    return _TEMPLATES.from_string(form).render(values)


def _passage(rng: random.Random, kind: str, texts: Sequence[str]) -> dict[str, Any]:
    """One to four of the target's answers, cut at a word, and a question about them."""
    characters = rng.randint(400 if kind == "summary" else 500, 2200)
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(texts).split()) for _ in range(rng.randint(1, 4)))
    passage = passage[:characters].rsplit(" ", 1)[0]
    if kind == "summary":
        return {"passage": passage}
    # Ask about words of the passage, so that the answer can be found in it.
    words = [word.strip('.,:;()"') for word in passage.split()]
    at = rng.randrange(max(1, len(words) - 4))
    phrase = " ".join(words[at : at + rng.randint(2, 4)])
    question = _TEMPLATES.from_string(rng.choice(_DATA[kind]["questions"])).render(phrase=phrase)
    return {"passage": passage, "question": question}
