"""Prepares JSON Schemas for llguidance, which compiles most of them as they are: refuses what it
would follow wrongly, and forbids values that could be begun and never ended."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Set
from decimal import Decimal
from math import isfinite, prod
from typing import Any, TypeGuard
from urllib.parse import quote, unquote, urldefrag, urljoin

from specdemo.errors import BadInput

MAX_SCHEMA = 64_000  # characters: the time to compile grows with the square of the properties
MAX_MULTIPLE = 10_000  # product of all `multipleOf`: so many lexer states are made
MAX_FORCED, MAX_ITEMS = 5_000, 1_000  # characters and items in a row without an alternative
MAX_LENGTH = 2_000  # `minLength`; each character of a limited text takes up to nine lexer states
MAX_PAIRS = 10_000  # of the patterns of all parts and names, which are compared
MAX_LISTED = 500  # characters of a part's names, beside which others are described by a pattern
MAX_CHAIN = 100  # references that depend on each other
MAX_REFERENCES = 10_000  # of all parts together, each with the references of what it refers to

JSON_STYLE = {
    "whitespace_flexible": False,  # fixed space is forced; in free space small models can loop
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
ESCAPES = 'nrbtf\\"'  # with \u too where control characters are needed
CONTROLS = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # those that are written with \u
HINTS = re.compile(r"[\x00-\x1f\x7f]|\\[xucpP0]")  # of patterns that may need them
FORMATS = "duration email hostname ipv4 ipv6 uuid uri".split()
"""The formats that llguidance follows. Others are annotations, as the standard says."""

SHORT_NUMBERS = r"^[^0-9]*([0-9]{1,9}[^0-9]+)*([0-9]{1,9})?$"
"""The pattern of a duration, whose seconds could have any number of digits."""

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # of 100 years, but the first
_LEAP_DAY = f"([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29"
_DATE = f"({_YEAR}-{_DAY}|{_LEAP_DAY})"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Formats that are followed by patterns: llguidance allows the 29th of February in each year, and
a leap second at any time."""
NAME_PATTERNS = PATTERNS | {"uuid": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}

SCHEMAS_BY_NAME = (
    "properties patternProperties dependentSchemas dependencies $defs definitions"
).split()
DATA = "enum", "const", "dependentRequired", "discriminator"  # values that are no schemas
ANNOTATIONS = (
    "title description default examples deprecated readOnly writeOnly contentEncoding "
    "contentMediaType contentSchema $comment uniqueItems"
).split()
"""Keywords that restrict nothing here."""

IDLE = {  # keywords, and the other ones without which they demand nothing
    "then": ["if"],
    "else": ["if"],
    "minContains": ["contains"],
    "maxContains": ["contains"],
    "if": ["then", "else"],
}
ALL_ARE_ALLOWED = "propertyNames unevaluatedProperties unevaluatedItems then else".split()
IN_PLACE = "allOf anyOf oneOf $ref if dependentSchemas".split()
VALUES = "const enum minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
COUNT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{([0-9]{1,18})(?:,([0-9]{0,18}))?\}", re.S)
"""Finds the counts of repetitions in a pattern; escapes and classes, which have none, whole."""
EXACT = 2**53  # llguidance computes with doubles, which hold all integers up to this one
TYPES = frozenset("null boolean number string array object".split())

Schema = dict[str, Any]
Allows = Callable[..., list[bool]]
"""Which texts begin JSON of a schema, in a place where more can follow or the end; the third
argument is that of `styled`."""


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
        _drop_idle(part)
    _make_references_local(document)
    parts = list(_subschemas(document))
    for part in parts:
        _require_tags(part)
        _name_by_rule(part, document, place, allows)
        _replace_formats(part)
        for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if part.get(name) is True and bound in part:  # as in draft 4
                part[name] = part.pop(bound)
    parts = list(_subschemas(document))
    escapes = _needs_escapes(parts, allows)
    for part in parts:
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
    if escapes:
        _spell_names_once(list(_subschemas(document)))
    return styled(document, escapes)


def _without_nul(pattern: str) -> str:
    """`pattern` with negated classes that exclude NUL too: for a class of all control characters
    llguidance would allow the escapes \\\\ and \\", even in [^"]."""
    return re.sub(r"(\\.)|\[\^(\]?)", lambda match: match[1] or rf"[^{match[2]}[\x00]", pattern)


def _quoted(names: Iterable[str]) -> list[str]:
    return [json.dumps(name, ensure_ascii=False).replace("\x7f", r"\u007f") for name in names]


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


def styled(schema: Schema, escapes: bool = False) -> str:
    """The grammar of JSON on one line, with `escapes` of control characters by \\u."""
    style = JSON_STYLE | {"json_allowed_escapes": f"{ESCAPES}u" if escapes else ESCAPES}
    return f"%json {json.dumps(schema | {'x-guidance': style})}"


