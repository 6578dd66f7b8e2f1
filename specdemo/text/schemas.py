"""Prepares JSON Schemas for llguidance, which compiles most of them as they are: refuses what it
would follow wrongly, and forbids values that could be begun and never ended."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from math import isfinite, prod
from typing import Any, TypeGuard
from urllib.parse import unquote

from specdemo.errors import BadInput

MAX_SCHEMA = 64_000  # characters: the time to compile grows with the square of the properties
MAX_MULTIPLE = 10_000  # product of all `multipleOf`: so many lexer states are made
MAX_FORCED, MAX_ITEMS = 5_000, 1_000  # characters and items in a row without an alternative
MAX_LENGTH = 2_000  # `minLength`; each character of a limited text takes up to nine lexer states
MAX_PAIRS = 10_000  # of the patterns of all parts and names, which are compared
MAX_CHAIN = 100  # references that depend on each other
MAX_REFERENCES = 10_000  # of all parts together, each with the references of what it refers to

JSON_STYLE = {
    "whitespace_flexible": False,  # fixed space is forced; in free space small models can loop
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
ESCAPES = 'nrbtf\\"'  # without \u, by which the name of a property could be written in two ways
FORMATS = "date-time time date duration email hostname ipv4 ipv6 uuid uri".split()
"""The formats that llguidance follows. Others are annotations, as the standard says."""

TIMES = "date-time", "time", "duration"
SHORT_NUMBERS = r"^[^0-9]*([0-9]{1,9}[^0-9]+)*([0-9]{1,9})?$"
"""The pattern of TIMES, whose seconds could have any number of digits."""

SCHEMAS_BY_NAME = "properties", "patternProperties", "dependentSchemas", "$defs", "definitions"
DATA = "enum", "const", "default", "examples"  # keywords whose values are no schemas
VALUES = "const enum minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
COUNT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{([0-9]{1,18})(?:,([0-9]{0,18}))?\}", re.S)
"""Finds the counts of repetitions in a pattern; escapes and classes, which have none, whole."""
EXACT = 2**53  # llguidance computes with doubles, which hold all integers up to this one
TYPES = frozenset("null boolean number string array object".split())

Schema = dict[str, Any]
Allows = Callable[[Schema, list[str]], list[bool]]
"""Which texts begin JSON of a schema, in a place where more can follow or the end."""


def json_grammar(schema: str, place: str, allows: Allows) -> str:
    """The grammar of JSON that follows a schema. Raises BadInput, which names `place`."""
    param = place.partition(":")[0]
    require_size(schema, param)
    try:
        document = json.loads(schema)
        parts = list(_subschemas(document))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place} is not JSON: {error}.", param) from None
    if not isinstance(document, dict):
        raise BadInput(f"{place} is {schema[:40]}; it must be a JSON object.", param)
    for part in parts:
        part.pop("uniqueItems", None)
        if part.get("propertyNames") == {"type": "string"}:
            del part["propertyNames"]  # all names are; Zod says so of each record
        others = part.get("allOf", [])
        if part.get("format") not in FORMATS:
            part.pop("format", None)  # an annotation
        elif part["format"] in TIMES and isinstance(others, list):
            part["allOf"] = [*others, {"pattern": SHORT_NUMBERS}]
        for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if part.get(name) is True and bound in part:  # as in draft 4
                part[name] = part.pop(bound)
        if isinstance(pattern := part.get("pattern"), str):
            part["pattern"] = _without_nul(pattern)
        if isinstance(rules := part.get("patternProperties"), dict):
            part["patternProperties"] = {_without_nul(name): rules[name] for name in rules}
    if why := next(filter(None, map(_wrong_value, parts)), "") or _wrong_divisors(parts):
        raise BadInput(f"{place} has {why}.", param)
    _move_bounds(parts, "exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1)
    _move_bounds(parts, "exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1)
    if any("patternProperties" in part for part in parts):
        _name_properties(parts, place, allows)
    if any("$ref" in part for part in parts):
        _forbid_endless(document, list(_subschemas(document)), place)
    return styled(document)


def _without_nul(pattern: str) -> str:
    """`pattern` with negated classes that exclude NUL too: for a class of all control characters
    llguidance would allow the escapes \\\\ and \\", even in [^"]."""
    return re.sub(r"(\\.)|\[\^(\]?)", lambda match: match[1] or rf"[^{match[2]}[\x00]", pattern)


def _move_bounds(parts: list[Schema], name: str, others: Iterable[str], direction: int) -> None:
    """Move integers that are exclusive bounds a thousandth of the way to a bound that is less than
    1 away: llguidance would allow the integer itself, such as 1 where 1 < x < 1.25. The parts may
    be those of one `allOf`, so the bounds of all are compared."""
    limits = [part[other] for part in parts for other in others if _is_number(part.get(other))]
    for part in parts:
        bound = part.get(name)
        if _is_number(bound) and bound == int(bound) and part.get("type") != "integer":
            distances = (direction * (limit - bound) for limit in limits)
            if near := [distance for distance in distances if 0 < distance < 1]:
                part[name] = bound + direction * min(near) / 1000


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and isfinite(value)


def styled(schema: Schema) -> str:
    """The grammar of JSON on one line."""
    controls = re.search(r"\\u00[01]|\x7f", json.dumps(schema))
    style = JSON_STYLE | {"json_allowed_escapes": f"{ESCAPES}u" if controls else ESCAPES}
    return f"%json {json.dumps(schema | {'x-guidance': style})}"


def require_size(text: str, param: str) -> None:
    if len(text) > MAX_SCHEMA:
        message = f"{param} has {len(text):,} characters; at most {MAX_SCHEMA:,} are compiled."
        raise BadInput(message, param)


def _wrong_value(part: Schema) -> str:
    """What in a part of a schema could not be followed exactly, or to its end."""
    for number in _numbers([part.get(name) for name in VALUES]):
        if abs(number) > EXACT:
            why = f"the number {number}, and digits of numbers beyond {EXACT:,} could change"
            return f"{why}; make it a string"
    minimum = part.get("minProperties", 0)
    if type(minimum) is int and minimum > 1 + len(_names(part.get("required"))):
        return f"minProperties {minimum}, and a name could be repeated; list names as required"
    items, length = part.get("minItems"), part.get("minLength")
    pattern, values = str(part.get("pattern")), part.get("enum")
    texts = map(json.dumps, [part.get("const"), *(values if isinstance(values, list) else ())])
    repetitions = (int(count) for found in COUNT.findall(pattern) for count in found if count)
    counts: tuple[tuple[str, Iterable[int], int], ...] = (
        ("minItems {:,}", [items] if isinstance(items, int) else [], MAX_ITEMS),
        ("minLength {:,}", [length] if isinstance(length, int) else [], MAX_LENGTH),
        ("a value of {:,} characters", map(len, texts), MAX_FORCED),
        ("the count {:,} in a pattern", repetitions, MAX_FORCED),
    )
    for what, sizes, limit in counts:
        if (longest := max(sizes, default=0)) > limit:
            return f"{what.format(longest)}; at most {limit:,} can be followed"
    return ""


def _wrong_divisors(parts: list[Schema]) -> str:
    values = (part.get("multipleOf") for part in parts)
    divisors = set(map(_digits, filter(_is_number, values)))
    if prod(divisors) <= MAX_MULTIPLE:
        return ""
    factors = ", ".join(map(str, sorted(divisors)))
    return f"multipleOf {factors}; their product must be at most {MAX_MULTIPLE:,}"


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in JSON data."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif type(value) in (int, float):
        yield value


def _digits(number: float) -> int:
    """The significant digits of a number, 125 of 1.25."""
    return int("".join(map(str, Decimal(str(number)).normalize().as_tuple().digits)))


def _name_properties(parts: list[Schema], place: str, allows: Allows) -> None:
    """Replace what can match no name but those of the schema by properties of these names, in
    place. After one of them a comma would be allowed, but no other name."""
    param = place.partition(":")[0]
    known = {name: None for part in parts for name in _names(part.get("properties"))}
    known |= {name: None for part in parts for name in _names(part.get("required"))}
    patterns = [name for part in parts for name in _names(part.get("patternProperties"))]
    if len(patterns) * len(known) > MAX_PAIRS:
        message = f"{place} has {len(patterns):,} patternProperties and {len(known):,} names"
        raise BadInput(f"{message}; at most {MAX_PAIRS:,} pairs are compared.", param)

    def allows_others(names: Iterable[str], patterns: Schema, additional: Any) -> bool:
        rules: Schema = {"type": "object", "minProperties": 1}
        rules |= {"properties": dict.fromkeys(names, False), "patternProperties": patterns}
        return allows(rules | {"additionalProperties": additional}, ["{"])[0]

    matching: dict[str, set[str]] = {}
    texts = [json.dumps(name, ensure_ascii=False) for name in known]
    for pattern in set(patterns):
        fits = allows({"type": "string", "pattern": pattern}, texts)
        matching[pattern] = {name for name, fit in zip(known, fits, strict=True) if fit}
    for part in parts:
        rules, named = part.get("patternProperties"), part.get("properties", {})
        if not isinstance(rules, dict) or not isinstance(named, dict):
            continue
        part["properties"] = named
        others = known.keys() - set().union(*map(matching.__getitem__, rules)) - named.keys()
        additional = part.get("additionalProperties", True)
        if not allows_others(others | named.keys(), dict.fromkeys(rules, False), {"type": "null"}):
            part["additionalProperties"] = False
            named |= dict.fromkeys(others, additional)
        for pattern in list(rules):
            if not allows_others(matching[pattern], {pattern: {"type": "null"}}, False):
                rule = rules.pop(pattern)
                for name in matching[pattern]:
                    named[name] = {"allOf": [named[name], rule]} if name in named else rule


def _forbid_endless(document: Schema, parts: list[Schema], place: str) -> None:
    """Forbid values that contain themselves without end, in place. The types of which each part
    has finite values are the least fixed point over its references. Raises BadInput if the
    document has none."""
    param = place.partition(":")[0]
    known: dict[int, frozenset[str]] = {}
    together: dict[int, list[Any]] = {}
    references = 0
    for part in parts:
        together[id(part)] = _together(part, document)
        references += len(together[id(part)]) - 1
        if references > MAX_REFERENCES:
            why = f"more than {MAX_REFERENCES:,} references, those of references included"
            raise BadInput(f"{place} has {why}.", param)

    def types(schema: Any) -> frozenset[str]:
        if isinstance(schema, dict):
            return known.get(id(schema), frozenset())
        return frozenset() if schema is False else TYPES

    open_parts = parts[::-1]  # types are only added, until a part has all that it declares
    for _ in range(MAX_CHAIN):
        before = dict(known)
        open_parts = [part for part in open_parts if types(part) != _declared(part).keys()]
        for part in open_parts:
            finite = _declared(part).keys() - _endless(together[id(part)], types)
            alternatives = [part[name] for name in ("anyOf", "oneOf") if name in part]
            finite = finite.intersection(*map(types, together[id(part)][1:]))
            for schemas in alternatives:
                if isinstance(schemas, list):
                    finite &= frozenset().union(*map(types, schemas))
            known[id(part)] = frozenset(finite)
        if known == before:
            break
    else:
        raise BadInput(f"{place} has more than {MAX_CHAIN} references in a row.", param)
    if not types(document):
        why = "cannot be used: it contradicts itself, or contains itself without end"
        raise BadInput(f"{place} {why}.", param)
    for part in parts:
        declared = _declared(part)
        if not types(part):
            part.clear()
            part["enum"] = []
        elif endless := declared.keys() & _endless(together[id(part)], types):
            part["type"] = [name for kind, name in declared.items() if kind not in endless]


def _declared(part: Schema) -> dict[str, str]:
    """The types that `part` names, by those of TYPES."""
    types = part.get("type", sorted(TYPES))
    names = types if isinstance(types, list) else [types]
    return {"number" if name == "integer" else str(name): str(name) for name in names}


def _together(part: Any, document: Schema) -> list[Any]:
    """`part`, and then once all that a value of it follows too: itself if it contains itself."""
    together, seen = [part], set[int]()
    for schema in together:
        if not isinstance(schema, dict):
            continue
        others = schema.get("allOf")
        others = [*others] if isinstance(others, list) else []
        if "$ref" in schema:
            others.append(_target(document, str(schema["$ref"])))
        together += [other for other in others if id(other) not in seen]
        seen.update(map(id, others))
    return together


def _target(document: Schema, reference: str) -> Any:
    """The schema that a reference names; True if it is not found here."""
    place: Any = document
    try:
        for name in unquote(reference).removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            place = place[int(name) if isinstance(place, list) else name]
    except (KeyError, IndexError, ValueError, TypeError):
        return True
    return place


def _endless(together: list[Any], types: Callable[[Any], frozenset[str]]) -> set[str]:
    """Types of which no value that follows all schemas `together` has finite parts."""
    schemas = [schema for schema in together if isinstance(schema, dict)]
    required = {name for schema in schemas for name in _names(schema.get("required"))}
    endless = set()
    if not all(types(_property(schema, name)) for schema in schemas for name in required):
        endless.add("object")
    for schema in schemas:
        minimum, items = schema.get("minItems", 0), schema.get("prefixItems", [])
        if type(minimum) is int and isinstance(items, list):
            needed = items[:minimum]
            if minimum > len(items):
                needed = [*items, schema.get("items", True)]
            if not all(map(types, needed)):
                endless.add("array")
    return endless


def _property(schema: Schema, name: str) -> Any:
    properties = schema.get("properties", {})
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return "patternProperties" in schema or schema.get("additionalProperties", True)


def _names(value: Any) -> list[str]:
    """The names of a mapping or of a list."""
    names = value if isinstance(value, dict | list) else ()
    return [name for name in names if isinstance(name, str)]


def _subschemas(schema: Any) -> Iterator[Schema]:
    if isinstance(schema, dict):
        yield schema
        for name, value in list(schema.items()):
            if name in SCHEMAS_BY_NAME and isinstance(value, dict):
                yield from _subschemas([*value.values()])
            elif name not in DATA:
                yield from _subschemas(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _subschemas(item)
