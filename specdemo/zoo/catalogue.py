"""The pairs as they stand on this machine: which fit its memory and which are already here."""

from __future__ import annotations

from dataclasses import dataclass

from specdemo.zoo import embedded, machine
from specdemo.zoo.pairs import PAIRS, Pair


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
    return embedded.is_ready()


def _draft(pair: Pair) -> str | None:
    if pair.embedded and not embedded.has_draft():
        return None
    return pair.draft.name if pair.draft else None
