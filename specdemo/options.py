"""How an option is declared, parsed and checked, for command line, page, API and saved runs."""

import dataclasses
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from specdemo.errors import BadInput, InvalidOption

Kind = TypeVar("Kind")

CONFIG = ConfigDict(allow_inf_nan=False, extra="forbid")


def _integer(value: object) -> object:
    """Turns 5.0 into 5: in JSON Schema both are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else _number(value)


def _number(value: object) -> object:
    """Refuses true and false, which pydantic takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("it must be a number")
    return value


Whole = Annotated[int, BeforeValidator(_integer)]
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
    command line: `metavar`, the text for the default (`unset`), the option that switches a flag
    `off`, and `file` if the option names the file that contains the value."""
    return field(default=default, metadata={"help": help, **shown})


_LIMITS = "max_tokens", "max_completion_tokens", "max_length", "n_predict"
OTHER_NAMES = dict.fromkeys(_LIMITS, "max_new_tokens")
"""Options as other libraries name them."""


def parse(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A checked `kind` (Settings, ModelChoice) from text or numbers, with defaults. Raises
    InvalidOption for the first invalid setting."""
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        expected = _plain(first["msg"]).replace("Input should be", "it must be")
        if first["type"] in TYPES:
            expected = f"it must be {TYPES[first['type']]}"
        if first["type"] == "unexpected_keyword_argument":
            expected = "there is no such option"
            names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
            near = get_close_matches(OTHER_NAMES.get(name, name.lower()), names)
            expected += f" ({near[0]}?)" if near else ""
        elif name == "draft_tokens":
            expected += ", or auto"
        raise unusable(name, first["input"], expected) from None


def unusable(param: str, value: object, expected: str) -> InvalidOption:
    """The error of a field with a value that is not what is `expected`."""
    return InvalidOption("{} is {value}; {expected}.", param, value=shown(value), expected=expected)


def file_text(path: str | Path, option: str) -> str:
    """The text of the file that an `option` names. Raises BadInput."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read() or "\n"  # which is no JSON, while "" is no schema
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{option} {path} cannot be read: {reason}.") from None


PLAIN = {
    "Value error, ": "",
    "Invalid JSON": "it is not JSON",
    "String should match pattern '\\S'": "it must not be blank",
    " after validation": "",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "should be True": "should be true",
    "should be False": "should be false",
}


def _plain(message: str) -> str:
    """A message of pydantic without its prefix and its words for kinds of values."""
    for technical, words in PLAIN.items():
        message = message.replace(technical, words)
    message = re.sub("^(String|Tuple|List|Dictionary) should", "it must", message)
    return re.sub(", (unable to|got a number with) .*", "", message)


CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
TYPES = dict.fromkeys(("model_attributes_type", "model_type", "dict_type"), "an object")
TYPES |= {"string_type": "a string", "list_type": "a list", "tuple_type": "a string or a list"}


def wrong_parameter(
    findings: Sequence[ErrorDetails],
    body: Any = None,
    whole: str = "The body",
    words: Callable[[object], str] | None = None,
) -> BadInput:
    """The first of pydantic's `findings`, at its innermost place, as one sentence. It names all
    kinds that a value of the JSON `body` may have; `whole` names the value itself, `words`
    shows a value (`shown_json`)."""
    for finding in findings:
        if isinstance(cause := finding.get("ctx", {}).get("error"), BadInput):
            return cause
    places = [_place(finding, body) for finding in findings]
    place = max((other for other in places if other[:1] == places[0][:1]), key=len)
    here = [finding for finding, other in zip(findings, places, strict=True) if other == place]
    here = [finding for finding in here if not finding["type"].endswith("_type")] or here
    kind, name = here[0]["type"], " ".join(".".join(place)[:100].split()) or whole
    wanted = (
        TYPES.get(finding["type"]) or _plain(finding["msg"]).partition("Input should be ")[2]
        for finding in here
    )
    if kind == "missing":
        message = f"{name} is missing."
    elif kind == "extra_forbidden":
        message = f"{name} is not known; leave it out."
    else:
        kinds = " or ".join(filter(None, wanted))
        reason = f"it must be {kinds}" if kinds else _plain(here[0]["msg"])
        value = max(here, key=lambda finding: len(finding["loc"]))["input"]
        message = f"{name} is {(words or shown_json)(value)}; {reason}."
    return BadInput(message, place[0][:100] if place else None, CODES.get(kind))


def _place(finding: ErrorDetails, value: Any) -> list[str]:
    """The keys to a finding's value in a body; pydantic puts names of types between them."""
    if value is None:
        return [str(part) for part in finding["loc"]]
    place = []
    for part in finding["loc"]:
        known = isinstance(value, dict) and part in value
        known |= isinstance(value, list) and isinstance(part, int) and part < len(value)
        if known:
            place.append(str(part))
            value = value[part]
    missing = finding["loc"][-1:] if finding["type"] == "missing" else ()
    return [*place, *map(str, missing)]


MAX_SHOWN = 100  # characters


class _JsonRepr(reprlib.Repr):
    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


_repr, _json_repr = reprlib.Repr(), _JsonRepr()
_repr.maxstring = _json_repr.maxstring = 60


def shown_json(value: object) -> str:
    """As `shown`, with JSON's words for nothing, true and false."""
    return shown(value, _json_repr)


def shown(value: object, words: reprlib.Repr = _repr) -> str:
    """The beginning of a value, for a message, in a time that does not grow with the value."""
    text = words.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
