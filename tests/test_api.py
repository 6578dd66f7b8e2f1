"""The public face: `import specdemo`, answers, and the notebook of the examples."""

import ast
import asyncio
import json
import math
import re
import threading
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import python
from helpers import at_pace, until
from pydantic import BaseModel
from toy_session import ToySession

import specdemo
from specdemo.api import ChatTokenizer, Extras, Message, Options, Pipeline
from specdemo.errors import BadInput, Busy
from specdemo.options import parse
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question
from specdemo.runs.race import on_show
from specdemo.runs.saved_run import from_json
from specdemo.runs.settings import Settings
from specdemo.text.templates import Chat, Template

FOLDER = Path(__file__).parent / "data" / "templates"
NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


@pytest.fixture
def endless():
    with ToySession("word ") as opened:
        yield opened


def test_importing_specdemo_imports_no_other_package():
    code = "import sys, specdemo; specdemo.__version__; print(*sys.modules)"
    modules = set(python("-c", code).stdout.split())
    assert not modules & {"openvino", "gradio", "numpy", "pydantic", "click"}
    assert {name for name in modules if name.startswith("specdemo")} == {"specdemo"}


def test_an_answer_has_text_tokens_with_origin_and_figures(toy):
    toy.draft.right = 1, 3
    answer = Pipeline(toy).generate("one two", max_new_tokens=7, drafter="model", draft_tokens=2)
    assert answer.text == str(answer) == "one two"
    kinds = "first accepted correction correction accepted correction plain".split()
    assert [token.kind for token in answer.tokens] == kinds
    assert answer.tokens[1].source == "model"
    assert (answer.acceptance_rate, answer.finish_reason) == (2 / 5, "length")
    # Four forwards of 0.01 s and six draft steps of 0.001 s after the first token.
    assert answer.tokens_per_second == pytest.approx(6 / 0.046)
    shown = Pipeline(toy).generate("<script>alert(1)</script> &amp;")._repr_html_()
    text = "".join(re.findall(r'title="\w+">(.*?)</span>', shown))
    assert text == "&lt;script&gt;alert(1)&lt;/script&gt; &amp;amp;"


def test_an_answer_is_short_in_a_shell_and_whole_as_json(toy):
    answer = Pipeline(toy).generate("one two")
    assert repr(answer) == "<Answer 'one two', 8 tokens, stop>"
    assert repr(Pipeline(toy)) == "<Pipeline of toy target, draft by toy draft>"
    assert from_json(answer.to_json()) == answer
    assert answer.time_to_first_token == answer.rounds[0].shown_at > 0
    assert set(dir(specdemo)) >= {"load", "Pipeline", "BadInput", "SpecdemoError"}
    assert specdemo.Busy is Busy


def test_a_prediction_is_a_source_of_drafts(toy):
    text = "one two three four five six"
    predicted = Pipeline(toy).generate(text, prediction=text, drafter="lookup", draft_tokens=4)
    assert predicted.text == text
    sources = {token.source for round_ in predicted.rounds for token in round_.drafted}
    assert "prediction" in sources and predicted.acceptance_rate > 0.5
    long = Question(text, Settings(), prediction=(1,) * 20_000)
    assert len(toy._request(long).prediction) == toy.context_limit


def test_a_closed_pipeline_says_so_and_not_that_it_is_busy():
    with Pipeline(ToySession()) as pipeline:
        ids = pipeline.tokenizer.encode("one")
    for method in (pipeline.generate, pipeline.race, lambda prompt: list(pipeline.stream(prompt))):
        with pytest.raises(specdemo.Closed, match="closed") as caught:
            method(ids)
        assert not isinstance(caught.value, Busy)