def _drop_idle(part: Schema) -> None:
    """Remove keywords of `part` that demand nothing, and what llguidance does not know of others
    that only repeat them."""
    for name in ANNOTATIONS:
        part.pop(name, None)
    if part.get("propertyNames") == {"type": "string"}:
        del part["propertyNames"]  # all names are; Zod says so of each record
    for name in ALL_ARE_ALLOWED:
        if part.get(name) is True or part.get(name) == {}:
            del part[name]
    if part.get("not") is False:
        del part["not"]
    if part.get("contains") is True or part.get("contains") == {}:  # which each item is
        least = [part.get("minItems", 0), part.get("minContains", 1)]
        most = [part[name] for name in ("maxItems", "maxContains") if name in part]
        if all(map(_is_number, least + most)):
            part |= {"minItems": max(least)} | ({"maxItems": min(most)} if most else {})
            del part["contains"]
    if part.get("minContains") == 0 and "maxContains" not in part:
        part.pop("contains", None)
    for name, others in IDLE.items():
        if name in part and not any(other in part for other in others):
            del part[name]
    for name, plain in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if name in part and plain in part:
            del part[name]  # it concerns what is evaluated by nothing else
        elif name in part and not any(other in part for other in IN_PLACE):
            part[plain] = part.pop(name)
    required = _names(part.get("required"))
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(rules := part.get(name), dict):
            for key in list(rules):
                rule = rules[key]
                met = isinstance(rule, list) and {*_names(rule)} <= {*required}
                if rule is True or rule == {} or met:
                    del rules[key]
            if not rules:
                del part[name]


def _make_references_local(document: Schema) -> None:
    """Replace references by `$id`, `$anchor` or a URI with places in the document, in place, and
    remove these names. A reference that leads nowhere stays."""
    places = {"": "#"}
    references: list[tuple[Schema, str]] = []
    dynamic = [part.get("$dynamicAnchor") for part in _subschemas(document)]
    for part, base, names in _located(document):
        place = "/".join(["#", *map(_pointer, names)])
        if isinstance(part.pop("$id", None), str):
            places.setdefault(base, place)
        for name in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := part.pop(name, None), str):
                places.setdefault(f"{urldefrag(base).url}#{anchor}", place)
        reference = part.get("$dynamicRef")
        static = "$ref" not in part and dynamic.count(str(reference).rpartition("#")[2]) <= 1
        if isinstance(reference, str) and static:
            part["$ref"] = part.pop("$dynamicRef")
        if isinstance(part.get("$ref"), str):
            references.append((part, urljoin(base, part["$ref"])))
    for part, reference in references:
        uri, fragment = urldefrag(reference)
        if reference in places:
            part["$ref"] = places[reference]
        elif uri in places and fragment.startswith("/"):
            part["$ref"] = places[uri] + fragment


def _pointer(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="")


def _require_tags(part: Schema) -> None:
    """Require in each alternative the property by which it is told from the others: Pydantic lets
    it be left out where it has a default, though `oneOf` allows no value that fits two of them."""
    discriminator, alternatives = part.get("discriminator"), part.get("oneOf")
    tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    if isinstance(tag, str) and isinstance(alternatives, list):
        part["oneOf"] = [{"allOf": [each, {"required": [tag]}]} for each in alternatives]


def _name_by_rule(part: Schema, document: Schema, place: str, allows: Allows) -> None:
    """Replace `propertyNames` of `part` by properties or a pattern of their names, in place, where
    that says the same; else it stays, and llguidance refuses it."""
    rule = _followed(part.get("propertyNames"), document)
    listed, additional = part.get("properties", {}), part.get("additionalProperties", True)
    if not isinstance(rule, dict) or not isinstance(listed, dict) or "patternProperties" in part:
        return
    rule = {name: value for name, value in rule.items() if name != "type" or value != "string"}
    keyword, value = next(iter(rule.items()), ("", None))
    names = [value] if keyword == "const" else value
    if len(rule) != 1:
        return
    if keyword in ("enum", "const") and isinstance(names, list):
        allowed = dict.fromkeys(_names(names), additional)
        part["properties"] = allowed | {n: n in allowed and listed[n] for n in listed}
        part["additionalProperties"] = False
    else:
        pattern = value if keyword == "pattern" else None
        if keyword == "format":
            pattern = NAME_PATTERNS.get(str(value), "")
        elif keyword in ("minLength", "maxLength") and type(value) is int:
            counts = f"{value}," if keyword == "minLength" else f"0,{value}"
            pattern = rf"^[\s\S]{{{counts}}}$"
        if not isinstance(pattern, str) or listed and additional not in (True, False, {}):
            return
        if pattern:  # a format that is no annotation
            fits = allows({"type": "string", "pattern": pattern}, _quoted(listed), True)
            part["properties"] = {n: fit and listed[n] for n, fit in zip(listed, fits, strict=True)}
            if additional is not False:
                part |= {"patternProperties": {pattern: additional}, "additionalProperties": False}
    del part["propertyNames"]


