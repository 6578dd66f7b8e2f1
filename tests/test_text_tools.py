"""Calls of tools: each form lets a model write the very tokens it was trained on, and is read."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Literal
from unittest.mock import Mock

import jsonschema
import numpy as np
import openai
import pytest
import tokenizers
from helpers import served
from pydantic import BaseModel
from test_text_grammar import PERSON, walk
from test_text_tokenizer import saved
from tokenizers import AddedToken

from specdemo.server.schema import ChatRequest
from specdemo.text.grammar import Grammars
from specdemo.text.templates import RAW, Template
from specdemo.text.tokenizer import TextStream
from specdemo.text.tools import (
    GRANITE,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    PHI,
    CallReader,
    Tools,
    call_form,
)

TEMPLATES = Path(__file__).parent / "data" / "templates"
FUNCTIONS = json.dumps([{"name": "greet", "parameters": PERSON}, {"name": "stop"}])
GREET = '{"name": "A", "likes": "tea"}'
OBJECT = f'{{"name": "greet", "arguments": {GREET}}}'
LLAMA_CALL = f'{{"name": "greet", "parameters": {GREET}}}'
STOP = '{"name": "stop", "arguments": {}}'
CALLS = {  # how each family writes one call and two calls
    "hermes": (
        HERMES,
        f"<tool_call>\n{OBJECT}\n</tool_call>",
        f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{STOP}\n</tool_call>\n",
    ),
    "llama": (LLAMA, LLAMA_CALL, None),
    "llama with its tag": (LLAMA, f"<|python_tag|>{LLAMA_CALL}", None),
    "mistral": (MISTRAL, f"[TOOL_CALLS][{OBJECT}]", f"[TOOL_CALLS][{OBJECT}, {STOP}]"),
    "mistral with a space": (MISTRAL, f"[TOOL_CALLS] [{OBJECT}]", None),
    "mistral with arguments": (
        MISTRAL_ARGS,
        f"[TOOL_CALLS]greet[ARGS]{GREET}",
        f"[TOOL_CALLS]greet[ARGS]{GREET}[TOOL_CALLS]stop[ARGS]{{}}",
    ),
    "granite": (GRANITE, f"<|tool_call|>[{OBJECT}]", None),
    "phi": (PHI, f"<|tool_call|>[{OBJECT}]", f"<|tool_call|>[{OBJECT}, {STOP}]<|/tool_call|>"),
}


@pytest.fixture(scope="module")
def plain(embedded_pair) -> SimpleNamespace:
    """The embedded pair's tokenizer, which has no token for any marker."""
    tokenizer = embedded_pair.tokenizer
    return SimpleNamespace(tokenizer=tokenizer, grammars=Grammars(tokenizer, [2]), stop_ids={2})


@pytest.fixture(scope="module")
def marked(embedded_pair, tmp_path_factory) -> SimpleNamespace:
    """The same with the markers of all families as tokens."""
    made = tokenizers.Tokenizer.from_str(embedded_pair.tokenizer._parsing.to_str())
    ordinary = "<tool_call> </tool_call> <think> </think>".split()
    made.add_tokens([AddedToken(text, normalized=False) for text in ordinary])
    special = "[TOOL_CALLS] [ARGS] <|tool_call|> <|/tool_call|> <|python_tag|>".split()
    made.add_special_tokens([AddedToken(text) for text in special])
    tokenizer = saved(made, tmp_path_factory.mktemp("marked"))
    return SimpleNamespace(tokenizer=tokenizer, grammars=Grammars(tokenizer, [2]), stop_ids={2})


def allows(model: SimpleNamespace, text: str, tools: Tools, schema: str = "") -> bool:
    """Whether an answer may be `text` and end there, with the markers' tokens where there are some.
    Forced text may be cut into other tokens than those of the whole text."""
    place, tokenizer = model.grammars.compiled(schema, tools)(), model.tokenizer
    while text:
        mask = place.mask()
        id, *_ = tokenizer.encode(text)
        if not mask[id]:
            texts = {id: tokenizer.decode([id]) for id in np.flatnonzero(mask)[:100]}
            fitting = [id for id, piece in texts.items() if piece and text.startswith(piece)]
            if not fitting:
                return False
            id = max(fitting, key=lambda id: len(texts[id]))
        place.advance(int(id))
        text = text.removeprefix(tokenizer._parsing.decode([id], skip_special_tokens=False))
    return bool(place.mask()[2])


