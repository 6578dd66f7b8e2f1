"""The rounds that decoding yields. `Request` sets `shown_at`, and the session the texts."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["first", "correction", "bonus", "plain"]
Source = Literal["model", "head", "eagle3", "lookup", "prediction", "grammar", "ngrams"]
"""What proposed a draft token; "ngrams" (a table) occurs in runs of earlier versions only."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities of a token and of the `top` tokens (id, log-probability), likeliest
    first. They are the model's own: before penalties, biases, temperature, filters and masks."""

    token: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class DraftToken:
    """A draft token: `accepted`, rejected, or not reached. In the last case `target_probability` is
    None, because the target saw another prefix."""

    id: int
    draft_probability: float | None
    target_probability: float | None
    accepted: bool
    source: Source = "model"
    text: str = ""

    @property
    def kind(self) -> Literal["accepted", "forced"]:
        """What an accepted one is: "forced" if a constraint allowed no other token."""
        return "forced" if self.source == "grammar" else "accepted"


@dataclass(slots=True)
class EmittedToken:
    """The token that the target adds at the end of a round: the `first` after the prompt, a
    `correction` of a rejected draft token, a `bonus` after a fully accepted draft, or `plain` if
    nothing was drafted. `margin`: its logit minus the next best, None if it was sampled."""

    id: int
    kind: Kind
    target_probability: float | None = None
    text: str = ""
    margin: float | None = None


@dataclass(slots=True)
class Round:
    """One draft-and-verify step. Times are seconds; `shown_at` counts from the start of the run.
    `emitted` is None when the answer ended inside the accepted draft tokens. `logprobs` are those
    of `tokens`, if the request asked for them. `text` is what it adds to the answer's text: without
    a last incomplete character, and without what may become a stop string."""

    drafted: tuple[DraftToken, ...]
    emitted: EmittedToken | None
    draft_seconds: float
    verify_seconds: float
    shown_at: float
    logprobs: tuple[Logprobs, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def accepted(self) -> int:
        return sum(token.accepted for token in self.drafted)

    @property
    def tokens(self) -> tuple[DraftToken | EmittedToken, ...]:
        """The tokens that this round added to the answer, in order."""
        accepted = tuple(token for token in self.drafted if token.accepted)
        return accepted if self.emitted is None else (*accepted, self.emitted)
