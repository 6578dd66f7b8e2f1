"""Speculative decoding on OpenVINO: `specdemo.load` gives a `pipeline.Pipeline`, which answers.

This file imports nothing else before `load` is used, so `import specdemo` takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdemo.api import Answer, Pipeline, load

__all__ = ["Answer", "Pipeline", "load"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("specdemo.api"), name)
    raise AttributeError(f"module 'specdemo' has no attribute {name!r}")
