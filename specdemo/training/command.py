"""`specdemo train-draft`: the settings of a training run, and the command that starts one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from specdemo.cli import FiniteRange


def _option(metavar: str | None, help: str, default: Any = MISSING, type: Any = None) -> Any:
    """A setting that is an option of the command."""
    return field(default=default, metadata={"metavar": metavar, "help": help, "type": type})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What a training run does; the command offers the settings that have help.

    Of the others, `answer_tokens` is the longest answer written, and `batch_tokens` the size of a
    step with its padding, in `parts` equal parts.
    """

    target: str = _option(
        "DIR_OR_REPO",
        "The model to draft for: a folder with a PyTorch checkpoint or one GGUF file, a Hub "
        "repository, or embedded.",
    )
    out: Path = _option(
        "DIR",
        "The folder to make; repeat the command to continue an interrupted run.",
        type=click.Path(path_type=Path),
    )
    tokens: int = _option(
        "N", "Answer tokens of text that the target writes.", 400_000, click.IntRange(1000)
    )
    minutes: float | None = _option(
        "M",
        "How long to train, beside the writing of text (default: by --passes).",
        None,
        FiniteRange(0, 100_000, min_open=True),
    )
    passes: float = _option(
        "P", "How often the text is read.", 3.0, FiniteRange(0, 1000, min_open=True)
    )
    device: str = _option(None, "Where to train.", "auto", click.Choice(("auto", "cpu", "cuda")))
    layers: int = _option("N", "Decoder layers of the draft.", 2, click.IntRange(1))
    labels: str = _option(
        None,
        "Learn the text's tokens (hard) or the target's probabilities (soft); auto: soft on a GPU, "
        "but for a GGUF target.",
        "auto",
        click.Choice(("auto", "hard", "soft")),
    )
    head_tokens: int = _option(
        "N", "Frequent tokens that the draft chooses from.", 16_384, click.IntRange(1)
    )
    prompt_tokens: int | None = _option(
        "N",
        "Train with the last N tokens of a prompt only; 64 are enough for two layers "
        "(default: all).",
        None,
        click.IntRange(1),
    )
    text: Path | None = _option(
        "FILE",
        "Conversations to learn from (JSONL: kind, greedy, prompt, answer) instead of new ones.",
        None,
        click.Path(path_type=Path, exists=True, dir_okay=False),
    )
    seed: int = _option("S", "Seed of text and training.", 0, click.IntRange(0, 2**31))
    answer_tokens: int = 160
    batch_tokens: int = 2560
    parts: int = 4
    checkpoint_seconds: float = 200.0


def _options(command: Callable) -> Callable:
    """The options of TrainSettings; those without a default are required."""
    for entry in reversed(fields(TrainSettings)):
        if entry.metadata:
            required = entry.default is MISSING
            given = {"required": True} if required else {"default": entry.default}
            name = "--" + entry.name.replace("_", "-")
            command = click.option(name, **entry.metadata, **given)(command)
    return command


@click.command()
@_options
def train_draft(**options: Any) -> None:
    from specdemo.training import run

    settings = TrainSettings(**options)
    result = run.train_draft(settings)
    click.echo(
        f"{settings.out} holds the draft: agreement with the target on {result.after.tokens:,} "
        f"held-back tokens {result.after.agreement:.3f} (untrained {result.before.agreement:.3f}); "
        f"its card is {settings.out / 'README.md'}"
    )
