"""Which way a decoder runs here: with paged attention where it can be had, else over the plugin's
own state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from .checkpoint import Checkpoint
from .errors import NoPagedAttention
from .model import ModelSettings, PagedModel
from .stateful import OneAtATimeModel, StatefulModel

Model = PagedModel | OneAtATimeModel


def open_model(
    xml: Path | str | Checkpoint,
    settings: ModelSettings,
    *,
    head_tokens: np.ndarray | None = None,
    vocabulary: int | None = None,
    core: ov.Core | None = None,
) -> Model:
    """Compile a decoder; arguments are those of `PagedModel`. The model's `note` says so where it
    runs statefully.

    Paged attention is given up where the model's graph or the device refuses it (`settings.paged`
    False stands for that), and where the device does not write to the cache that it is given. A
    Checkpoint runs in torch. Raises ModelError when the model does not run here.
    """
    options = {"head_tokens": head_tokens, "vocabulary": vocabulary, "core": core or ov.Core()}
    if isinstance(xml, Checkpoint):
        from .torch_model import TorchModel

        return TorchModel(xml, settings, **options)
    reason = "it was asked for"
    if settings.paged:
        try:
            model = PagedModel(xml, settings, **options)
            if settings.device == "CPU" or model.keeps_its_cache():
                return model
            reason = f"{settings.device} does not write to a paged cache in main memory"
        except NoPagedAttention as error:
            reason = str(error)
    return StatefulModel(xml, settings, **options, reason=reason)
