"""The pairs as they stand on this machine: which fit its memory and which are already here."""

from __future__ import annotations

from dataclasses import dataclass

from specdemo.models import embedded, hub, machine, models
from specdemo.models.pairs import BY_SIZE, EMBEDDED, PAIRS, Pair, find_pair


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A pair, the name of the draft it would use here (None: prompt lookup), and how it stands."""

    pair: Pair
    draft: str | None
    fits: bool
    ready: bool


def survey() -> list[Surveyed]:
    """All pairs. Looks at this machine and its disk, never at the network."""
    memory = machine.memory_bytes()
    return [
        Surveyed(pair, draft=_draft(pair), fits=pair.memory_bytes <= memory, ready=is_ready(pair)) for pair in PAIRS
    ]


def is_ready(pair: Pair) -> bool:
    """Whether everything `pair` needs is on this disk."""
    if pair.embedded:
        return embedded.is_ready()
    return models.is_ready([source for source in (pair.target, pair.draft) if source])


@dataclass(frozen=True, slots=True)
class Choice:
    """The pair that is used when none was asked for, and why, in one sentence for the user."""

    pair: Pair
    why: str


def default_pair() -> Choice:
    """The largest Dolly pair that fits this machine, of those that are here if any is, else if the Hub answers; else
    the embedded pair.

    Never raises. Asks the network, for two seconds at most, only if no fitting Dolly pair is here.
    """
    memory = machine.memory_bytes()
    fitting = [pair for pair in map(find_pair, BY_SIZE) if pair.memory_bytes <= memory]
    if not fitting:
        return Choice(EMBEDDED, f"{EMBEDDED.name}: no Dolly pair fits the {memory / 1e9:.0f} GB of this machine.")
    for pair in fitting:
        if is_ready(pair):
            more = f"; {fitting[0].name} would fit too" if pair is not fitting[0] else ""
            return Choice(
                pair, f"{pair.name}: the largest Dolly pair that is here already and fits this machine{more}."
            )
    if hub.answers():
        return Choice(fitting[0], f"{fitting[0].name}: the largest Dolly pair that fits this machine.")
    return Choice(EMBEDDED, f"{EMBEDDED.name}: the Hub cannot be reached and no Dolly pair is here.")


def _draft(pair: Pair) -> str | None:
    if pair.embedded and not embedded.has_draft():
        return None
    return pair.draft.name if pair.draft else None
