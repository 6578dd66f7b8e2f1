"""`specdemo train-draft`: the settings of a training run, and the command that starts one."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Literal

import click
from pydantic import Field, FilePath
from pydantic.dataclasses import dataclass

from specdemo.cli import options_of
from specdemo.settings import CONFIG, Line, option, whole


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class TrainSettings:
    """What a training run does; the command offers the settings that have help.

    Of the others, `answer_tokens` is the longest answer written, `batch_tokens` the size of a step
    with its padding, for a head its chains, in `parts` equal parts, and `width` the size of a
    head.
    """

    target: Line = option(
        MISSING,
        "the model to draft for: a folder with a PyTorch checkpoint or one GGUF file, a Hub "
        "repository, or embedded",
        metavar="DIR_OR_REPO",
    )
    out: Path = option(
        MISSING,
        "the folder to make; repeat the command to continue an interrupted run",
        metavar="DIR",
    )
    only: Literal["ngrams"] | None = option(
        None,
        "make no draft model, only an n-gram table of what the target (of a pair, too) answers",
        unset="both",
    )
    kind: Literal["model", "head"] = option(
        "model",
        "a draft model of the target's first layers, or a draft head, which reads the target's "
        "hidden states",
    )
    tokens: whole(1000) = option(400_000, "answer tokens of text that the target writes")
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = option(
        None,
        "how long to train, beside the writing of text",
        metavar="M",
        unset="by --passes",
    )
    passes: Annotated[float, Field(gt=0, le=1000)] = option(3.0, "how often the text is read")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where to train")
    layers: whole(1) = option(2, "decoder layers of a draft model")
    labels: Literal["auto", "hard", "soft"] = option(
        "auto",
        "learn the text's tokens (hard) or the target's probabilities (soft); auto: soft on a GPU, "
        "but for a GGUF target; a head always learns probabilities",
    )
    head_tokens: whole(1) | None = option(
        None,
        "frequent tokens that the draft chooses from",
        unset="16,384; 4,096 for a head",
    )
    prompt_tokens: whole(1) | None = option(
        None,
        "train with the last N tokens of a prompt only; 64 are enough for two layers",
        metavar="N",
        unset="all",
    )
    text: FilePath | None = option(
        None,
        "conversations to learn from (JSONL: kind, greedy, prompt, answer) instead of new ones",
        metavar="FILE",
    )
    seed: whole(0, 2**31) = option(0, "seed of text and training")
    answer_tokens: int = 160
    batch_tokens: int = 2560
    parts: int = 4
    width: int = 768
    checkpoint_seconds: float = 200.0


@click.command()
@options_of(TrainSettings, "settings", variables=False)
def train_draft(settings: TrainSettings) -> None:
    if settings.only:
        from specdemo.training import ngrams

        counted = ngrams.count(settings)
        return click.echo(f"{settings.out} holds an n-gram table of {counted:,} tokens, in use now")
    from specdemo.training import run

    result = run.train_draft(settings)
    click.echo(
        f"{settings.out} holds the draft: agreement with the target on {result.after.tokens:,} "
        f"held-back tokens {result.after.agreement:.3f} (untrained {result.before.agreement:.3f}); "
        f"its card is {settings.out / 'README.md'}"
    )
