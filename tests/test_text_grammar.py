"""Grammars of JSON Schemas: what they allow is valid JSON, speculation changes no token of it, and
what cannot be used is refused in a sentence. Each schema's source and licence are in the file."""

import contextlib
import json
import math
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal
from uuid import UUID

import jsonschema
import numpy as np
import pytest
import tiny_gguf
import tiny_models
from helpers import next_token, until
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from tokenizers import AddedToken, normalizers

from specdemo.convert import gguf_tokenizer
from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.settings import Settings
from specdemo.text.grammar import Grammars
from specdemo.text.tokenizer import Tokenizer

BEYOND_DOUBLES = [
    {"const": 1234567890123456789},
    {"enum": ["a", {"b": [2**63]}]},
    {"type": "object", "properties": {"id": {"type": "integer", "minimum": 10**21}}},
    {"type": "integer", "exclusiveMaximum": -(2**53) - 1},
]

FILE = Path(__file__).parent / "data" / "schemas.jsonl"
SCHEMAS = [json.loads(line)["schema"] for line in FILE.read_text("utf-8").splitlines()]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "likes": {"enum": ["tea", "coffee"]}},
    "required": ["name", "likes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(embedded_pair) -> Grammars:
    return Grammars(embedded_pair.tokenizer, embedded_pair.stop_ids)


EXACT_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: type(value) in (int, Decimal) and value == int(value)
)
Draft = jsonschema.Draft202012Validator
ExactValidator = jsonschema.validators.extend(Draft, type_checker=EXACT_TYPES)
"""Of numbers that were read as they are written."""


FORMATS = jsonschema.FormatChecker()


@FORMATS.checks("time", raises=ValueError)  # Python's validator has draft 3's, without a zone
def is_time(value: object) -> bool:
    return not isinstance(value, str) or is_date_time(f"2000-01-01T{value}")


@FORMATS.checks("date-time", raises=ValueError)
def is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value))


def is_valid(answer: str, schema: dict) -> bool:
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = ExactValidator(exact, format_checker=FORMATS)
    with contextlib.suppress(RecursionError):  # the same schema again for the same value
        return validator.is_valid(json.loads(answer, parse_float=Decimal))
    return True


def walk(model, start, rng, steps: int) -> list[int] | None:
    """Random tokens that a grammar allows, which soon close what they opened; None if they are not
    at their end after so many."""
    encode, constraint, answer = model.tokenizer.encode, start(), []
    closing = sorted({encode(text)[0] for text in ('"', '"}', "}", "]", '",', ",", "1")})
    stops = sorted(model.stop_ids)
    while len(answer) < steps:
        allowed = np.flatnonzero(mask := constraint.mask())
        assert allowed.size, f"nothing follows {model.tokenizer.decode(answer)}"
        ends, closes = ([id for id in ids if mask[id]] for ids in (stops, closing))
        wanted = ends or closes or allowed
        if rng.random() < 0.3 and len(answer) < steps / 2:
            wanted = allowed
        answer.append(int(rng.choice(wanted)))
        if answer[-1] in model.stop_ids:
            return answer[:-1]
        constraint.advance(answer[-1])
    return None


def test_every_text_that_a_grammar_lets_end_is_json_of_its_schema(grammars, embedded_pair):
    rng, ended, decode = np.random.default_rng(0), 0, embedded_pair.tokenizer.decode
    for schema in SCHEMAS:
        tokens = walk(embedded_pair, grammars.compiled(json.dumps(schema)), rng, 200)
        ended += tokens is not None
        assert tokens is None or is_valid(decode(tokens), schema), (schema, decode(tokens))
    assert ended > 0.8 * len(SCHEMAS)


