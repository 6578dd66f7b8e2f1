"""Grammars of JSON Schemas: what they allow is valid JSON, speculation changes no token of it, and
what cannot be used is refused in a sentence. Each schema's source and licence are in the file."""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from helpers import next_token, until
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.settings import Settings
from specdemo.text.grammar import Grammars

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


def is_valid(answer: str, schema: dict) -> bool:
    checks = jsonschema.FormatChecker()
    validator = jsonschema.Draft202012Validator(schema, format_checker=checks)
    return validator.is_valid(json.loads(answer))


def test_every_text_that_a_grammar_lets_end_is_json_of_its_schema(grammars, embedded_pair):
    tokenizer, rng, ended = embedded_pair.tokenizer, np.random.default_rng(0), 0
    closing = {tokenizer.encode(text)[0] for text in ('"', '"}', "}", "]", '",', ",", "1")}
    for schema in SCHEMAS:
        constraint, answer = grammars.compiled(json.dumps(schema))(), []
        while len(answer) < 200 and not embedded_pair.stop_ids & set(answer):
            allowed = np.flatnonzero(constraint.mask())
            wanted = embedded_pair.stop_ids & {*allowed} or closing & {*allowed} or allowed
            answer.append(int(rng.choice(sorted(wanted))))
            constraint.advance(answer[-1])
        if embedded_pair.stop_ids & set(answer):
            ended += 1
            assert is_valid(tokenizer.decode(answer), schema), (schema, tokenizer.decode(answer))
    assert ended > 0.9 * len(SCHEMAS)


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


ENDLESS = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
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
    ({"$ref": "#"}, "refers to itself"),
    ({**ENDLESS, "additionalProperties": False}, "Too many items"),
    ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "unsupported keywords.*not"),
]


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


def test_a_text_may_hold_any_number_of_digits(grammars, embedded_pair):
    for schema in ({"type": "string"}, {"type": "string", "pattern": "^[0-9]{40}$"}):
        constraint = grammars.compiled(json.dumps(schema))()
        for id in embedded_pair.tokenizer.encode('"' + "1234567890" * 4 + '"'):
            assert constraint.mask()[id]
            constraint.advance(id)


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "string", "format": name} for name in "path byte regex json-pointer x".split()),
        {"type": "object", "properties": {"format": {"const": "path"}, "uniqueItems": {}}},
        {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b"]}},
        {"type": "integer", "format": "int64"},
        {"enum": [{"format": "path", "uniqueItems": True}]},
    ],
)
def test_annotations_and_unique_items_restrict_nothing(grammars, schema):
    assert grammars.compiled(json.dumps(schema))().mask().any()


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
        assert forced and all(
            token.accepted or token.target_probability is None for token in forced
        )


def test_the_next_tokens_distribution_is_that_of_allowed_tokens(marked_session):
    tokenizer = marked_session.loaded.tokenizer
    options = Settings(temperature=1.0, json_schema=json.dumps(PERSON))
    ids = tuple(tokenizer.encode('{"name": "Ann", "likes": "'))
    likely = next_token(marked_session, "Who?", options, ids)
    texts = {tokenizer.decode([id]) for id in likely.ids}
    assert texts and all("tea".startswith(text) or "coffee".startswith(text) for text in texts)


@pytest.mark.parametrize("schema", BEYOND_DOUBLES)
def test_a_number_whose_digits_could_change_is_refused(grammars, schema):
    with pytest.raises(BadInput, match=r"^json_schema has the number -?\d+, and digits of"):
        grammars.compiled(json.dumps(schema))
    grammars.compiled(json.dumps({"const": 2**53}))
