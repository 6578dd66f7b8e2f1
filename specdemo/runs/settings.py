"""The settings of a request, defined once for page, API, command line, links and saved runs."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput
from specdemo.options import CONFIG, Real, Whole, option

MAX_NEW_TOKENS = 4096


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


def require_exact(settings: Settings, param: str = "numerics") -> None:
    """Raises BadInput for fast numerics: compiling for them delays all requests."""
    if settings.numerics == "fast":
        message = (
            "Numerics fast are not loaded here: strangers share this server, which offers exact."
        )
        raise BadInput(message, param)