CLOSED = {"additionalProperties": False}
OBJECT, TEXT = {"type": "object", **CLOSED}, {"const": "a"}
NAMES = "a", "b", "ab", "a\x1f"
PATTERNS = "^a$", "^[ab]$", "a", "^b", "^", "^(a|ab)$", "^[^a]", "^.{2,}$", "^$"
NUMBERS = 0, 1, -1, 2, 3, 10, -7, 0.5, 1.25, 2**53, -(2**53)
VALUES = None, True, 1, 1.5, 2**53, "a", "\x01", [1, "b"], {"a": 1}, {}
FEW = 0, 1, 2, 3
KEYWORDS = {  # the values of each keyword of a type, and how often it is used
    "number": {
        **dict.fromkeys(
            "minimum maximum exclusiveMinimum exclusiveMaximum".split(), (NUMBERS, 0.3)
        ),
        "multipleOf": ((2, 3, 5, 0.5, 0.1), 0.2),
    },
    "string": {
        **{"minLength": (FEW, 0.3), "maxLength": (FEW, 0.3), "pattern": (PATTERNS, 0.3)},
        "format": (("date", "time", "date-time", "uuid"), 0.2),
    },
    "array": {"minItems": (FEW, 0.3), "maxItems": (FEW, 0.3)},
    "object": {"minProperties": ((0, 1, 2), 0.1), "maxProperties": ((0, 1, 2), 0.1)},
}
KEYWORDS["integer"] = KEYWORDS["number"]
NAME_RULES = True, {"enum": ["a", "ab"]}, {"const": "a"}, {"format": "date"}, {"maxLength": 2}
NAME_RULES += {"pattern": "^.?$"}, {"$ref": "#/$defs/names"}
IDLE = {"dependentRequired": {}}, {"then": False}, {"contains": False, "minContains": 0}
IDLE += {"unevaluatedProperties": True}, {"description": "\x01"}, {"not": False}
IDLE += {"dependentRequired": {"b": ["a"]}}, {"unevaluatedProperties": False}
SIMPLE = "null boolean integer number string data".split()
NESTED = "array object object object $ref anyOf oneOf allOf several".split()