def test_n_answers_come_from_one_seed_after_another_with_logprobs(toy):
    options = {"temperature": 5.0, "seed": 2**63 - 1, "max_new_tokens": 9, "logprobs": 2}
    answers = Pipeline(toy).generate(["one two", "three"], n=2, **options)
    read = [(question.instruction, question.settings.seed) for question in toy.questions]
    assert read == [(text, seed) for text in ("one two", "three") for seed in (2**63 - 1, 0)]
    assert [len(answer.logprobs) for answer in answers] == [len(a.tokens) for a in answers]
    assert len(answers[0].logprobs[0].top) == 2
    assert [answer.text for answer in Pipeline(toy).generate("one", n=1)] == ["one"]


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_an_answer_has_its_calls_of_tools_which_go_into_the_next_turn(embedded_pair):
    jinja = (FOLDER / "qwen25.jinja").read_text("utf-8")
    template = Template("qwen25", jinja, tokens={"bos_token": "", "eos_token": ""})
    with ToySession(lambda text: CALL, loaded=replace(embedded_pair, template=template)) as toy:
        pipeline = Pipeline(toy)
        answer = pipeline.generate("1 + 1?", tools=TOOLS, tool_choice="required")
        [call] = answer.calls
        assert (call.name, json.loads(call.arguments), call.id) == ("add", {"a": 1}, "call00000")
        assert answer.instruction == "1 + 1?" and from_json(answer.to_json()) == answer
        prompt = pipeline.tokenizer.decode(toy.questions[0].prompt, special=True)
        assert '"name": "add"' in prompt
        turns = [Message("user", "1 + 1?"), Message("assistant", "", answer.calls)]
        pipeline.generate([*turns, Message("tool", "2")], max_new_tokens=1)
        assert pipeline.generate("1 + 1?", tools=TOOLS, tool_choice="none").calls == ()


def test_the_last_message_is_continued_where_asked_for(embedded_pair):
    with ToySession(lambda text: "three", loaded=embedded_pair) as toy:
        chat = [*CHAT, {"role": "assistant", "content": "One, two,"}]
        Pipeline(toy).generate(chat, continue_final_message=True, max_new_tokens=1)
    [question] = toy.questions
    assert question.continues and question.title == "One, two,"
    assert embedded_pair.tokenizer.decode(question.prompt).endswith("One, two,")


def test_the_figure_has_the_curves_of_both_runs_and_of_races_that_count(toy):
    answer = Pipeline(toy).race("one two three", drafter="model", draft_tokens=1, repeat=0.3)
    *bands, plain, speculative = answer.figure().data
    assert (plain.name, speculative.name) == ("autoregressive", "speculative")
    assert [*plain.y] == [*range(1, 15)]
    assert (speculative.x[0], speculative.y[-1]) == (0.0, 14)
    assert speculative.x[-1] == pytest.approx(0.077)
    assert [(band.fill, max(band.y)) for band in bands] == [("toself", 14)] * 2
    [alone] = Pipeline(toy).generate("one two three").figure().data
    assert alone.name == "speculative"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "one two "),
        ("e t", "on"),
        (["zz", "e f"], "one two thre"),
        ("four five", "one two three four"),
    ],
)
def test_an_answer_and_its_pieces_end_before_a_stop_text_or_when_they_are_closed(toy, stop, text):
    prompt = "one two three four"
    assert Pipeline(toy).generate(prompt, stop=stop).text == text
    assert "".join(Pipeline(toy).stream(prompt, stop=stop)) == text
    pieces = Pipeline(toy).stream(prompt, drafter="none")
    assert next(pieces) == "o"
    pieces.close()
    assert toy.activity.active == 0


class Point(BaseModel):
    x: int


@pytest.mark.parametrize("schema", [Point, Point.model_json_schema(), '{"title": "Point"}'])
def test_a_schema_is_text_a_dict_or_a_pydantic_model(toy, schema):
    Pipeline(toy).generate("a point", json_schema=schema, max_new_tokens=1)
    assert json.loads(toy.questions[-1].settings.json_schema)["title"] == "Point"


def test_objects_of_a_pydantic_model_have_no_other_properties_unless_it_says_so(toy):
    class Open(BaseModel, extra="allow"):
        y: int

    class Line(BaseModel):
        ends: list[Point]
        first: Open

    Pipeline(toy).generate("a line", json_schema=Line, max_new_tokens=1)
    made = json.loads(toy.questions[-1].settings.json_schema)
    assert made["additionalProperties"] is False
    assert made["$defs"]["Point"]["additionalProperties"] is False
    assert made["$defs"]["Open"]["additionalProperties"] is True


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("max_length", "max_new_tokens"),
        ("temprature", "temperature"),
        ("top_K", "top_k"),
    ],
)
def test_an_option_that_is_not_there_brings_the_one_that_may_be_meant(toy, name, meant):
    with pytest.raises(BadInput, match=rf"^{name} is 5; there is no such option \({meant}\?\)\.$"):
        Pipeline(toy).generate("hello", **{name: 5})