def read(model: SimpleNamespace, text: str, tools: Tools, size: int = 1000) -> tuple[str, list]:
    """The content and the calls of an answer that comes `size` tokens at a time."""
    reader = CallReader(tools)
    stream = TextStream(model.tokenizer, spelled=tools.markers(model.tokenizer))
    ids, content, calls = model.tokenizer.encode(text), "", []
    for start in range(0, len(ids), size):
        new, read_calls = reader.read("".join(map(stream.push, ids[start : start + size])))
        content, calls = content + new, [*calls, *read_calls]
    new, read_calls = reader.read("", last=True)
    return content + new, [(call.name, call.arguments) for call in [*calls, *read_calls]]


def pieces(text: str, size: int, tools: Tools) -> tuple[str, list]:
    """The same of a text that comes `size` characters at a time."""
    reader, content, calls = CallReader(tools), "", []
    for begin in range(0, len(text), size):
        more, new = reader.read(text[begin : begin + size], last=begin + size >= len(text))
        content, calls = content + more, calls + list(new)
    return content, calls


def test_a_marker_that_is_a_token_is_that_token(marked):
    """Smallest case of a tokenizer of Qwen's."""
    place = marked.grammars.compiled("", Tools(FUNCTIONS, required=True))()
    assert np.flatnonzero(place.mask()).tolist() == [marked.tokenizer.added["<tool_call>"]]


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("family", CALLS)
def test_each_form_is_allowed_and_read(marked, plain, family, has_tokens):
    form, call, both = CALLS[family]
    model = marked if has_tokens else plain
    if not has_tokens and (form in (GRANITE, PHI) or " with " in family):
        return  # these come with tokens only
    for required in (True, False):
        tools = Tools(FUNCTIONS, required, form=form)
        single = Tools(FUNCTIONS, required, several=False, form=form)
        assert allows(model, call, tools) and allows(model, call, single)
        assert not allows(model, call.replace("tea", "gin"), tools)
        assert not allows(model, call.replace("greet", "sing"), tools)
        assert allows(model, "Hello.", tools) == (not required)
        before = not required and form is not LLAMA
        assert allows(model, "Hello. " + call, tools) == (not required)
        assert not both or allows(model, both, tools) and not allows(model, both, single)
        for size in (1, 3, 1000):
            assert read(model, call, tools, size) == ("", [("greet", GREET)])
            assert read(model, "Hello.", tools, size) == ("Hello.", [])
            assert read(model, call[:-3], tools, size)[1] == []
            if before:
                assert read(model, "Hi <" + call, tools, size) == ("Hi <", [("greet", GREET)])
            if both:
                calls = [("greet", GREET), ("stop", "{}")]
                assert read(model, both, tools, size) == ("", calls)


@pytest.mark.parametrize("family", CALLS)
def test_with_a_schema_an_answer_is_json_or_calls(marked, family):
    form, call, _ = CALLS[family]
    schema = json.dumps({**PERSON, "properties": {**PERSON["properties"], "name": {"const": "Q"}}})
    answer = '{"name": "Q", "likes": "tea"}'
    free, required = Tools(FUNCTIONS, form=form), Tools(FUNCTIONS, required=True, form=form)
    assert allows(marked, answer, free, schema) and allows(marked, call, free, schema)
    assert not allows(marked, "Hello.", free, schema)
    assert not allows(marked, answer, required, schema)
    for size in (1, 2, 1000):
        assert read(marked, answer, free, size) == (answer, [])
        assert read(marked, call, free, size) == ("", [("greet", GREET)])


@pytest.mark.parametrize("family", [name for name in CALLS if "llama" not in name])
def test_text_beside_calls_may_hold_added_tokens(marked, family):
    form, call, _ = CALLS[family]
    assert allows(marked, "<think>So.</think>\n" + call, Tools(FUNCTIONS, form=form))
    assert allows(marked, "<think></think>No.", Tools(FUNCTIONS, form=form))
    assert not allows(marked, "<think></think>No.", Tools(FUNCTIONS, required=True, form=form))


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize("seed", range(3))
def test_what_the_mask_allows_is_read_as_calls_of_the_schema(marked, family, seed):
    form, _, _ = CALLS[family]
    tools = Tools(FUNCTIONS, required=True, form=form)
    reader = CallReader(tools)
    stream = TextStream(marked.tokenizer, spelled=tools.markers(marked.tokenizer))
    start = marked.grammars.compiled("", tools)
    tokens = walk(marked, start, np.random.default_rng(seed), 300)
    contents, calls = zip(*(reader.read(stream.push(id)) for id in tokens), strict=True)
    assert not any(contents) and any(calls) and reader.read("", last=True) == ("", ())
    for call in chain(*calls):
        jsonschema.validate(json.loads(call.arguments), PERSON if call.name == "greet" else {})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "parameters": {}}',
        '{"name": "greet", "other": {}}',
        'So {"name": "greet", "parameters": {}}',
        '{"a": 1}',
        "",
    ],
)
def test_text_that_only_looks_like_a_call_is_content(marked, text):
    for size in (1, 2, 1000):
        assert read(marked, text, Tools(FUNCTIONS, form=LLAMA), size) == (text, [])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_content_and_calls_are_told_apart_however_the_text_is_cut(size):
    arguments = '{"to": "<tool_call>\\n}\\n</tool_call>"}'
    call = f'<tool_call>\n{{"name": "greet", "arguments": {arguments}}}\n</tool_call>'
    text = f"Well, <tool> {call}\n{call} {call[:-3]}"
    content, calls = pieces(text, size, Tools(FUNCTIONS))
    assert content == "Well, <tool>  " + call[:-3]
    assert [call.arguments for call in calls] == [arguments] * 2
    text = CALLS["phi"][2]
    content, _ = pieces(text, size, Tools(FUNCTIONS, form=PHI))
    assert PHI.end in text and content == "", "the end of a list of calls"


