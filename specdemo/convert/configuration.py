"""The configuration in a model's files. Each value that is used has a type and a range; others are
not read."""

import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from specdemo.errors import BadInput, FetchError
from specdemo.machine.terminal import size
from specdemo.options import wrong_parameter

JSON_BYTES = 100_000_000
ADDED_TOKENS = 10_000  # found in a text first; the tokenizers library prepares n in n² time
TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]  # files write -1 for none


def without_null(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


class Configuration(BaseModel):
    """A part of a configuration. null counts as absent."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: Any) -> Any:
        return without_null(data) if isinstance(data, dict) else data

    @classmethod
    def of(cls, data: object, source: Path) -> Self:
        """The checked values of `data`, which was read from `source`. Raises BadInput."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"{first['msg'].removeprefix('Value error, ')}."
            if first["loc"]:
                reason = str(wrong_parameter(error.errors()))
            raise unusable(source, reason) from None


def unusable(source: Path, why: str) -> BadInput:
    return BadInput(f"{source} cannot be used: {why}")


def named(*names: str, default: Any = ..., **bounds: Any) -> Any:
    """A field that has one of these `names` in files."""
    return Field(default, validation_alias=AliasChoices(*names), **bounds)


_CONTEXT = "max_position_embeddings", "n_positions", "n_ctx", "seq_length", "context_length"
_ORIGINAL = "original_max_position_embeddings", "rope.scaling.original_context_length"
LONGROPE = "longrope", "su"
PHI3_ORIGINAL = 4096  # where the file does not say it, as in transformers
_TOKENS: dict[str, Any] = {"default": 0, "ge": 0, "lt": 1 << 31}


def full_attention(rope: Any) -> Any:
    """The rotary positions of the layers without a window, where types of layers have their own."""
    return rope.get("full_attention", rope) if isinstance(rope, dict) else rope


class RopeLimit(Configuration):
    """Up to how many tokens (0: not given) rotary positions of a `kind` were trained first."""

    kind: str = named("rope_type", "type", default="")
    original: int = named(*_ORIGINAL, **_TOKENS)


class GenerationLimits(Configuration):
    """Where answers end."""

    eos_token_id: Annotated[
        list[TokenId], BeforeValidator(lambda ids: ids if isinstance(ids, list) else [ids])
    ] = []
    context: int = named(*_CONTEXT, **_TOKENS)  # tokens; 0 if it is not given
    original: int = named(*_ORIGINAL, **_TOKENS)  # before the context was extended
    rope: Annotated[RopeLimit, BeforeValidator(full_attention)] = named(
        "rope_parameters", "rope_scaling", default=RopeLimit()
    )
    model_type: Any = None
    text_config: dict[str, Any] = {}

    @property
    def limit(self) -> int:
        """The context, up to the length from which on LongRoPE rotates all tokens by other factors,
        which would change what the cache holds."""
        original = self.original
        if self.rope.kind in LONGROPE and not original:
            original = PHI3_ORIGINAL if self.model_type == "phi3" else self.rope.original
        return min(filter(None, (self.context, original)), default=0)


class ShardIndex(Configuration):
    """model.safetensors.index.json: the file of each tensor."""

    weight_map: dict[str, str] = {}


def _templates_by_name(value: object) -> object:
    if not isinstance(value, list):
        return {"default": value}
    forms = (form for form in value if isinstance(form, dict))
    return {str(form.get("name")): form.get("template") for form in forms}


Token = Annotated[
    str, BeforeValidator(lambda value: value.get("content") if type(value) is dict else value)
]


class TokenizerConfig(Configuration):
    """tokenizer_config.json: the chat templates by name, and the tokens that they may name."""

    chat_template: Annotated[dict[str, str], BeforeValidator(_templates_by_name)] = {}
    bos_token: Token = ""
    eos_token: Token = ""
    unk_token: Token = ""
    pad_token: Token = ""


def is_eagle_head(config: dict[str, Any]) -> bool:
    """Whether this config.json is of a draft head of EAGLE, of whatever version, or of a model's
    own prediction layer."""
    names = f"{config.get('architectures')} {config.get('speculators_model_type')}".lower()
    return "eagle" in names or "mtp" in names


def read_config(folder: Path) -> tuple[frozenset[int], int]:
    """Stop ids and context limit (tokens, 0: not given) of a model. Raises FetchError, BadInput."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    if not path.is_file():
        raise FetchError(f"There is no config.json in {folder}.")
    config = GenerationLimits.of(read_json(path), path)
    text = GenerationLimits.of(config.text_config, path) if config.text_config else config
    ends = config, text, GenerationLimits.of(read_json(generation), generation)
    stop_ids = frozenset(id for part in ends for id in part.eos_token_id if id >= 0)
    return stop_ids, text.limit


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, {} if there is no file. Raises FetchError if it is damaged or has
    more than JSON_BYTES."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise FetchError(f"{path} is damaged; fetch it again.") from error
    return data if isinstance(data, dict) else {}


def read_text(path: Path, limit: int = JSON_BYTES) -> str:
    """The text in `path`, in UTF-8 with or without a byte order mark. Raises FetchError if it
    cannot be read or has more than `limit` bytes."""
    try:
        if path.stat().st_size > limit:
            raise FetchError(f"{path} has more than {size(limit)}, too much for its kind.")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FetchError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise FetchError(f"{path} is not UTF-8 text; fetch it again.") from error