def test_a_race_gives_an_answer_with_its_comparison(toy):
    answer = Pipeline(toy).race("one two three", drafter="model", draft_tokens=1)
    assert answer.identical and len(answer.baseline.tokens) == len(answer.tokens) == 14
    # The last 13 tokens: 7 rounds, of which the last drafts nothing, for 13 forwards.
    assert answer.speedup == pytest.approx(0.13 / 0.077)
    assert answer.verdict.interval == pytest.approx((answer.speedup, answer.speedup))
    assert "1.69x in this race; at least 6 decide" in answer._repr_html_()
    assert len(Pipeline(toy).race("one two three", repeat=9.0).repeats) == 24
    races = [at_pace(answer, 1.0, slow) for slow in (1.5, 1.2, 1.8)]
    assert on_show(races).verdict.interval == pytest.approx((1.2, 1.8))
    alone = Pipeline(toy).generate("one two three")
    assert (alone.identical, alone.speedup, alone.verdict) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({}, "temperature", 0),
        ({"do_sample": True}, "temperature", 1),
        ({"do_sample": True, "temperature": 0.7}, "temperature", 0.7),
        ({"do_sample": False, "temperature": 0.7}, "temperature", 0),
        ({"num_assistant_tokens": 3}, "draft_tokens", 3),
        ({"max_new_tokens": 2}, "max_new_tokens", 2),
    ],
)
def test_options_have_the_names_of_transformers(toy, options, name, value):
    Pipeline(toy).generate([1, 2, 3], **{"max_new_tokens": 5} | options)
    [question] = toy.questions
    assert getattr(question.settings, name) == value and question.prompt == (1, 2, 3)


def test_a_word_is_neither_true_nor_false(toy):
    with pytest.raises(BadInput, match="do_sample is 'no'; it must be True or False"):
        Pipeline(toy).generate([1, 2, 3], do_sample="no")


CACHED = {"cache_control": {"type": "ephemeral"}}
PARTS = [{"type": "text", "text": "one ", **CACHED}, {"type": "text", "text": "two"}]
CHAT = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": PARTS}]
TURNS = [Message("system", "Be brief."), Message("user", "one two")]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one two", "one two"),
        ([7, 8], (7, 8)),
        (np.array([7, 8]), (7, 8)),
        (CHAT, TURNS),
        (TURNS, TURNS),
        (["one", "two"], ["one", "two"]),
        ([CHAT, TURNS], [TURNS, TURNS]),
        ([[7, 8], "one", CHAT], [(7, 8), "one", TURNS]),
        (["one"], ["one"]),
        (np.array([[7, 8], [9, 7]]), [(7, 8), (9, 7)]),
        ([np.array([7, 8]), "one"], [(7, 8), "one"]),
    ],
)
def test_a_list_of_strings_or_lists_is_a_batch_and_any_other_is_one_prompt(toy, prompt, prompts):
    answers = Pipeline(toy).generate(prompt, max_new_tokens=9)
    prompts = prompts if isinstance(answers, list) else [prompts]
    texts = [[Message("user", one)] if isinstance(one, str) else one for one in prompts]
    render = partial(toy.loaded.template.render_chat, tokenizer=toy.loaded.tokenizer)
    ids = [one if isinstance(one, tuple) else tuple(render(Chat(one))) for one in texts]
    assert [question.prompt for question in toy.questions] == ids
    if isinstance(answers, list):
        texts = [Pipeline(toy).generate(item, max_new_tokens=9).text for item in prompt]
        assert [answer.text for answer in answers] == texts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "The prompt is 5; it must be a text, a list of messages .* or a list of token ids"),
        (None, "The prompt is None; it must be"),
        ([], r"The prompt is \[\]; it must be"),
        ({"role": "user", "content": "hi"}, r"The prompt is \{.*'role'.*; .* a list of messages"),
        ([1, "a"], r"The prompt is \[1, 'a'\]"),
        ([Message("user", "hi"), 1], "The prompt is .*Message"),
        ([True], r"The prompt is \[True\]"),
        ([1.5], r"The prompt is \[1.5\]"),
        (["a", [1, 2.5]], r"Prompt 1 of the list is \[1, 2.5\]"),
        (["a", []], r"Prompt 1 of the list is \[\]"),
        (["a", ["b"]], "Prompt 1 of the list is a list of prompts"),
        ([{"role": "bot", "content": "hi"}], "messages.0: role is 'bot'; it must be 'system'"),
        ([{"content": "hi"}], "messages.0: role is missing"),
        ([{"role": "user", "content": 5}], "messages.0: content.* is 5"),
        ([{"role": "user", "content": " "}], "A user message is empty"),
        ([Message("user", "a"), Message("assistant", "b")], "The last message is the assistant's"),
    ],
)
def test_wrong_prompts_are_named(toy, prompt, message):
    with pytest.raises(BadInput, match=message):
        Pipeline(toy).generate(prompt)
    assert toy.questions == []


