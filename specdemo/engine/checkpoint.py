"""What runs on a torch device, where others run IR. Imports neither torch nor OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import ModelError

TORCH = "torch:"
"""What the names of devices begin with that torch runs rather than OpenVINO."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`path` is a folder that transformers loads, or a GGUF file. `remote_code` lets Python code in
    the folder run."""

    path: Path
    remote_code: bool = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        files = self.path.glob("*") if self.path.is_dir() else [self.path]
        suffixes = (".safetensors", ".bin", ".gguf")
        return sum(file.stat().st_size for file in files if file.suffix in suffixes)


def weights_size(source: Path | Checkpoint) -> int:
    """Bytes of the weights of an IR file or a checkpoint. Raises ModelError."""
    try:
        if isinstance(source, Checkpoint):
            return source.size
        return source.with_suffix(".bin").stat().st_size
    except OSError as error:
        raise ModelError(f"{source.name} cannot be read; fetch or export it again.") from error
