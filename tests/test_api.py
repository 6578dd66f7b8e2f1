"""The public face: `import specdemo`, answers, and the notebook of the examples."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from fakes import FakeSession, until
from pydantic import BaseModel

import specdemo
from specdemo import api
from specdemo.api import Message, Options, Pipeline
from specdemo.errors import BadInput, Busy
from specdemo.options import parse
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def test_importing_specdemo_imports_no_other_package():
    code = "import sys, specdemo; specdemo.__version__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert not names & {"openvino", "gradio", "numpy", "pydantic", "click"}
    assert {name for name in done.stdout.split() if name.startswith("specdemo")} == {"specdemo"}


def test_an_answer_has_text_tokens_with_origin_and_figures():
    answer = Pipeline(FakeSession()).generate("one two three")
    assert answer.text == str(answer) == "one two three "
    assert [token.kind for token in answer.tokens] == ["first", "accepted", "correction"]
    assert answer.tokens[1].source == "model"
    assert (answer.acceptance_rate, answer.finish_reason) == (0.5, "length")
    assert answer.tokens_per_second == pytest.approx(100)


def test_the_text_of_an_answer_is_escaped_in_a_notebook():
    shown = Pipeline(FakeSession()).generate("a <script>alert(1)</script> &amp;")._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "&amp;amp;" in shown


def test_pieces_are_streamed_and_closing_ends_the_answer():
    session = FakeSession()
    pieces = Pipeline(session).stream("one two three four")
    assert next(pieces) == "one "
    pieces.close()
    assert session.active == 0 and session.rounds_made < 4


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "one two "),
        ("e t", "on"),
        (["zz", "e f"], "one two thre"),
        ("four five", "one two three four "),
    ],
)
def test_an_answer_and_its_pieces_end_before_a_stop_text(stop, text):
    prompt = "one two three four"
    assert Pipeline(FakeSession()).generate(prompt, stop=stop).text == text
    assert "".join(Pipeline(FakeSession()).stream(prompt, stop=stop)) == text


class Point(BaseModel):
    x: int


@pytest.mark.parametrize("schema", [Point, Point.model_json_schema(), '{"title": "Point"}'])
def test_a_schema_is_text_a_dict_or_a_pydantic_model(schema):
    session = FakeSession()
    Pipeline(session).generate("a point", json_schema=schema)
    assert json.loads(session.settings[-1].json_schema)["title"] == "Point"


def test_a_race_gives_an_answer_with_its_comparison():
    session = FakeSession()
    answer = Pipeline(session).race("one two three")
    assert answer.identical and len(answer.trace.baseline.tokens) == 3
    assert answer.speedup == pytest.approx(answer.speedup_range[0])
    assert f"speed-up {answer.speedup:.2f}" in answer._repr_html_()
    session.repeats = [(0.02, 0.02), (0.02, 0.04), (0.02, 0.08)]
    repeated = Pipeline(session).race("one two three", repeat=1.0)
    low, high = repeated.speedup_range
    assert len(repeated.trace.repeats) == 3 and low < repeated.speedup < high
    alone = Pipeline(session).generate("one two three")
    assert (alone.identical, alone.speedup, alone.speedup_range) == (None, None, None)


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
def test_options_have_the_names_of_transformers(options, name, value):
    session = FakeSession()
    Pipeline(session).generate([1, 2, 3], **options)
    assert getattr(session.settings[0], name) == value
    assert session.prompts == [(1, 2, 3)]


CHAT = [
    {"role": "developer", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}],
    },
]
TURNS = [Message("system", "Be brief."), Message("user", "one two")]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one two", "one two"),
        ([7, 8], (7, 8)),
        (CHAT, TURNS),
        (TURNS, TURNS),
        (["one", "two"], ["one", "two"]),
        ([CHAT, TURNS], [TURNS, TURNS]),
        ([[7, 8], "one", CHAT], [(7, 8), "one", TURNS]),
        (["one"], ["one"]),
    ],
)
def test_a_list_of_strings_or_lists_is_a_batch_and_any_other_is_one_prompt(prompt, prompts):
    session = FakeSession()
    answers = Pipeline(session).generate(prompt)
    if isinstance(answers, list):
        assert [answer.text for answer in answers] == [
            Pipeline(FakeSession()).generate(item).text for item in prompt
        ]
        assert session.prompts == prompts
    else:
        assert session.prompts == [prompts]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "The prompt is 5; it must be a text, a list of messages .*, or a list of token ids|"),
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
def test_wrong_prompts_are_named(prompt, message):
    session = FakeSession()
    with pytest.raises(BadInput, match=message):
        Pipeline(session).generate(prompt)
    assert session.questions == []


def test_only_generate_takes_several_prompts():
    pipeline = Pipeline(FakeSession())
    for method in (pipeline.stream, pipeline.race):
        with pytest.raises(BadInput, match="The prompt is a list of prompts; only generate"):
            method(["one", "two"])
    with pytest.raises(BadInput, match="The prompt is a list of prompts; only generate"):
        asyncio.run(anext(pipeline.astream(["one", "two"])))


def test_answers_of_a_batch_run_together_and_one_failure_ends_them():
    session = FakeSession(["word "], delay=0.01)
    session.errors = [Busy("The models have been closed.")]
    with pytest.raises(Busy):
        Pipeline(session).generate(["one", "two", "three"], max_new_tokens=400)
    assert session.active == 0 and session.rounds_made < 400


async def collected(pieces) -> list[str]:
    return [piece async for piece in pieces]


def test_pieces_are_streamed_to_asyncio_and_errors_arrive():
    session = FakeSession()
    assert asyncio.run(collected(Pipeline(session).astream("one two"))) == ["one ", "two "]
    session.errors = [Busy("The models have been closed.")]
    with pytest.raises(Busy, match="closed"):
        asyncio.run(collected(Pipeline(session).astream("one two three")))
    with pytest.raises(BadInput, match="beams"):
        asyncio.run(collected(Pipeline(session).astream("one", beams=4)))


def test_cancelling_a_task_or_closing_an_iterator_ends_its_answer():
    session = FakeSession(["word "], delay=0.01)
    pipeline = Pipeline(session)

    async def cancelled() -> None:
        task = asyncio.create_task(collected(pipeline.astream("one", max_new_tokens=4000)))
        while not session.rounds_made:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def closed() -> None:
        async with aclosing(pipeline.astream("one", max_new_tokens=4000)) as pieces:
            assert await anext(pieces) == "word "

    for ending in (cancelled, closed):
        asyncio.run(ending())
        until(lambda: session.active == 0)
        assert session.rounds_made < 4000


def test_several_answers_are_streamed_to_asyncio_at_once():
    session = FakeSession(["word "], delay=0.01)
    together = threading.Event()

    async def counted(pieces) -> int:
        count = 0
        async for _ in pieces:
            count += 1
            if session.active == 8:
                together.set()
        return count

    async def answers() -> list[int]:
        pieces = [Pipeline(session).astream(f"{number}", max_new_tokens=9) for number in range(8)]
        return await asyncio.gather(*map(counted, pieces))

    assert asyncio.run(answers()) == [9] * 8 and together.is_set()


def plain(hint: object) -> object:
    """A type without pydantic's annotations."""
    return plain(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def test_options_are_the_fields_of_settings():
    hints = get_type_hints(Options)
    ours = {"num_assistant_tokens", "do_sample", "prediction"}
    settings = get_type_hints(Settings, include_extras=True)
    assert hints.keys() - ours == settings.keys() == {f.name for f in dataclasses.fields(Settings)}
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


def test_unusable_options_are_named():
    wrong = {"beams": 4}, {"temperature": -1}, {"prediction": 5}, {"json_schema": {"a": {1}}}
    for options in wrong:
        with pytest.raises(BadInput, match=next(iter(options))):
            Pipeline(FakeSession()).generate("hello", **options)
    with pytest.raises(BadInput, match="'emb' is not a pair"):
        specdemo.load("emb")
    with pytest.raises(BadInput, match="assistant_model needs model or pair"):
        specdemo.load(assistant_model="x")


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_of_a_batch_have_the_tokens_of_those_alone(embedded_session, temperature):
    prompts = [
        "Name three colours.",
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why is ice cold?"},
        ],
        "Write def add(a, b) in Python.",
    ]
    options = Options(max_new_tokens=24, temperature=temperature, seed=5, stop="zzz")
    pipeline = Pipeline(embedded_session)
    prompts.append(pipeline.tokenizer.apply_chat_template("Count to five."))
    alone = [pipeline.generate(prompt, **options) for prompt in prompts]
    together = pipeline.generate(prompts, **options)
    assert max(answer.trace.shared_with for answer in together) == len(prompts) - 1
    for one, other in zip(alone, together, strict=True):
        assert one.text and one.text == other.text
        assert one.trace.token_ids == other.trace.token_ids


@pytest.mark.slow
def test_the_tokenizer_encodes_decodes_and_makes_prompts(tiny_chat):
    with Pipeline(Session(tiny_chat)) as pair:
        tokenizer = pair.tokenizer
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
        answer = pair.generate(prompt, max_new_tokens=8)
        assert answer.trace.token_ids == pair.generate(CHAT, max_new_tokens=8).trace.token_ids


@pytest.mark.slow
def test_the_notebook_runs(embedded_session, monkeypatch, capsys):
    monkeypatch.setattr(api, "compiled_session", lambda *_, **__: embedded_session)
    monkeypatch.setattr(Pipeline, "close", lambda pipeline: None)  # other tests go on with it
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # A notebook takes `await` outside of functions.
    compiled = compile(code, "cells", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(compiled, {}))
    assert "identical: True" in capsys.readouterr().out