def test_only_generate_takes_several_prompts(toy):
    pipeline = Pipeline(toy)

    def streamed(prompt):
        return asyncio.run(anext(pipeline.astream(prompt)))

    for method in (pipeline.stream, pipeline.race, streamed):
        with pytest.raises(BadInput, match="The prompt is a list of prompts; only generate"):
            method(["one", "two"])


def test_answers_of_a_batch_run_together_and_one_failure_ends_them(endless):
    batch, options = ["one", "two", "three"], {"drafter": "none", "max_new_tokens": 4000}

    def resume() -> None:
        until(lambda: endless.activity.active + endless.activity.waiting == 3)
        endless.fail(Busy("Too many."))
        endless.target.gate.set()

    endless.pause()
    threading.Thread(target=resume).start()
    with pytest.raises(Busy):
        Pipeline(endless).generate(batch, **options)
    assert endless.activity.active == 0 and endless.forwards < 4000


async def collected(pieces) -> list[str]:
    return [piece async for piece in pieces]


def test_pieces_are_streamed_to_asyncio_and_errors_arrive(toy):
    pieces = asyncio.run(collected(Pipeline(toy).astream("one two", drafter="none")))
    assert [piece for piece in pieces if piece] == list("one two")
    toy.fail(Busy("Too many."))
    with pytest.raises(Busy, match="many"):
        asyncio.run(collected(Pipeline(toy).astream("one two three")))
    with pytest.raises(BadInput, match="beams"):
        asyncio.run(collected(Pipeline(toy).astream("one", beams=4)))


def test_streams_run_at_once_and_end_when_their_task_is_cancelled_or_they_are_closed(endless):
    pipeline, options = Pipeline(endless), {"max_new_tokens": 4000, "drafter": "none"}

    async def leave() -> None:
        streams = [pipeline.astream(f"{number}", **options) for number in range(8)]
        tasks = [asyncio.create_task(collected(stream)) for stream in streams[:7]]
        async with aclosing(streams[7]) as pieces:
            while endless.activity.active < 8:
                assert await anext(pieces)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)

    asyncio.run(asyncio.wait_for(leave(), 30))
    until(lambda: endless.activity.active == 0)
    assert endless.forwards < 4000


