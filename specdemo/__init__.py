"""Speculative decoding on OpenVINO: `specdemo.load` gives an `api.Pipeline`, which answers.

This file imports nothing else before `load` is used, so `import specdemo` takes milliseconds.
"""

import os
import sys

TYPE_CHECKING = False  # a type checker takes it for true; importing typing would take longer
if TYPE_CHECKING:
    from specdemo.api import Answer, Message, Options, Pipeline, load
    from specdemo.errors import (
        BadInput,
        Busy,
        CacheFull,
        Closed,
        DamagedModel,
        FetchError,
        MissingPackage,
        ModelError,
        RequestFailed,
        SpecdemoError,
    )

__all__ = [
    "Answer",
    "BadInput",
    "Busy",
    "CacheFull",
    "Closed",
    "DamagedModel",
    "FetchError",
    "Message",
    "MissingPackage",
    "ModelError",
    "Options",
    "Pipeline",
    "RequestFailed",
    "SpecdemoError",
    "load",
]
__version__ = "0.2.0"

# Every module of the package is imported after this file, so here is the one place that keeps the
# libraries from sending statistics of their use. OpenVINO and NNCF have no setting for it, but
# take a stub of their own where this package cannot be imported.
if os.environ.get("SPECDEMO_TELEMETRY") != "1":
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# In a container a user may have neither HOME nor an entry in passwd: libraries would write to ./~.
if os.path.expanduser("~") == "~":
    folder = os.environ.get("SPECDEMO_HOME") or os.environ.get("HF_HOME")
    if folder:
        os.environ["HOME"] = os.path.abspath(folder)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'specdemo' has no attribute {name!r}")
    import importlib

    errors = importlib.import_module("specdemo.errors")
    return getattr(errors, name, None) or getattr(importlib.import_module("specdemo.api"), name)


def __dir__() -> list[str]:
    return __all__
