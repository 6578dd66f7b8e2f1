"""The files of models: checkpoints, which run on torch devices, or IR. Imports neither library."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .faults import ModelError

TORCH = "torch:"  # prefix of the names of devices that run in torch, not in OpenVINO


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that transformers loads, or a GGUF file."""

    path: Path
    remote_code: bool = False  # code in it may run


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The models of an engine: IR, or checkpoints on torch devices."""

    target: Path | Checkpoint
    draft: Path | Checkpoint | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"  # its precision
    template_prefix: tuple[int, ...] = ()  # with which most prompts begin
    draft_context: int = 0  # tokens that the draft model reads at most; 0: any number
    draft_token_ids: np.ndarray | None = field(default=None, compare=False)
    """The only tokens that the draft model proposes, int64 [V], ascending; None: all."""

    head: Path | None = None  # IR of a draft head, in place of the draft model
    head_layers: tuple[int, ...] = ()  # of an IR target, whose inputs an EAGLE-3 head reads
    translation: Callable[[], Any] | None = None  # a request's, of another vocabulary


def weights_size(source: Path | Checkpoint) -> int:
    """Bytes of the weights of an IR file or a checkpoint. Raises ModelError."""
    path = source.path if isinstance(source, Checkpoint) else source.with_suffix(".bin")
    files = path.glob("*") if path.is_dir() else [path]
    suffixes = (".safetensors", ".bin", ".gguf")
    try:
        return sum(file.stat().st_size for file in files if file.suffix in suffixes)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read; fetch or export it again.") from error
