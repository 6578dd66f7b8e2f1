"""Imports Gradio in about half the usual time, so that the page is up quickly. Changes nothing in what is imported.

On import, Gradio rewrites an editor stub (`.pyi`) for each of its own components, which parses every source file
twice, and the garbage collector walks the many thousand objects that an import only ever adds to.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from types import ModuleType


def import_gradio() -> ModuleType:
    """The `gradio` module, with telemetry off and no stub files written on the way."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    # Statistics that nobody reads, made anew after every request from the last 10,000 of them.
    os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if "gradio" in sys.modules:
        return sys.modules["gradio"]
    getfile, collecting = inspect.getfile, gc.isenabled()

    def without_stubs(subject):
        # gradio.component_meta skips the stub of a class whose source file it cannot name.
        if isinstance(subject, type) and subject.__module__.startswith("gradio."):
            raise OSError("no stub wanted")
        return getfile(subject)

    inspect.getfile = without_stubs
    gc.disable()
    try:
        import gradio
    finally:
        inspect.getfile = getfile
        if collecting:
            gc.enable()
    gc.freeze()
    return gradio
