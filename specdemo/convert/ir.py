"""The files of a model and its configuration, without importing OpenVINO. Each value that is used
has a type and a range; others are not read."""

import hashlib
import json
import re
from collections import Counter
from contextlib import suppress
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
from specdemo.host.terminal import size
from specdemo.options import wrong_parameter

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
HEAD = "openvino_head.xml"  # a draft head (`heads`)
SOURCE = "source.gguf"  # the GGUF file that the IR was made of, or a link to it
MANIFEST = "sha256.json"  # hashes of the files in a folder that this program wrote
FURTHER_TEMPLATES = "additional_chat_templates"  # a folder, as transformers 5 saves them
JSON_BYTES = 100_000_000
ADDED_TOKENS = 10_000  # found in a text first; the tokenizers library prepares n in n² time
GGUF_END = re.compile(r"(-\d{5}-of-(?P<count>\d{5}))?\.gguf$", re.I)

_CONSTANT = re.compile(rb'<data element_type="(\w+)"[^>]* size="(\d+)"')
_FORMATS = {"u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8", "f16": "fp16"}

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


class Ends(Configuration):
    """Where answers end. `context` and `original` context: tokens, 0 if they are not given."""

    eos_token_id: Annotated[
        list[TokenId], BeforeValidator(lambda ids: ids if isinstance(ids, list) else [ids])
    ] = []
    context: int = named(*_CONTEXT, **_TOKENS)
    original: int = named(*_ORIGINAL, **_TOKENS)
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
    """Whether this config.json is of a draft head of EAGLE, of whatever version."""
    names = f"{config.get('architectures')} {config.get('speculators_model_type')}"
    return "eagle" in names.lower()


def weight_format(model: Path) -> str:
    """The format of most of an IR's weights, as `ModelChoice.weight_format` names it; "" if none
    of these."""
    totals: Counter[str] = Counter()
    for kind, count in _CONSTANT.findall(model.read_bytes()):
        totals[_FORMATS.get(kind.decode(), "")] += int(count)
    [(most, _)] = totals.most_common(1) or [("", 0)]
    return most


def read_config(folder: Path) -> tuple[frozenset[int], int]:
    """Stop ids and context limit (tokens, 0: not given) of a model. Raises FetchError, BadInput."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    if not path.is_file():
        raise FetchError(f"There is no config.json in {folder}.")
    config = Ends.of(read_json(path), path)
    text = Ends.of(config.text_config, path) if config.text_config else config
    ends = config, text, Ends.of(read_json(generation), generation)
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


def fingerprint(source: Path) -> str:
    """A hash of names, sizes and times of a folder's files, or of a GGUF file's parts. Raises
    BadInput."""
    total = hashlib.sha256(str(source.resolve()).encode())
    files = gguf_parts(source) if source.is_file() else sorted(source.glob("*"))
    for path in filter(Path.is_file, files):
        status = path.stat()
        total.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return total.hexdigest()[:16]


def gguf_parts(path: Path) -> list[Path]:
    """The files of a model that is split into -00001-of-0000N.gguf; of others, the file itself.
    Raises BadInput if one is missing."""
    match = GGUF_END.search(path.name)
    if not match or not match["count"]:
        return [path]
    stem, count, suffix = path.name[: match.start()], match["count"], path.suffix
    files = []
    for part in range(1, int(count) + 1):
        files.append(path.with_name(f"{stem}-{part:05}-of-{count}{suffix}"))
        if not files[-1].is_file():
            why = f"is one part of {int(count)}; {files[-1].name} is not beside it"
            raise BadInput(f"{path.name} {why}.")
    return files


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, by its name or its content."""
    if path.suffix.lower() == ".gguf" or not path.is_file():
        return path.is_file()
    with suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"GGUF"
    return False