def _followed(schema: Any, document: Schema) -> Any:
    """`schema`, or what it refers to if it is a reference only."""
    for _ in range(MAX_CHAIN):
        if not isinstance(schema, dict) or list(schema) != ["$ref"]:
            break
        schema = _target(document, str(schema["$ref"]))
    return schema


def _replace_formats(part: Schema) -> None:
    """Replace formats that llguidance does not follow exactly by patterns, and drop annotations."""
    kind, others = part.get("format"), part.get("allOf", [])
    if kind not in FORMATS:
        part.pop("format", None)
    pattern = SHORT_NUMBERS if kind == "duration" else PATTERNS.get(str(kind))
    if pattern and isinstance(others, list):
        part["allOf"] = [*others, {"pattern": pattern}]


def _needs_escapes(parts: list[Schema], allows: Allows) -> bool:
    """Whether a value, a name or a pattern needs control characters that only \\u can write."""
    data = [[part.get(name) for name in ("enum", "const", "required")] for part in parts]
    names = [_names(part.get("properties")) for part in parts]
    texts = (leaf for leaf in _leaves([data, names]) if isinstance(leaf, str))
    if any(map(CONTROLS.search, texts)):
        return True
    patterns = {part["pattern"] for part in parts if isinstance(part.get("pattern"), str)}
    patterns.update(name for part in parts for name in _names(part.get("patternProperties")))
    try:
        return not all(
            allows({"type": "string", "pattern": pattern}, ['"'])[0]
            for pattern in filter(HINTS.search, patterns)
        )
    except BadInput:  # nothing that needs no escapes
        return True


def _leaves(data: Any) -> Iterator[Any]:
    """All texts, names, numbers, and so on in JSON data."""
    if isinstance(data, dict | list):
        for item in [*data, *data.values()] if isinstance(data, dict) else data:
            yield from _leaves(item)
    else:
        yield data


def _spell_names_once(parts: list[Schema]) -> None:
    """Let names beside those that a part lists have no control characters, in place: with escapes
    by \\u, llguidance would take another spelling of a listed name for another name."""
    known = {name for part in parts for name in _names(part.get("properties"))}
    known |= {name for part in parts for name in _names(part.get("required"))}
    controls = {name for name in known if re.search(r"[\x00-\x1f\x7f]", name)}
    for part in parts:
        listed, additional = part.get("properties", {}), part.get("additionalProperties", True)
        has_names = listed or "patternProperties" in part
        if additional is False or not has_names or not isinstance(listed, dict):
            continue
        part["additionalProperties"] = False
        if "patternProperties" not in part:
            missing = sorted(controls - listed.keys())
            part["properties"] = listed | dict.fromkeys(missing, additional)
            if sum(map(len, listed)) <= MAX_LISTED:
                pattern = f"^{_other_names(listed.keys() - controls)}$"
                part["patternProperties"] = {pattern: additional}


def _other_names(names: Set[str]) -> str:
    """The pattern of all texts without control characters but `names`."""
    others = [] if "" in names else [""]
    first = sorted({name[0] for name in names if name})
    others.append(rf"[^\x00-\x1f\x7f{re.escape(''.join(first))}][^\x00-\x1f\x7f]*")
    for letter in first:
        rest = {name[1:] for name in names if name[:1] == letter}
        others.append(re.escape(letter) + _other_names(rest))
    return f"({'|'.join(others)})"


def require_size(text: str, param: str) -> None:
    if len(text) > MAX_SCHEMA:
        message = f"{param} has {len(text):,} characters; at most {MAX_SCHEMA:,} are compiled."
        raise BadInput(message, param)


def _wrong_value(part: Schema) -> str:
    """What in a part of a schema could not be followed exactly, or to its end."""
    for number in _leaves([part.get(name) for name in VALUES]):
        if type(number) in (int, float) and abs(number) > EXACT:
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
    texts = _quoted(known)
    for pattern in set(patterns):
        fits = allows({"type": "string", "pattern": pattern}, texts, True)
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


def _subschemas(document: Schema) -> Iterator[Schema]:
    return (part for part, _, _ in _located(document))


def _located(
    schema: Any, base: str = "", names: tuple[str, ...] = ()
) -> Iterator[tuple[Schema, str, tuple[str, ...]]]:
    """All parts of a schema, each with its base URI and the names that lead to it. What is removed
    from a part before the next one is asked for is not visited."""
    inner: dict[tuple[str, ...], Any] = {}
    if isinstance(schema, list):
        inner = {(str(index),): item for index, item in enumerate(schema)}
    elif isinstance(schema, dict):
        if isinstance(id := schema.get("$id"), str):
            base = urljoin(base, id)
        yield schema, base, names
        for name, value in schema.items():
            if name in SCHEMAS_BY_NAME and isinstance(value, dict):
                inner |= {(name, key): item for key, item in value.items()}
            elif name not in DATA:
                inner[name,] = value
    for further, part in inner.items():
        yield from _located(part, base, (*names, *further))
