"""What was measured of a pair on one machine: what a later start need not measure again."""

from __future__ import annotations

from dataclasses import dataclass, field

GUARD_TIMES, LEAST_GUARD, MOST_GUARD = 16, 1e-3, 0.02

MERGED_TOKENS = 64
"""Tokens that a shared forward holds at most: as far as rounding is measured."""

Properties = tuple[tuple[str, str], ...]
"""Names and values of OpenVINO plugin properties."""


@dataclass(frozen=True, slots=True)
class Invariance:
    """Measured with `threads` threads: forwards of 2 to `tokens` tokens give bitwise equal logits
    (0: none do, or fast numerics), one of a single token differs by at most `one_token`; with
    `merging`, requests that share a forward get the bits that each gets alone."""

    tokens: int
    one_token: float
    threads: int
    merging: bool = False

    @property
    def guard(self) -> float | None:
        """The margin, in logits, above which the choice of a one-token forward is safe; None where
        none is needed, or where forwards would be repeated all the time."""
        guard = max(GUARD_TIMES * self.one_token, LEAST_GUARD)
        return guard if self.tokens and self.one_token and guard <= MOST_GUARD else None

    @property
    def least_tokens(self) -> int:
        """What forwards are padded to so that all round alike."""
        return 2 if self.tokens and self.one_token else 1

    @property
    def merged_tokens(self) -> int:
        """The most tokens that requests may run together; 0: each by itself."""
        return min(self.tokens or MERGED_TOKENS, MERGED_TOKENS) if self.merging else 0

    def __str__(self) -> str:
        found = f"on {self.threads} threads " if self.threads else ""
        if not self.tokens:
            return found + "logits depend on how many tokens run together"
        sizes = f"{self.least_tokens} to {self.tokens}"
        found += f"forwards of {sizes} tokens give bitwise equal logits"
        if self.one_token:
            how = "near ties are run again" if self.guard else "which is padded to two"
            found += f"; one token by itself differs by up to {self.one_token:.1g}: {how}"
        if self.merging:
            return f"{found}; requests that share a forward get the same bits"
        return f"{found}; requests do not share forwards, which would change their bits"


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """A target model in one setting of numerics, seconds of its forwards by their number of tokens,
    and the date (ISO 8601) when they were measured."""

    properties: Properties
    invariance: Invariance
    costs: dict[int, float]
    measured: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """Of a pair: its target model by numerics ("exact", "fast"), the seconds of a draft step (0:
    not measured), and by source of draft tokens the (accepted, seen) of each band of confidence and
    of all together."""

    targets: dict[str, TargetProfile] = field(default_factory=dict)
    draft_step: float = 0.0
    acceptance: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