class RandomSchemas:
    """Schemas of few names, patterns and numbers, which often contradict each other."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def some(self, share: float) -> bool:
        return self.rng.random() < share

    def one_of(self, values):
        return values[int(self.rng.integers(len(values)))]

    def document(self) -> dict:
        definitions = {name: self.schema(2) for name in NAMES[:2]}
        definitions["a"]["$anchor"] = "here"
        return self.schema(3) | {"$defs": definitions | {"names": {"enum": ["a", "b"]}}}

    def any_schema(self, depth: int):
        return self.one_of([True, False, *[self.schema(depth) for _ in range(4)]])

    def schema(self, depth: int) -> dict:
        kind = self.one_of(SIMPLE + NESTED * (depth > 0))
        two = [self.schema(depth - 1) for _ in range(2)] if kind in NESTED[-4:] else []
        if kind == "several":
            return two[0] | two[1]
        if kind == "$ref":
            return {"$ref": self.one_of(("#", "#here", "#/$defs/b"))}
        if kind == "data":
            values = [self.one_of(VALUES) for _ in range(3)]
            schema = {"enum": values} if self.some(0.5) else {"const": values[0]}
            return schema | (self.schema(0) if self.some(0.3) else {})
        schema = {kind: two} if two else {"type": kind}
        if kind == "array":
            schema["items"] = self.any_schema(depth - 1)
            if self.some(0.4):
                schema["prefixItems"] = [self.any_schema(depth - 1) for _ in range(2)]
        if kind == "object":
            schema = self.properties(depth - 1) | (schema if self.some(0.8) else {})
        for keyword, (values, share) in KEYWORDS.get(kind, {}).items():
            if self.some(share):
                schema[keyword] = self.one_of(values)
        return schema

    def properties(self, depth: int) -> dict:
        schema = {}
        for keyword, names in (("properties", NAMES), ("patternProperties", PATTERNS)):
            if self.some(0.6):
                chosen = [self.one_of(names) for _ in range(2 if self.some(0.6) else 1)]
                schema[keyword] = {name: self.any_schema(depth) for name in chosen}
        if self.some(0.7):
            schema["additionalProperties"] = self.some(0.2) and self.any_schema(depth)
        if self.some(0.2):
            schema["propertyNames"] = self.one_of(NAME_RULES)
        if self.some(0.2):
            schema |= self.one_of(IDLE)
        if self.some(0.5):
            schema["required"] = sorted({self.one_of(NAMES) for _ in range(2)})
        return schema


def test_random_schemas_are_refused_or_every_text_goes_on_to_a_valid_end(grammars, embedded_pair):
    """RANDOM_SCHEMAS says how many."""
    counts, decode = Counter(), embedded_pair.tokenizer.decode
    for seed in range(int(os.environ.get("RANDOM_SCHEMAS", "60"))):
        schema = RandomSchemas(seed).document()
        try:
            start = grammars._compiled(json.dumps(schema), None)
        except BadInput as error:
            counts["refused"] += 1
            assert str(error).startswith("json_schema "), error
            continue
        for number in range(4):
            tokens = walk(embedded_pair, start, np.random.default_rng(number), 60)
            counts["not ended" if tokens is None else "valid"] += 1
            assert tokens is None or is_valid(decode(tokens), schema), (seed, schema)
    print(dict(counts))
    assert counts["valid"] > 4 * counts["not ended"] > 0 < counts["refused"]


def test_a_known_schema_waits_for_none_and_short_ones_come_first(grammars, monkeypatch):
    monkeypatch.setattr(grammars._turns, "_rest", 0.0)
    known, order = grammars.compiled('{"type": "null"}'), []

    def compiled(count: int) -> None:
        grammars.compiled(json.dumps({"properties": {f"p{number}": {} for number in range(count)}}))
        order.append(count)

    with ThreadPoolExecutor(3) as pool, grammars._turns.turn(0):
        pool.map(compiled, (30, 20, 10))
        until(lambda: len(grammars._turns.waiting) == 3)
        assert grammars.compiled('{"type": "null"}') is known
    assert order == [10, 20, 30]


@settings(max_examples=25, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), seed=st.integers(0, 10**6))
def test_a_mask_depends_on_the_tokens_only(grammars, schema, seed):
    start, rng = grammars.compiled(json.dumps(schema)), np.random.default_rng(seed)
    constraint, tokens = start(), []
    for _ in range(8):
        mask = constraint.mask()
        if mask is None:
            break
        for token in rng.choice(np.flatnonzero(mask), 3):  # tried, and taken back
            constraint.advance(int(token))
            constraint.mask()
            constraint.rollback(1)
        fresh = start()
        for token in tokens:
            fresh.advance(token)
        assert (fresh.mask() == mask).all() and (constraint.mask() == mask).all()
        tokens.append(int(rng.choice(np.flatnonzero(mask))))
        constraint.advance(tokens[-1])


def test_forced_text_has_one_tokenization_the_tokenizers_own(grammars, embedded_pair):
    constraint, forced = grammars.compiled(json.dumps(PERSON))(), []
    while np.count_nonzero(constraint.mask()) == 1:
        forced.append(int(constraint.mask().argmax()))
        constraint.advance(forced[-1])
    whole = embedded_pair.tokenizer.encode('{"name": "Ann"')
    assert forced == whole[: len(forced)] and len(forced) > 2


MARKERS = "<|im_end|>", "<think>", "</s>", "<filename>", "### End"
CHANGED = "e\u0301", "\u2460 A", " a   b", "<0x41>"  # by normalizers, or read as bytes


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def spelling(request, tmp_path_factory) -> SimpleNamespace:
    """A tokenizer that has MARKERS as tokens, and drops white space after some of them."""
    folder = tmp_path_factory.mktemp("spelling")
    if request.param == "pieces":
        file = tiny_gguf.vocabulary_file(folder, tiny_gguf.sentence_pieces(*MARKERS[:2]))
        file.fields["general.architecture"] = "phi3"
        gguf_tokenizer.write_tokenizer(file, folder)
    else:
        words, merges = tiny_models.trained_words()
        made = tiny_models.byte_level_tokenizer([*words, *MARKERS[:2]], merges)
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        made.add_special_tokens([AddedToken(text, rstrip=True) for text in MARKERS[::2]])
        made.add_tokens([AddedToken(text, normalized=False) for text in MARKERS[1::2]])
        made.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder / "tokenizer.json")
    end = tokenizer.added["<|im_end|>"]
    grammars = Grammars(tokenizer, [end])
    return SimpleNamespace(tokenizer=tokenizer, grammars=grammars, stop_ids={end})


@pytest.mark.parametrize("text", [*MARKERS, *CHANGED])
def test_forced_text_is_spelled_as_it_is_whatever_tokens_it_names(spelling, text):
    """Its tokenizer would read a token of its own, or compose and strip characters."""
    rng, added = np.random.default_rng(0), set(spelling.tokenizer.added.values())
    between = f"a {text} b"
    for schema in (
        {"const": text},
        {"const": between},
        {"enum": [between, f"a {text}c", text]},
        {"type": "string", "pattern": f"^{re.escape(between)}$"},
        {**OBJECT, "properties": {text: {"const": text}}, "required": [text]},
        {**OBJECT, "properties": {text: TEXT}, "patternProperties": {f"^{re.escape(text)}$": True}},
    ):
        start = spelling.grammars.compiled(json.dumps(schema))
        for _ in range(3):
            tokens = walk(spelling, start, rng, 100)
            assert is_valid(spelling.tokenizer.decode(tokens), schema), (schema, tokens)
            assert added.isdisjoint(tokens)


def test_a_text_that_the_tokenizer_cannot_write_is_refused_before_the_answer(spelling):
    schema = {"description": "\u2581", "enum": ["a", "\u2581"]}
    if len(spelling.tokenizer.byte_ids):
        with pytest.raises(BadInput, match="json_schema has the character '\u2581', which this"):
            spelling.grammars.compiled(json.dumps(schema))
        del schema["enum"]
    spelling.grammars.compiled(json.dumps(schema))


def matching(pattern: str, schema: object = True) -> dict:
    return {"patternProperties": {pattern: schema}}


ENDLESS = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
ONLY_A = {"type": "object", "properties": {"a": {"type": "null"}}}
TREE = {"type": "object", "properties": {"t": {"$ref": "#/$defs/tree"}}, "required": ["t"]}
TREES = {"type": "object", "additionalProperties": False, "$defs": {"tree": {**TREE, **CLOSED}}}
SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
REFUSED = [
    ("{", "json_schema is not JSON"),
    ("[" * 100_000, "64,000"),
    ("[1]", "must be a JSON object"),
    ({"not": {}}, "unsupported keywords.*not"),
    ({"type": "strin"}, "strin"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ({"type": "string", "pattern": "(ab"}, "unclosed group"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf constraints are not supported.$"),
    ({"$ref": "#/nowhere"}, "/nowhere"),
    ({"$ref": "https://example.com/x.json"}, "https://example.com/x.json"),
    ({"$ref": "#"}, "contains itself without end"),
    ({**ENDLESS, "additionalProperties": False}, "contains itself without end"),
    ({**ENDLESS, "required": ["name", "x"]}, "contains itself without end"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "contains itself without end"),
    ({"type": "object", "minProperties": 2}, "minProperties 2.*repeated"),
    ({"type": "array", "minItems": 30_000}, "minItems 30,000; at most 1,000"),
    ({"type": "string", "minLength": 20_000}, "minLength 20,000; at most 2,000"),
    ({"properties": {"a": {"const": "x" * 20_000}}}, "20,002 characters; at most 5,000"),
    ({"pattern": "^(ab){10000}$"}, "count 10,000 in a pattern"),
    ({"pattern": "^[a{]{2,10000}$"}, "count 10,000 in a pattern"),
    ({"pattern": r"^\\{10000}$"}, "count 10,000 in a pattern"),
    ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "unsupported keywords.*not"),
    ({"format": "time", "allOf": 3}, "allOf must be an array"),
    (
        {"properties": {f"a{n}": matching("^b") for n in range(200)}},
        "200 patternProperties and 200 names; at most 10,000",
    ),
    *((schema, r"^json_schema has the number -?\d+, and digits of") for schema in BEYOND_DOUBLES),
]


@pytest.mark.parametrize("pattern", ["^ISO,9001$", r"^\{9001\}$", "^[{9001}]$", "^a{1,20}9001$"])
def test_a_number_in_a_pattern_is_no_count(grammars, pattern):
    grammars.compiled(json.dumps({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_a_schema_that_cannot_be_used_is_refused_by_keyword_or_place(grammars, schema, words):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(BadInput, match=words) as caught:
        grammars.compiled(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("schema", "begins"),
    [
        ({"type": "number"}, "1."),
        ({"type": "number"}, "1e"),
        ({"type": "number"}, "-0"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "0."),
        ({"type": "integer"}, "1"),
        ({}, "1"),
        ({"type": "array", "items": {"type": "number"}, "maxItems": 2}, "[3"),
        ({"type": "string", "format": "time"}, '"10:00:00.'),
        ({"type": "string", "format": "date-time", "pattern": "^2"}, '"2026-01-01T10:00:00.'),
        ({"type": "string", "format": "duration"}, '"PT'),
    ],
)
def test_a_model_that_only_writes_digits_comes_to_an_end(grammars, embedded_pair, schema, begins):
    tokenizer, stop = embedded_pair.tokenizer, min(embedded_pair.stop_ids)
    digit = {tokenizer.token_id(character) for character in "0123456789"}
    schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    constraint = grammars.compiled(json.dumps({**schema, "additionalProperties": False}))()
    ids = tokenizer.encode('{"x": ' + begins)
    for id in ids:
        assert constraint.mask()[id]
        constraint.advance(id)
    while stop not in ids:
        allowed = set(np.flatnonzero(constraint.mask()).tolist())
        closing = [id for id in allowed if tokenizer.decode([id])[:1] in '}]",SZ']
        ids.append(min(digit & allowed or closing or allowed))
        constraint.advance(ids[-1])
        assert len(ids) < 80, tokenizer.decode(ids)
    value = json.loads(tokenizer.decode(ids))["x"]
    for number in value if isinstance(value, list) else [value]:
        assert isinstance(number, str) or math.isfinite(number)
        longest = max(map(len, re.findall("[0-9]+", json.dumps(number))))
        assert longest <= (9 if isinstance(number, str) else 100)


def test_a_limited_text_may_be_longer_than_a_lexer_lasts(grammars, embedded_pair, monkeypatch):
    schema = json.dumps({"type": "string", "maxLength": 20_000})

    def answer(text: str) -> None:
        constraint = grammars.compiled(schema)()
        for id in embedded_pair.tokenizer.encode(f'"{text}"'):
            assert constraint.mask()[id]
            constraint.advance(id)
            constraint.rollback(1)
            constraint.advance(id)

    answer("the " * 4500)
    monkeypatch.setattr("specdemo.text.grammar.LEXER_TOKENS", 10_000)
    with pytest.raises(BadInput, match="a text with a length limit .* became too long"):
        answer("the " * 4500)
    answer("a")


def references(count: int, *links: int) -> dict:
    """A schema of `count` definitions in a row, each of which follows others further on."""
    places = [[f"#/$defs/{number + link}" for link in links] for number in range(count)]
    parts = [{"allOf": [{"$ref": place} for place in row]} for row in places]
    last = dict.fromkeys(range(count, count + max(links)), {"type": "null"})
    return {"$ref": "#/$defs/0", "$defs": dict(enumerate(parts)) | last}


def test_the_time_for_a_schema_does_not_double_with_each_definition(grammars):
    assert grammars.compiled(json.dumps(references(40, 1, 1)))
    assert grammars.compiled(json.dumps(references(40, 1, 2)))
    with pytest.raises(BadInput, match="more than 10,000 references"):
        grammars.compiled(json.dumps(references(600, 1)))


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "string", "format": name} for name in "path byte regex json-pointer x".split()),
        {"type": "object", "properties": {"format": {"const": "path"}, "uniqueItems": {}}},
        {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b"]}},
        {"type": "integer", "format": "int64"},
        {"const": 2**53},
        {"enum": [{"format": "path", "uniqueItems": True}]},
        {"type": "object", "propertyNames": {"type": "string"}},
    ],
)
def test_annotations_and_unique_items_restrict_nothing(grammars, schema):
    assert grammars.compiled(json.dumps(schema))().mask().any()


class Color(StrEnum):
    RED = "red"


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: int


class Square(BaseModel):
    kind: Literal["square"] = "square"
    radius: int = 1


class Drawing(BaseModel):
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    by_name: dict[Literal["a", "b"], int]
    by_color: dict[Color, int]
    by_day: dict[date, int]
    by_time: dict[datetime, int]
    by_id: dict[UUID, int]
    by_short_name: dict[Annotated[str, Field(max_length=3)], int]


WHOLE = {"type": "integer"}
INNER = {"b": WHOLE}


@pytest.mark.parametrize(
    ("schema", "valid", "wrong"),
    [
        (TypeAdapter(Annotated[Circle | Square, Field(discriminator="kind")]), "", '{"radius"'),
        (TypeAdapter(dict[Literal["a", "b"], int]), '{"b": 1}', '{"c'),
        (TypeAdapter(dict[Color, int]), '{"red": 1}', '{"blue'),
        (TypeAdapter(dict[date, int]), '{"2024-02-29": 1}', '{"2023-02-29'),
        (TypeAdapter(dict[UUID, int]), "", '{"a-'),
        (TypeAdapter(Drawing), "", '{"by_name'),
        ({"$ref": "#n", "$defs": {"a": {"$anchor": "n", **WHOLE}}}, "1", '"'),
        ({"$id": "x:/r", "$ref": "i", "$defs": {"a": {"$id": "i", **WHOLE}}}, "1", '"'),
        ({"$ref": "x:/i#/$defs/b", "$defs": {"a": {"$id": "x:/i", "$defs": INNER}}}, "1", '"'),
        ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", **WHOLE}}}, "1", '"'),
        ({**OBJECT, "properties": {"a": WHOLE}, "propertyNames": {"const": "b"}}, "{}", '{"a'),
        (
            {"properties": INNER, "unevaluatedProperties": False, "type": "object"},
            '{"b": 1}',
            '{"a',
        ),
        ({"enum": ["\x7f"]}, r'"\u007f"', "1"),
        ({"properties": {"a": {}, "title": {}}, **WHOLE}, "1", '"'),
        ({"type": "array", "contains": True}, "[1]", "[]"),
        ({"type": "array", "contains": {}, "minContains": 0, "maxContains": 1}, "[]", "[1,"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_schemas_that_programs_write_are_followed(grammars, embedded_pair, schema, valid, wrong):
    if isinstance(schema, TypeAdapter):
        schema = schema.json_schema()
    start = grammars.compiled(json.dumps(schema))
    assert not valid or follows(embedded_pair, start(), valid)
    assert not follows(embedded_pair, start(), wrong)
    for seed in range(5):
        tokens = walk(embedded_pair, start, np.random.default_rng(seed), 200)
        text = tokens and embedded_pair.tokenizer.decode(tokens)
        assert tokens is None or is_valid(text, schema), text


@pytest.mark.parametrize(
    "demanding",
    [
        {"dependentRequired": {"title": ["b"]}},
        {"contains": {"const": 1}, "minContains": 0, "maxContains": 1},
        {"if": {"const": 1}, "then": {"const": 2}},
        {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]},
        {"propertyNames": {"maxLength": 3, "pattern": "a"}},
        {"propertyNames": {"maxLength": 1}, "properties": {"a": {}}, "additionalProperties": WHOLE},
    ],
    ids=str,
)
def test_what_demands_something_that_cannot_be_followed_is_refused(grammars, demanding):
    with pytest.raises(BadInput, match="unsupported keywords"):
        grammars.compiled(json.dumps(demanding))


@pytest.mark.parametrize(
    ("kind", "text", "exists"),
    [
        ("date", "2024-02-29", True),
        ("date", "2023-02-29", False),
        ("date", "1900-02-29", False),
        ("date", "2000-02-29", True),
        ("date", "2024-04-31", False),
        ("date", "0000-01-01", False),
        ("date-time", "2024-02-29T23:59:59.5+01:00", True),
        ("date-time", "2023-02-29T23:59:59Z", False),
        ("time", "12:00:60Z", False),
        ("time", "24:00:00Z", False),
    ],
)
def test_only_days_and_times_that_exist_are_written(grammars, embedded_pair, kind, text, exists):
    constraint = grammars.compiled(json.dumps({"type": "string", "format": kind}))()
    assert follows(embedded_pair, constraint, f'"{text}"') == exists


SPELLED = {"properties": {"ab": WHOLE}, "additionalProperties": {"type": "string"}}


def pattern_of_ab(pattern: str) -> dict:
    return {"properties": {"ab": {"type": "string", "pattern": pattern}}}


@pytest.mark.parametrize(
    ("schema", "texts", "wrong"),
    [
        ({"description": "\x01"}, ['{"b": "x"}'], [r'{"\u0061b": "x"}', r'{"\u0001": "x"}']),
        (
            {"required": ["a\x1f"], "properties": {"ab": WHOLE, "a\x1f": WHOLE, "a\n": WHOLE}},
            [
                r'{"a\u001f": 1, "abc": "x"}',
                r'{"a\u001f": 1, "a": "x"}',
                r'{"ab": 1, "a\u001f": 1}',
            ],
            [
                r'{"a\u001f": 1, "\u0061b": "x"}',
                r'{"a\u001F": "x"}',
                r'{"a\u001f": 1, "a\u000a": "x',
            ],
        ),
        (
            {"properties": {"ab": {"enum": ["\x01", "a"]}}},
            [r'{"ab": "\u0001"}', '{"ba": "x"}', '{"": "x"}'],
            [r'{"\u0061b": "x"}', '{"ab": "x"}'],
        ),
        (pattern_of_ab(r"^[\x00-\x01]$"), [r'{"ab": "\u0001"}'], [r'{"\u0061b": "x"}']),
        (pattern_of_ab(r"^[^\x00-\x1f]$"), ['{"ab": "x"}'], [r'{"ab": "\u0001"}']),
    ],
)
def test_no_listed_name_has_another_spelling(grammars, embedded_pair, schema, texts, wrong):
    start = grammars.compiled(json.dumps({"type": "object", **SPELLED, **schema}))
    for text in texts:
        assert follows(embedded_pair, start(), text), text
    for text in wrong:
        assert not follows(embedded_pair, start(), text), text


def follows(model, constraint, text: str) -> bool:
    ids = model.tokenizer.encode(text)
    return all(constraint.mask()[id] and not constraint.advance(id) for id in ids)


def numbers(**bounds) -> dict:
    return {"type": "array", "items": {"type": "number", **bounds}}


@pytest.mark.parametrize(
    ("schema", "text", "allowed"),
    [
        ({**SCORE, **CLOSED, **matching("^score$")}, '{"score": 85,', False),
        ({**SCORE, **CLOSED, **matching("^(score|a)$")}, '{"score": 8, "a": 1}', True),
        ({"allOf": [SCORE, {**CLOSED, **matching("^score$")}]}, '{"score": 5,', False),
        ({**ONLY_A, **matching("^([^a]|a[^b]|ab|$)", False)}, '{"a": null,', False),
        ({**ONLY_A, **matching("^([^a]|a.)", False)}, '{"a": null, "": 1}', True),
        ({**SCORE, "additionalProperties": {"type": "null"}}, '{"score": 1, "\\u', False),
        ({**TREES, "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {}}}, '{"a"', False),
        ({**TREES, "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {}}}, '{"b": 1}', True),
        (numbers(exclusiveMinimum=1, maximum=1.25), "[1]", False),
        (numbers(minimum=1, exclusiveMinimum=True, maximum=1.25), "[1]", False),
        (numbers(exclusiveMinimum=1, maximum=1.25), "[1.1]", True),
        (numbers(exclusiveMinimum=1, maximum=2), "[1.5, 2]", True),
        (numbers(minimum=-0.5, exclusiveMaximum=0), "[-0]", False),
        (numbers(minimum=-0.5, exclusiveMaximum=0), "[-0.4]", True),
        (numbers(allOf=[{"exclusiveMinimum": 1}, {"maximum": 1.25}]), "[1]", False),
        ({"type": ["string", "null"], "format": "date-time"}, "null", True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"format": "time"}}}, '"10:00:00Z"', True),
        ({"type": "string", "pattern": '^[^"]+$'}, r'"a\"', False),
        ({"type": "string", "pattern": r"^[^\\/-]+$"}, r'"a\\', False),
        ({"type": "string", "pattern": r"^\[[^-a]+$"}, r'"[b\\"', True),
        ({"type": "string", "pattern": "^[^]]+$"}, '"ab"', True),
        ({"type": "string", "pattern": "^[^]]+$"}, '"a]"', False),
        ({**CLOSED, **matching('^[^"]$')}, r'{"\"', False),
        ({"type": "string"}, f'"{"1234567890" * 4}"', True),
        ({"type": "string", "pattern": "^[0-9]{40}$"}, f'"{"1234567890" * 4}"', True),
    ],
)
def test_nothing_is_allowed_that_has_no_valid_end(grammars, embedded_pair, schema, text, allowed):
    constraint = grammars.compiled(json.dumps(schema))()
    assert allowed == follows(embedded_pair, constraint, text)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}])
def test_an_answer_is_that_of_constrained_autoregressive_decoding(marked_session, sampling):
    session = marked_session
    for schema in (PERSON, SCHEMAS[3]):
        options = Settings(80, draft_tokens=8, json_schema=json.dumps(schema), **sampling)
        question = "Describe a person as JSON."
        *_, trace = session.ask(Question(question, options))
        *_, autoregressive = session.ask(Question(question, replace(options, drafter="none")))
        assert trace.token_ids == autoregressive.token_ids
        assert trace.finish_reason == "length" or is_valid(trace.text, schema)
        forced = [token for r in trace.rounds for token in r.drafted if token.source == "grammar"]
        assert forced and all(t.accepted or t.target_probability is None for t in forced)


def test_the_next_tokens_distribution_is_that_of_allowed_tokens(marked_session):
    tokenizer = marked_session.loaded.tokenizer
    options = Settings(temperature=1.0, json_schema=json.dumps(PERSON))
    ids = tuple(tokenizer.encode('{"name": "Ann", "likes": "'))
    likely = next_token(marked_session, "Who?", options, ids)
    texts = {tokenizer.decode([id]) for id in likely.ids}
    assert texts and all("tea".startswith(text) or "coffee".startswith(text) for text in texts)
