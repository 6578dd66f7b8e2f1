"""Models on torch devices: whether the device is there, whether a checkpoint may run its own code.

Imports torch only where such a device is named.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from pathlib import Path

from specdemo.engine.checkpoint import TORCH, Checkpoint
from specdemo.errors import BadInput, MissingPackage
from specdemo.models import ir

KINDS = ("cpu", "cuda", "xpu", "mps", "hpu")
TRUST = "SPECDEMO_TRUST_REMOTE_CODE"
"""The environment variable that lets checkpoints run code of their own. It is the operator's: no
request, link or page setting can set it."""

_INSTALL = "run `pip install --retries 1 -r requirements-torch.txt`"
_INSTALL_GAUDI = "install Intel's Gaudi software, then `pip install optimum-habana`"


def on_torch(device: str) -> bool:
    return device.startswith(TORCH)


def require_device(name: str, option: str) -> None:
    """Raise unless torch has the device `name`: BadInput, naming the `option`, or MissingPackage
    with what to install."""
    kind, _, number = name.removeprefix(TORCH).partition(":")
    if kind not in KINDS or (number and not number.isdecimal()):
        known = ", ".join(TORCH + one for one in KINDS)
        raise BadInput(f"{option} {name!r} is not a torch device; choose one of {known}.")
    needed = dict.fromkeys(("torch", "transformers", "accelerate"), _INSTALL)
    if kind == "hpu":
        needed["habana_frameworks"] = _INSTALL_GAUDI
    for package, install in needed.items():
        if not _installed(package):
            raise MissingPackage(f"{option} {name} needs {package}, not installed here; {install}.")
    if kind == "hpu":  # makes torch.hpu
        importlib.import_module("habana_frameworks.torch")
    import torch

    devices = getattr(torch, kind, None)
    if kind != "cpu" and (devices is None or int(number or 0) >= devices.device_count()):
        raise BadInput(f"{option} {name}: torch {torch.__version__} finds no such device here.")


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def untested(device: str) -> str:
    """What to say at the start of a device that this program was never run on; else ""."""
    if not on_torch(device) or device.startswith(f"{TORCH}cpu"):
        return ""
    return f"{device} is untested: what is exact there is measured now; please report how it went"


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or in a GGUF file. Raises BadInput if only code of its own runs
    it and TRUST is not set."""
    trusted = os.environ.get(TRUST, "").strip().lower() in ("1", "true", "yes")
    config = ir.read_json(path / "config.json")
    if config.get("auto_map") and not trusted:
        from transformers import CONFIG_MAPPING

        if config.get("model_type") not in CONFIG_MAPPING:
            raise BadInput(
                f"{path.name} runs only with Python code of its own; read it, then allow it with "
                f"{TRUST}=1, or choose a model that transformers knows."
            )
    return Checkpoint(path, trusted)
