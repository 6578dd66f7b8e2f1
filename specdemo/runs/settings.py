"""The settings of a request, defined once for page, API, command line, links and saved runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput
from specdemo.options import CONFIG, Real, Whole, option

MAX_NEW_TOKENS = 32_768
MAX_BIASES = 300
MAX_ANSWERS = 32  # of a request
MAX_LOGPROBS = 20  # likeliest tokens that a request may ask for
Drafter = Literal["auto", "model", "lookup", "none"]
Coupling = Literal["shared", "maximal"]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]


def _texts(value: object) -> object:
    """One text stands for a tuple of it. A list comes from JSON."""
    value = [value] if isinstance(value, str) else value
    return tuple(value) if isinstance(value, list) else value


def _biases(value: object) -> object:
    """Pairs of a token id and a bias, from these, from a mapping, or from texts ID:BIAS."""
    listed: Any = value.split(",") if isinstance(value, str) else value
    try:
        pairs = listed.items() if isinstance(listed, Mapping) else listed
        split = (pair.split(":") if isinstance(pair, str) else pair for pair in pairs)
        biases = {int(token): bias for token, bias in split}
    except (TypeError, ValueError, OverflowError):
        raise ValueError("it must map token ids to numbers") from None
    if len(biases) > MAX_BIASES:
        raise ValueError(f"it may name {MAX_BIASES} tokens at most")
    return tuple(biases.items())


def _seed(value: object) -> object:
    """A negative seed of 64 bits, which OpenAI's API has too, as another one."""
    negative = type(value) is int and -(2**63) <= value < 0
    return value % 2**63 if negative else value  # type: ignore[operator]


Temperature = Annotated[Real, Field(ge=0, le=5)]
Probability = Annotated[Real, Field(ge=0, le=1)]
TopK = Annotated[Whole, Field(ge=0, le=1_000_000)]
Penalty = Annotated[Real, Field(ge=-2, le=2)]
Factor = Annotated[Real, Field(ge=0.01, le=2)]
Seed = Annotated[Whole, Field(ge=0, le=2**63 - 1), BeforeValidator(_seed)]
Biases = Annotated[
    tuple[tuple[Annotated[Whole, Field(ge=0)], Annotated[Real, Field(ge=-100, le=100)]], ...],
    BeforeValidator(_biases),
]
StopTexts = Annotated[
    tuple[StopString, ...],
    Field(max_length=16, fail_fast=True),
    BeforeValidator(_texts, json_schema_input_type=str | list[StopString]),
]


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
    drafter: Drafter = option(
        "auto", "what proposes draft tokens: the draft model, n-gram lookup, or the fastest"
    )
    temperature: Temperature = option(0.0, "0 takes the likeliest token; above, tokens are sampled")
    top_p: Probability = option(
        1.0, "sample among the likeliest tokens that hold this probability; 0 for the likeliest one"
    )
    top_k: TopK = option(0, "sample from the k likeliest tokens; 0 for all")
    min_p: Probability = option(
        0.0, "sample among tokens with at least this share of the likeliest one's probability"
    )
    seed: Seed = option(0, "seed of the sampling")
    presence_penalty: Penalty = option(0.0, "lowers the logits of tokens that the answer has")
    frequency_penalty: Penalty = option(
        0.0, "lowers the logits of tokens as often as the answer has them"
    )
    repetition_penalty: Factor = option(
        1.0, "divides the logits of tokens that prompt or answer have; 1 for none"
    )
    logit_bias: Biases = option(
        (), "adds BIAS to the logit of a token id; may be repeated", metavar="ID:BIAS"
    )
    ignore_eos: bool = option(
        False,
        "go on after a token that ends the answer; not where it follows a schema or calls tools",
    )
    stop: StopTexts = option(
        (), "text that ends the answer and is no part of it; may be repeated", metavar="TEXT"
    )
    numerics: Literal["exact", "fast"] = option(
        "exact", "exact: the tokens of autoregressive decoding; fast: the plugin's own defaults"
    )
    coupling: Coupling = option(
        "shared",
        "acceptance rule when sampling: shared noise (same seed, same answer as autoregressive "
        "decoding), or the classic rule min(1, q/p), which accepts a little more often",
    )
    json_schema: str = option(
        "", "a JSON Schema that the answer must follow", metavar="FILE", file="yes"
    )

    def later(self, number: int) -> Self:
        """With the seed that is `number` after this one; the first follows the last."""
        return replace(self, seed=(self.seed + number) % 2**63)


def require_exact(settings: Settings, param: str = "numerics") -> None:
    """Raises BadInput for fast numerics: compiling for them delays all requests."""
    if settings.numerics == "fast":
        raise BadInput("This shared server offers exact numerics only.", param)