def test_the_form_is_that_of_the_template():
    forms = {path.stem: call_form(path.read_text("utf-8")) for path in TEMPLATES.glob("*.jinja")}
    wanted = dict.fromkeys(("qwen25", "qwen3", "hermes"), HERMES) | {"llama3": LLAMA}
    wanted |= {"mistral": MISTRAL, "granite": GRANITE, "phi4": PHI}
    assert {name: form for name, form in forms.items() if form} == wanted
    assert call_form("<tool_call>\n<function=f>\n<parameter=p>") is None
    assert call_form("[TOOL_CALLS]{{ name }}[ARGS]") is MISTRAL_ARGS


# The API, with OpenAI's client and a model whose tokenizer has the markers


class Drink(BaseModel):
    """Orders a drink."""

    name: Literal["tea", "coffee"]
    hot: bool


DRINKS = [openai.pydantic_function_tool(Drink)]
NAMED = {"type": "function", "function": {"name": "Drink"}}
ASKED = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Coffee, please."}]}
FAMILIES = "qwen25", "llama3", "mistral"


@pytest.fixture(scope="module")
def clients(marked_session) -> Iterator[dict[str, openai.OpenAI]]:
    """A client of a server for each of FAMILIES, and one whose template has no calls."""
    tokens = {"bos_token": "", "eos_token": ""}
    jinjas = {name: (TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in FAMILIES}
    clients, loaded = {}, marked_session.loaded
    with ExitStack() as stack:
        for name in (*FAMILIES, ""):
            template = Template(name, jinjas[name], tokens=tokens) if name else RAW
            known = {"info": loaded.info, "context_limit": loaded.context_limit}
            session = Mock(ask=marked_session.ask, **known)
            server = stack.enter_context(served(session, replace(loaded, template=template)))
            url = f"{server.url}/v1"
            clients[name] = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
        yield clients


@pytest.fixture
def create(clients):
    return partial(clients["qwen25"].chat.completions.create, **ASKED)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_is_called_and_its_result_is_answered(clients, family):
    complete = clients[family].chat.completions
    common = {**ASKED, "max_tokens": 110, "seed": 1, "tools": DRINKS}
    for choice in ("required", NAMED):
        options = {**common, "tool_choice": choice, "parallel_tool_calls": False}
        assert not ChatRequest.model_validate(options).chat.tools.several
        done = complete.parse(**options).choices[0]
        [call] = done.message.tool_calls
        assert isinstance(call.function.parsed_arguments, Drink) and len(call.id) == 9
        assert (done.finish_reason, done.message.content) == ("tool_calls", None)
        with complete.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0]
        plain = complete.parse(**options, extra_body={"speculative": {"drafter": "none"}})
        for other in (streamed, plain.choices[0]):
            [again] = other.message.tool_calls
            assert again.function.arguments == call.function.arguments
            assert other.finish_reason == "tool_calls"
    schema = {**Drink.model_json_schema(), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "drink", "schema": schema}}
    answer = complete.create(**common, response_format=form).choices[0]
    if not answer.message.tool_calls:
        Drink.model_validate_json(answer.message.content)
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is served."}
    messages = [*ASKED["messages"], done.message.model_dump(exclude_none=True), result]
    common |= {"messages": messages, "tool_choice": "none", "max_tokens": 9}
    assert complete.create(**common).choices[0].message.content


