"""What was measured of pairs on this machine: races of drafts, rehearsed costs, agreement.

One small JSON file; a broken one, or that of another machine, counts as none.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter

from specdemo.models import machine


@dataclass(frozen=True, slots=True)
class Raced:
    """A pair with one draft ("none": n-grams only). `target_seconds` of a token of autoregressive
    decoding, `draft_seconds` of a step of the draft model."""

    draft: str
    speedup: float
    tokens_per_second: float
    acceptance_rate: float | None
    target_seconds: float
    draft_seconds: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """Which draft of a pair was the fastest, and when that was measured (ISO 8601)."""

    date: str
    rows: tuple[Raced, ...]

    @property
    def winner(self) -> str:
        return max(self.rows, key=lambda row: row.speedup).draft


@dataclass(frozen=True, slots=True)
class Figures:
    """`tuned` by pair; `steps` by model, the seconds of forwards of 1, 2, ... tokens; `agreement`
    by the names of two pairs, the share of tokens that both targets choose."""

    tuned: dict[str, Tuned] = field(default_factory=dict)
    steps: dict[str, tuple[float, ...]] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)

    def token_seconds(self, pair: str, target: str) -> float | None:
        """Of autoregressive decoding, as `tune` measured it, else as it was rehearsed."""
        if pair in self.tuned:
            return self.tuned[pair].rows[0].target_seconds
        return self.steps[target][0] if target in self.steps else None


_FIGURES = TypeAdapter(Figures)


def _path() -> Path:
    about = hashlib.sha256(f"{machine.describe()} {version('openvino')}".encode()).hexdigest()
    return machine.measured_folder() / f"pairs-{about[:16]}.json"


def read() -> Figures:
    try:
        return _FIGURES.validate_json(_path().read_bytes())
    except (OSError, ValueError):
        return Figures()


def remember(kind: str, key: str, value: object) -> None:
    """Keep `value` under `key` of the figures of this `kind`, in place of an older one."""
    figures = read()
    changed = dataclasses.replace(figures, **{kind: getattr(figures, kind) | {key: value}})
    machine.replace_file(_path(), _FIGURES.dump_json(changed, indent=1))
