"""How an option is declared, parsed and checked, for command line, page, API and saved runs."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from specdemo.errors import BadInput

Kind = TypeVar("Kind")

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


def parse(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A checked `kind` (Settings, ModelChoice) from text or numbers, with defaults. Raises BadInput
    that names the first invalid setting, its value and what would be accepted."""
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        name = str(place[0]) if place else None
        raise BadInput(sentence(error, name), param=name) from None


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
