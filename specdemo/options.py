"""How an option is declared, parsed and checked, for command line, page, API and saved runs."""

import reprlib
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

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
    command line: its `metavar`, the text for its default (`unset`), the option
    that switches a flag `off`, and `file` where it names the file that holds the value."""
    return field(default=default, metadata={"help": help, **shown})


class InvalidOption(BadInput):
    """The option `param` has an unusable `value`; the sentence ends with what is `expected`."""

    param: str

    def __init__(self, param: str, value: object, expected: str):
        super().__init__(f"{param} is {shown(value)}; {expected}.", param)
        self.value, self.expected = value, expected


def parse(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A checked `kind` (Settings, ModelChoice) from text or numbers, with defaults. Raises
    InvalidOption for the first invalid setting."""
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InvalidOption(name, first["input"], _expected(first, name)) from None


def sentence(error: ValidationError) -> str:
    """The first finding of a pydantic error as one sentence about its field."""
    first = error.errors()[0]
    place = " ".join(".".join(map(str, first["loc"])).split()) or "the request"
    if first["type"] == "missing":
        return f"{place} is missing."
    return f"{place} is {shown(first['input'])}; {_expected(first, place)}."


def _expected(finding: ErrorDetails, place: str) -> str:
    if finding["type"] == "unexpected_keyword_argument":
        return "there is no such option"
    reason = finding["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    return f"{reason}, or auto" if place == "draft_tokens" else reason


LONGEST_SHOWN = 100  # characters of a value in a message
_repr = reprlib.Repr()
_repr.maxstring = 60


def shown(value: object) -> str:
    """The beginning of a value, for a message; a long one costs no more than a short one."""
    text = _repr.repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
