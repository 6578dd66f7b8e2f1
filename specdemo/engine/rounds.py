"""Rounds: what decoding yields, and the drafts that it verifies in them."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .sampling import Distribution

Kind = Literal["first", "correction", "bonus", "plain"]
Source = Literal["model", "head", "eagle3", "mtp", "lookup", "prediction", "grammar", "ngrams"]
"""What proposed a draft token; "ngrams" (a table) occurs in runs of earlier versions only."""


class Proposal(NamedTuple):
    """A token that a source proposes."""

    token: int
    source: Source
    confidence: float  # in [0, 1]
    acceptance: float = 0.0  # the chance that it is accepted if all tokens before it are
    probability: float | None = None  # the draft model's; None for n-grams
    distribution: Distribution | None = None  # it was drawn from this, if the coupling needs it
    candidates: tuple[tuple[int, float], ...] = ()
    """If the request wants them: the draft model's likeliest tokens and their probabilities."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft tokens to verify."""

    proposals: tuple[Proposal, ...] = ()
    seconds: float = 0.0  # that a draft model spent on them
    sought: bool = False  # it cost time: of a source, or of other requests that waited meanwhile

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.proposals]

    @property
    def chances(self) -> tuple[float, ...]:
        """The chances of its tokens, none if all must be verified: the maximal coupling is exact
        only if no draft token is dropped because of its value."""
        if any(proposal.distribution is not None for proposal in self.proposals):
            return ()
        return tuple(proposal.acceptance for proposal in self.proposals)

    def first(self, count: int) -> "Draft":
        return Draft(self.proposals[:count], self.seconds, self.sought)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities. They are the model's own: before penalties, biases, temperature,
    filters and masks."""

    token: float
    top: tuple[tuple[int, float], ...] = ()  # (id, log-probability), likeliest first


@dataclass(slots=True)
class DraftToken:
    """A draft token: accepted, rejected, or not reached."""

    id: int
    draft_probability: float | None
    target_probability: float | None  # None if not reached: the target saw another prefix
    accepted: bool
    source: Source = "model"
    text: str = ""

    @property
    def kind(self) -> Literal["accepted", "forced"]:
        """Kind of an accepted token: "forced" if a constraint allowed no other."""
        return "forced" if self.source == "grammar" else "accepted"


@dataclass(slots=True)
class EmittedToken:
    """The token that the target adds at the end of a round: the `first` after the prompt, a
    `correction` of a rejected draft token, a `bonus` after a fully accepted draft, or `plain` if
    nothing was drafted."""

    id: int
    kind: Kind
    target_probability: float | None = None
    text: str = ""
    margin: float | None = None  # its logit minus the next best; None if it was sampled


@dataclass(slots=True)
class Round:
    """One draft-and-verify step."""

    drafted: tuple[DraftToken, ...]
    emitted: EmittedToken | None  # None: the answer ended inside the accepted draft tokens
    draft_seconds: float
    verify_seconds: float
    shown_at: float  # seconds since the start of the run
    logprobs: tuple[Logprobs, ...] = ()  # of `tokens`, if the request asked for them
    candidates: tuple[DraftToken, ...] = ()
    """If the request asked for them: the likeliest tokens of a draft model with the target's
    vocabulary in the place of the rejected one, likeliest first."""

    text: str = field(default="", compare=False)  # certain: without what later tokens may change

    @property
    def accepted(self) -> int:
        return sum(token.accepted for token in self.drafted)

    @property
    def tokens(self) -> tuple[DraftToken | EmittedToken, ...]:
        """The tokens that this round added to the answer, in order."""
        accepted = tuple(token for token in self.drafted if token.accepted)
        return accepted if self.emitted is None else (*accepted, self.emitted)


@dataclass(slots=True)
class Timing:
    """The times of a request, in seconds; they change while it runs."""

    prefill: float = 0.0
    reused: int = 0  # tokens of the prompt that were in the prefix cache
    decoding: float = 0.0
    inference: float = 0.0  # of decoding, in forwards
    cpu: float = 0.0  # of decoding, of all threads
    waited: float = 0.0  # in which threads could run and had no processor
