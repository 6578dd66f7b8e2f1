"""The settings of a training run, which are the options of `train-draft`."""

from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, FilePath
from pydantic.dataclasses import dataclass

from specdemo.options import CONFIG, Line, Whole, option
from specdemo.pairs.registry import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class TrainSettings:
    """Settings of a training run; those with help are options of the command."""

    target: Line = option(
        MISSING,
        "the model to draft for: a pair's name, or a model as `run` takes it",
        metavar="PAIR_OR_MODEL",
    )
    out: Path = option(
        MISSING,
        "the folder to make; repeat the command to continue an interrupted run",
        metavar="DIR",
    )
    weight_format: WeightFormat = option(
        "auto", "precision that a target is converted to, as `run` takes it"
    )
    tokens: Annotated[Whole, Field(ge=1000)] = option(
        400_000, "answer tokens of text that the target writes"
    )
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = option(
        None,
        "how long to train, beside the writing and reading of text",
        metavar="M",
        unset="by --passes",
    )
    passes: Annotated[float, Field(gt=0, le=1000)] = option(3.0, "how often the text is read")
    device: Literal["cpu", "cuda"] = option("cpu", "where to train")
    text: FilePath | None = option(
        None,
        "conversations to learn from, and instructions for the target to answer (JSONL: u, a)",
        metavar="FILE",
    )
    start: FilePath | None = option(
        None,
        "a head to start from, of the same target or of earlier weights of it",
        metavar="HEAD.npz",
    )
    answer_tokens: int = 160  # of the longest answer
    chains: int = 2560  # of a training step
    width: int = 768  # of a head's state
    checkpoint_seconds: float = 200.0
