"""Which models a user chose, and which were loaded."""

import dataclasses
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.options import CONFIG, Line, option

Name = Annotated[str, Field(max_length=4096)]  # a model may be named by its folder
WeightFormat = Literal["auto", "int8", "int4", "fp16"]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ModelChoice:
    """Which models, and where they run. `model` and `assistant_model` name target and draft model
    (folders, GGUF files or Hub repositories); `weight_format` is for converting checkpoints and
    GGUF files."""

    pair: Line = option(
        "", "a pair that `pairs` lists; without one the largest Dolly pair that fits"
    )
    model: Line = option(
        "",
        "your own target model: a folder, a GGUF file or a Hub repository (for a GGUF file there "
        "OWNER/NAME:FILE.gguf or OWNER/NAME:Q4_K_M)",
        metavar="DIR_OR_REPO",
    )
    assistant_model: Line = option(
        "",
        "the draft model that goes with it, or one of a pair's",
        metavar="DIR_OR_REPO",
    )
    weight_format: WeightFormat = option(
        "auto",
        "precision that a PyTorch checkpoint or a GGUF file is converted to; auto: int8, or int4 "
        "if that takes more than half of the memory",
    )
    thinking: bool = option(False, "let a model that can (Qwen3) think before it answers")
    device: Line = option(
        "CPU",
        "device of the target model: CPU (OpenVINO), or one of PyTorch's (torch:cpu, torch:cuda, "
        "torch:xpu, torch:mps, torch:hpu)",
    )
    draft_device: Line = option("CPU", "device of the draft model, likewise")
    kv_cache: Literal["auto", "f32", "f16", "u8"] = option(
        "auto", "precision of the KV cache; what it does to exactness is measured and reported"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class PairInfo:
    """The models of a run: names, loaded revisions, and the numerics found on this machine."""

    name: Name
    target: Name
    draft: Name | None
    target_revision: Name = ""
    draft_revision: Name = ""
    numerics_found: Name = ""
