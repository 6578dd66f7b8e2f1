"""The settings of a request, defined once for page, API, command line, links and saved runs."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput

Kind = TypeVar("Kind")
MAX_NEW_TOKENS = 4096

CONFIG = ConfigDict(allow_inf_nan=False, extra="forbid")


def _whole(value: object) -> object:
    """Turns 5.0 into 5: in JSON Schema both are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else _number(value)


def _number(value: object) -> object:
    """Refuses true and false, which pydantic takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("it must be a number")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, BeforeValidator(_number)]

SPLIT = BeforeValidator(lambda text: text.split(",") if isinstance(text, str) else text)
"""For a tuple: text is split at commas."""


def _line(value: object) -> str:
    if value is not None and not (isinstance(value, str) and value.strip().isprintable()):
        raise ValueError("it must be one line of printable text")
    return (value or "").strip()


Line = Annotated[str, Field(max_length=500), BeforeValidator(_line)]


def option(default: Any, help: str, **shown: str) -> Any:
    """A field with its default and the help that command line and page show. `shown` is for the
    command line: the option's `name`, its `metavar`, the text for its default (`unset`), the option
    that switches a flag `off`, and `file` where it names the file that holds the value."""
    return field(default=default, metadata={"help": help, **shown})


@dataclass(frozen=True, slots=True, config=CONFIG)
class Settings:
    """How to answer. `draft_tokens` None is an adaptive draft length, "auto" outside of Python."""

    max_new_tokens: Annotated[Whole, Field(ge=1, le=MAX_NEW_TOKENS)] = option(
        100, "longest answer, tokens"
    )
    draft_tokens: Annotated[
        Annotated[Whole, Field(ge=1, le=MAX_DRAFT)] | None,
        BeforeValidator(lambda value: None if value == "auto" else value),
    ] = option(
        None,
        "draft length, tokens a round: a number, or auto, which adapts to what it measures",
        metavar="auto|K",
        unset="auto",
    )
    drafter: Literal["auto", "model", "lookup", "none"] = option(
        "auto", "what proposes draft tokens: the draft model, n-gram lookup, or whichever pays"
    )
    temperature: Annotated[Real, Field(ge=0, le=5)] = option(
        0.0, "0 takes the likeliest token; above, tokens are sampled"
    )
    top_p: Annotated[Real, Field(gt=0, le=1)] = option(
        1.0, "sample among the likeliest tokens that hold this probability"
    )
    top_k: Annotated[Whole, Field(ge=0, le=1_000_000)] = option(
        0, "sample among so many likeliest tokens; 0 for all"
    )
    seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] = option(0, "seed of the sampling")
    numerics: Literal["exact", "fast"] = option(
        "exact", "exact: the tokens of autoregressive decoding; fast: the plugin's own defaults"
    )
    coupling: Literal["shared", "maximal"] = option(
        "shared",
        "acceptance rule when sampling: shared noise (same seed, same answer as autoregressive "
        "decoding), or the classic rule min(1, q/p), which accepts a little more often",
    )
    json_schema: str = option(
        "", "a JSON Schema that the answer must follow", metavar="FILE", file="yes"
    )


WeightFormat = Literal["auto", "int8", "int4", "fp16"]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ModelChoice:
    """Which models, and where they run. `target` and `draft` name the user's own pair (folders,
    GGUF files or Hub repositories); `weight_format` is for converting checkpoints and GGUF
    files."""

    pair: Line = option(
        "", "a pair that `pairs` lists; without one the largest Dolly pair that fits"
    )
    target: Line = option(
        "",
        "your own target model: a folder, a GGUF file or a Hub repository (for a GGUF file there "
        "OWNER/NAME:FILE.gguf or OWNER/NAME:Q4_K_M)",
        name="model",
        metavar="DIR_OR_REPO",
    )
    draft: Line = option(
        "",
        "the draft model that goes with it, or one of a pair's",
        name="assistant_model",
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


def parse(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A checked `kind` (Settings, ModelChoice) from text or numbers, with defaults. Raises BadInput
    that names the first invalid setting, its value and what would be accepted."""
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        name = str(place[0]) if place else None
        raise BadInput(sentence(error, name), param=name) from None


def require_exact(settings: Settings, param: str = "numerics") -> None:
    """Raises BadInput for fast numerics: compiling for them delays all requests."""
    if settings.numerics == "fast":
        message = (
            "Numerics fast are not loaded here: strangers share this server, which offers exact."
        )
        raise BadInput(message, param)


def sentence(error: ValidationError, place: str | None = None) -> str:
    """The first finding of a pydantic error as one sentence about `place`, else its own field."""
    first = error.errors()[0]
    place = place or " ".join(".".join(map(str, first["loc"])).split()) or "the request"
    if first["type"] == "missing":
        return f"{place} is missing."
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if place == "draft_tokens":
        reason += ", or auto"
    return f"{place} is {first['input']!r:.60}; {reason}."
