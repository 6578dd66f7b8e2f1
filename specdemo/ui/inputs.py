"""The inputs of a run: their names on the page and in links, and how values become settings. What
is allowed is decided by `specdemo.settings`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput
from specdemo.settings import ModelChoice, Settings, parse

AUTO, OWN = "auto", "own"
"""Two choices of pair beside the names of pairs: the one that suits the machine, and the visitor's
own."""

DRAFT_LENGTHS = ["auto", *map(str, range(1, MAX_DRAFT + 1))]
DRAFTERS = ["auto", "model", "lookup"]
LONGEST_LINK_QUESTION = 2000

SETTINGS = tuple(field.name for field in fields(Settings))
MODELS = tuple(field.name for field in fields(ModelChoice))
NAMES = ("question", *SETTINGS, *MODELS)
"""The inputs of a run, in the order in which the page passes them; also the names in a link."""

HELP = {one.name: one.metadata["help"] for one in (*fields(Settings), *fields(ModelChoice))}
_KINDS = get_type_hints(Settings) | get_type_hints(ModelChoice)


def choices(name: str) -> list[str]:
    """The values that a setting can have."""
    return list(get_args(_KINDS[name]))


def settings_of(values: Mapping[str, Any]) -> Settings:
    """The settings among `values`. Raises BadInput."""
    return parse(Settings, {name: values[name] for name in SETTINGS if name in values})


def models_of(values: Mapping[str, Any]) -> ModelChoice:
    """The models among `values`; the visitor's own have no pair name. Raises BadInput. Whether they
    exist is found when they are opened."""
    chosen = parse(ModelChoice, {name: values[name] for name in MODELS if name in values})
    if chosen.pair != OWN:
        return replace(chosen, target="", draft="", weight_format="int8")
    if not chosen.target:
        raise BadInput(
            "Your own pair needs a target: a folder here or a Hub repository (owner/name).",
            "target",
        )
    return replace(chosen, pair="")


def from_link(
    query: Mapping[str, str], pairs: list[str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that a link asks for; whatever is missing or impossible stays at its default.

    Devices and a pair of one's own are not taken from a link: a click must not fetch or run what a
    stranger named.
    """
    values = dict(defaults)
    if "question" in query:
        values["question"] = query["question"][:LONGEST_LINK_QUESTION]
    if query.get("pair") in pairs and query["pair"] != OWN:
        values["pair"] = query["pair"]
    for name in {*SETTINGS, "kv_cache"} & set(query):
        kind = Settings if name in SETTINGS else ModelChoice
        with suppress(BadInput):
            values[name] = getattr(parse(kind, {name: query[name]}), name)
    values["draft_tokens"] = str(values["draft_tokens"] or AUTO)
    return values