def test_an_answer_follows_a_schema_or_is_an_object(clients, create):
    parse = clients["qwen25"].chat.completions.parse
    done = parse(response_format=Drink, max_tokens=40, **ASKED).choices[0]
    assert isinstance(done.message.parsed, Drink) and done.finish_reason == "stop"
    done = create(response_format={"type": "json_object"}, max_tokens=1).choices[0]
    assert (done.message.content, done.finish_reason) == ("{", "length")


JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
DANCE = {"type": "function", "function": {"name": "dance", "parameters": {}}}
BAD_TOOL = {"type": "function", "function": {"name": "sing", "parameters": {"not": {}}}}
OTHER = {"type": "function", "function": {"name": "sing"}}
TEXTUAL = {"type": "function", "function": {"name": "sing", "parameters": {"type": "string"}}}


@pytest.mark.parametrize(
    ("param", "words", "more"),
    [
        ("response_format", "unsupported keywords.*not", {"response_format": JSON}),
        ("response_format", "missing", {"response_format": {"type": "json_schema"}}),
        ("response_format", "is not json_schema", {"response_format": JSON | {"type": "text"}}),
        ("response_format", "is not json_s", {"response_format": JSON | {"type": "json_object"}}),
        ("tools", "sing .*unsupported keywords.*not", {"tools": [*DRINKS, BAD_TOOL, DANCE]}),
        ("tools", "sing has parameters of the type 'string'", {"tools": [DANCE, TEXTUAL]}),
        ("tool_choice", "none of the tools", {"tools": DRINKS, "tool_choice": OTHER}),
        ("tool_choice", "is sing, and there are no tools", {"tool_choice": OTHER}),
        ("tool_choice", "required, and there are no", {"tools": [], "tool_choice": "required"}),
    ],
)
def test_a_request_that_cannot_be_followed_is_refused_by_name(create, param, words, more):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        create(**more)
    assert caught.value.param == param


def test_tools_are_refused_where_the_template_has_none(clients):
    with pytest.raises(openai.BadRequestError, match="leave out tools"):
        clients[""].chat.completions.create(tools=DRINKS, **ASKED)


LOOSE = {
    "fenced": ("", "```json\n{OBJECT}\n```", ""),
    "fenced after text": ("I will greet.\n", "```json\n{OBJECT}\n```", "\nDone."),
    "fenced without a language": ("", "```\n{OBJECT}```", ""),
    "a tag": ("", "<tools>\n{OBJECT}\n</tools>", ""),
    "the template's tag in one line": ("So: ", "<tool_call>{OBJECT}</tool_call>", ""),
    "bare": ("", "{OBJECT}", ""),
    "bare after spaces": ("\n ", "{OBJECT}", "\n"),
    "unfinished": ("", "```json\n{OBJECT}", ""),
}
OBJECTS = (
    '{"name": "greet", "arguments": {"name": "A", "likes": "tea"}}',
    '{"name":"greet","arguments":{"name":"A","likes":"tea"}}',
    '{\n  "name": "greet",\n  "parameters": {\n    "name": "A",\n    "likes": "tea"\n  }\n}',
)


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL])
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("loose", LOOSE)
def test_a_call_in_another_form_than_the_templates_is_read(loose, size, form):
    before, call, after = LOOSE[loose]
    for written in OBJECTS:
        text = before + call.replace("{OBJECT}", written) + after
        content, calls = pieces(text, size, Tools(FUNCTIONS, form=form))
        assert content.split() == (before + after).split()
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [
            ("greet", {"name": "A", "likes": "tea"})
        ]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "sing", "arguments": {}}\n```',
        '```json\n{"name": "greet", "arguments": 3}\n```',
        '```json\n{"name": "greet", "arguments": {}, "more": 1}\n```',
        '```json\n{"name": "greet", "arguments": {"a": }}\n```',
        '{"name": "greet", "arguments": {}, "name": "sing"}',
        "```python\nprint('```')\n```",
        "```js\n{}\n```",
        '{"name": "Ada", "age": 36}',
        'Write {"name": "greet", "arguments": {}} to greet.',
        '{"name": "greet", "arguments": {"name": "A"',
        "<tools> are <tool> <json>",
        "`" * 7,
    ],
)
def test_text_that_is_no_call_of_a_tool_stays_as_it_is(text, size):
    assert pieces(text, size, Tools(FUNCTIONS)) == (text, [])


def test_a_second_call_in_a_loose_form_is_text_where_one_is_allowed():
    call = f"```json\n{OBJECTS[0]}\n```"
    content, calls = pieces(f"{call}\n{call}", 5, Tools(FUNCTIONS, several=False))
    assert len(calls) == 1 and content.strip() == call
    assert len(pieces(f"{call}\n{call}", 5, Tools(FUNCTIONS))[1]) == 2
