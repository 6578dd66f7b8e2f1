"""What a training run is asked to do, what it says while it runs, and what it leaves. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specdemo.models.errors import BadChoice

DEVICES = ("auto", "cpu", "cuda")
LABELS = ("auto", "hard", "soft")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """A training run.

    Attributes:
        target: a folder with a PyTorch checkpoint or one GGUF file, a Hub repository, or "embedded".
        out: the folder to make; an interrupted run is continued there.
        tokens: answer tokens of text that the target writes.
        passes: how often training reads that text, unless `minutes` says otherwise.
        minutes: how long the distillation itself may take, None to go by `passes`. Time in which the process was
            stopped does not count.
        device: where torch computes.
        layers: decoder layers of the draft.
        labels: "hard" learns the text's next token, "soft" the target's probabilities; "auto" is soft on a GPU, but for
            a GGUF target, which is asked on the CPU.
        head_tokens: how many frequent tokens the draft competes over.
        prompt_tokens: of a prompt, only so many last tokens are trained with, None for all. A draft of two layers gains
            nothing from more than 64 and reads no more afterwards.
        text: a JSONL file of conversations (see corpus.Conversation) to use in place of writing some.
        answer_tokens: longest answer written.
        batch_tokens: tokens in one step, padding included, in `parts` equal parts.
        learning_rate: the highest; it rises over `warmup_steps` and falls to zero over the last `decay` of the run.
    """

    target: str
    out: Path
    tokens: int = 400_000
    passes: float = 3.0
    minutes: float | None = None
    device: str = "auto"
    layers: int = 2
    labels: str = "auto"
    head_tokens: int = 16_384
    prompt_tokens: int | None = None
    text: Path | None = None
    seed: int = 0
    answer_tokens: int = 160
    batch_tokens: int = 2560
    parts: int = 4
    learning_rate: float = 2e-3
    warmup_steps: int = 20
    decay: float = 0.35
    average: float = 0.98
    checkpoint_seconds: float = 200.0

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise BadChoice(f"--device {self.device!r} is not one of {', '.join(DEVICES)}.")
        if self.labels not in LABELS:
            raise BadChoice(f"--labels {self.labels!r} is not one of {', '.join(LABELS)}.")
        if self.text and not self.text.is_file():
            raise BadChoice(f"--text {self.text} is not a file.")


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """One report: `done` of `total` in the stage's own unit, and the seconds that are left (None: unknown).

    `agreement` is the share of answer tokens, lately, that the draft got right with the target's text before it.
    """

    stage: str
    done: float
    total: float
    agreement: float | None = None
    seconds_left: float | None = None

    @property
    def line(self) -> str:
        from specdemo.models.progress import duration

        parts = [f"{self.stage}: {100 * self.done / self.total:.0f}%" if self.total else self.stage]
        if self.agreement is not None:
            parts.append(f"agreement {self.agreement:.3f}")
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return ", ".join(parts)


Report = Callable[[TrainProgress], None]


def silent(progress: TrainProgress) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a draft is right on answers that the target wrote greedily, each token with the true text before it.

    `by_position[k]` is the share of drafted tokens accepted k + 1 tokens into a round, among those reached;
    `tokens_per_round[K]` what a round emits that drafts K. `tv_acceptance` is one minus total variation, the acceptance
    under sampling; None where the target's probabilities are not at hand.
    """

    tokens: int
    agreement: float
    by_kind: dict[str, float] = field(default_factory=dict)
    by_position: tuple[float, ...] = ()
    tokens_per_round: dict[int, float] = field(default_factory=dict)
    tv_acceptance: float | None = None


@dataclass(frozen=True, slots=True)
class TrainResult:
    """`folder` holds the IR with its card; `before` and `after` are measured on held-back text."""

    folder: Path
    before: Agreement
    after: Agreement
    steps: int
    tokens: int
    seconds: float
    resumed: bool