def plain(hint: object) -> object:
    """A type without pydantic's annotations."""
    return plain(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def test_options_are_the_fields_of_settings():
    hints, settings = get_type_hints(Options), get_type_hints(Settings, include_extras=True)
    extras = {"num_assistant_tokens", "do_sample", *Extras.model_fields}
    assert hints.keys() - extras == settings.keys()
    wider = {
        "stop": ["a", ("a", "b"), ["a"]],
        "logit_bias": [{5: 1.5}],
        "draft_tokens": [3, "auto", None],
        "json_schema": ["{}"],  # dicts and models become text before
    }
    for name, values in wider.items():
        for value in values:
            parse(Settings, {name: value})
    for name in settings.keys() - wider.keys():
        assert hints[name] == plain(settings[name]), name


def test_unusable_options_are_named(toy):
    wrong = (
        {"beams": 4},
        {"temperature": -1},
        {"prediction": 5},
        {"json_schema": {"a": {1}}},
        {"max_new_tokens": "5"},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "any"},
        {"logprobs": 21},
        {"n": 33},
        {"n": True},
    )
    for options in wrong:
        with pytest.raises(BadInput, match=next(iter(options))):
            Pipeline(toy).generate("hello", **options)
    with pytest.raises(BadInput, match="stop is 5; it must be a string or a list."):
        Pipeline(toy).generate("hello", stop=5)
    with pytest.raises(BadInput, match="The prompt is empty"):
        Pipeline(toy).generate(" ", tools=TOOLS)
    with pytest.raises(BadInput, match="'emb' is not a pair"):
        specdemo.load("emb")
    with pytest.raises(BadInput, match=r"'folder/x.gguf' names no pair; .* model="):
        specdemo.load("folder/x.gguf")
    with pytest.raises(BadInput, match="assistant_model needs model or pair"):
        specdemo.load(assistant_model="x")
    for wrong in ({"pair": 3}, {"model": 3}, {"threads": "two"}, {"threads": 0}):
        with pytest.raises(BadInput, match=f"^{next(iter(wrong))} is "):
            specdemo.load(**wrong)
    with pytest.raises(BadInput, match="gone"):
        specdemo.load(model=Path("/gone/model.gguf"))
    for repeat in ("long", -1, math.nan):
        with pytest.raises(BadInput, match="^repeat is "):
            Pipeline(toy).race("hello", repeat=repeat)
    with pytest.raises(BadInput, match="^messages.0: content is None; it must be text"):
        Pipeline(toy).generate([Message("user", None)])
    for wrong, words in (
        ({"tools": None}, "^tools is None; it must be a list"),
        ({"continue_final_message": None}, "^continue_final_message is None; it must be"),
        ({"prompt": [{"role": "user", "content": True}]}, "^messages.0: content is True; it must"),
    ):
        with pytest.raises(BadInput, match=words):
            Pipeline(toy).generate(**{"prompt": "hello", **wrong})


def test_models_are_loaded_as_the_options_say(monkeypatch):
    monkeypatch.setattr("specdemo.api.open_session", opened := Mock())
    models = {"model": "a/b", "assistant_model": "c/d", "weight_format": "int4"}
    models |= {"kv_cache": "f16", "thinking": True}
    specdemo.load(**models, threads=3)
    [pair, _], options = opened.call_args
    assert (pair.choice, options) == (ModelChoice(**models), {"threads": 3})


def test_the_tokenizer_encodes_decodes_and_makes_prompts(embedded_pair):
    tokenizer = ChatTokenizer(embedded_pair)
    ids = tokenizer.encode("one <|im_end|> two")
    assert tokenizer.decode(ids) == "one <|im_end|> two"
    assert len(tokenizer.encode("<|im_end|>", special=True)) == 1
    prompt = tokenizer.apply_chat_template(CHAT)
    assert prompt == tokenizer.apply_chat_template(TURNS)
    assert "Be brief." in tokenizer.decode(prompt, special=True)
    chat = [*CHAT, {"role": "assistant", "content": "three"}]
    continued = tokenizer.apply_chat_template(chat, continue_final_message=True)
    assert tokenizer.decode(continued, special=True).endswith("three")
    with pytest.raises(BadInput, match="The last message is the assistant's"):
        tokenizer.apply_chat_template(chat)
    template = Template("qwen3", (FOLDER / "qwen3.jinja").read_text("utf-8"))
    qwen = ChatTokenizer(replace(embedded_pair, template=template))
    asked = qwen.apply_chat_template("Hi", tools=TOOLS, enable_thinking=True)
    text = tokenizer.decode(asked, special=True)
    assert '"name": "add"' in text and text.endswith("assistant\n"), "no thoughts are begun"
    with pytest.raises(BadInput, match="There are no messages"):
        tokenizer.apply_chat_template([])
    with pytest.raises(BadInput, match="^text is 3; it must be text"):
        tokenizer.encode(3)
    for wrong in ([-1], [1 << 40], "word", [None]):
        with pytest.raises(BadInput, match="^ids is .*; it must be a list of token ids"):
            tokenizer.decode(wrong)


def test_the_notebook_runs(session, monkeypatch, capsys):
    pipeline = Pipeline(session)
    monkeypatch.setattr(pipeline, "close", Mock())
    monkeypatch.setattr("specdemo.api.load", lambda pair: pipeline)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # A notebook takes `await` outside of functions.
    asyncio.run(eval(compile(code, "cells", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {}))
    assert "identical: True" in capsys.readouterr().out and pipeline.close.called


def test_an_answer_to_text_that_is_no_unicode_is_saved_and_read_back(toy):
    answer = Pipeline(toy).generate("\ud800 x", max_new_tokens=2)
    assert from_json(answer.to_json().encode()) == answer and answer.instruction == "? x"
