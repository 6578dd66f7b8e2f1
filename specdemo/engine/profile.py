"""Measurements of a pair on one machine, which a later start need not repeat."""

from dataclasses import dataclass, field

from .cost_model import LARGEST

MERGED_TOKENS = 64  # the most tokens in a shared forward: rounding is measured up to that size
Properties = tuple[tuple[str, str], ...]  # names and values of OpenVINO plugin properties


@dataclass(frozen=True, slots=True)
class Invariance:
    """What was measured about forwards. Until it is complete, more may be found."""

    tokens: int = 0  # forwards of 2 to so many give bitwise equal logits; 0: none do
    one_token: float = 0.0  # logits by which a forward of one token differs at most
    threads: int = 0  # of the measurement
    merging: bool = False  # a shared forward gives the same bits
    chunks: bool = False  # so do a prompt's chunks of any length
    decoded: bool = False  # also if parts of it were decoded
    complete: bool = True

    @property
    def min_tokens(self) -> int:
        """Shorter forwards are padded to as many tokens, so that all round alike."""
        return 2 if self.tokens and self.one_token else 1

    @property
    def merged_tokens(self) -> int:
        """The most tokens in a forward that requests share; 0: they do not share forwards."""
        return min(self.tokens or MERGED_TOKENS, MERGED_TOKENS) if self.merging else 0

    @property
    def draft_limit(self) -> int:
        """The longest draft, in tokens."""
        return min(self.tokens or LARGEST, LARGEST) - 1

    def __str__(self) -> str:
        text = f"on {self.threads} thread{'s' * (self.threads > 1)} " if self.threads else ""
        if not self.tokens:
            return text + "logits depend on how many tokens run together"
        sizes = f"{self.min_tokens} to {self.tokens}"
        text += f"forwards of {sizes} tokens give bitwise equal logits"
        if self.one_token:
            text += f"; one token, which differs by up to {self.one_token:.1g}, is padded to two"
        if not self.complete:
            return f"{text}; more is checked in a quiet moment"
        if self.merging:
            return f"{text}; requests that share a forward get the same bits"
        return f"{text}; requests do not share forwards, which would change their bits"


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Measurements of a model in one setting."""

    properties: Properties = ()
    invariance: Invariance = Invariance()
    costs: dict[int, float] = field(default_factory=dict)  # seconds by tokens, without context
    measured: str = ""  # their date (ISO 8601)
    attention: float = 0.0  # seconds that a token of its context adds to a row


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of a pair: target models by numerics ("exact", "fast"), the draft model or head,
    whose invariance is not measured, and for each source of draft tokens the (accepted, seen) of
    each band of confidence and of the total."""

    targets: dict[str, ModelProfile] = field(default_factory=dict)
    draft: ModelProfile = ModelProfile()
    acceptance: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
