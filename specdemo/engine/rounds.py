"""What decoding yields: rounds. Texts are filled in where the tokenizer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A draft token. It was `accepted`, rejected, or never reached: then `target_probability` is
    None, the target saw another prefix."""

    id: int
    draft_probability: float | None
    target_probability: float | None
    accepted: bool
    source: str = "model"
    text: str = ""


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """The token that the target itself added to end a round: the `first` after the prompt, a
    `correction` of a rejected draft token, a `bonus` after a wholly accepted draft, or `plain`:
    nothing had been drafted. `margin` (logits) is by how much it exceeds the next best, None where
    it was sampled."""

    id: int
    kind: Literal["first", "correction", "bonus", "plain"]
    target_probability: float | None = None
    text: str = ""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-and-verify step. Times are seconds; `shown_at` counts from the start of the run.
    `emitted` is None when the answer ended inside the accepted draft tokens."""

    drafted: tuple[DraftToken, ...]
    emitted: EmittedToken | None
    draft_seconds: float
    verify_seconds: float
    shown_at: float

    @property
    def accepted(self) -> int:
        return sum(token.accepted for token in self.drafted)

    @property
    def tokens(self) -> tuple[DraftToken | EmittedToken, ...]:
        """The tokens that this round added to the answer, in order."""
        kept = tuple(token for token in self.drafted if token.accepted)
        return kept if self.emitted is None else (*kept, self.emitted)
