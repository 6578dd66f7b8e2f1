"""The public face: `import specdemo`, answers, and the notebook of the examples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeSession
from pydantic import BaseModel

import specdemo
from specdemo.api import Pipeline
from specdemo.errors import BadInput
from specdemo.runs.trace import Trace

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


class Point(BaseModel):
    x: int


@pytest.mark.parametrize("schema", [Point, Point.model_json_schema(), '{"title": "Point"}'])
def test_a_schema_is_text_a_dict_or_a_pydantic_model(schema):
    session = FakeSession()
    Pipeline(session).generate("a point", json_schema=schema)
    assert json.loads(session.settings[-1].json_schema)["title"] == "Point"


def test_a_race_gives_a_trace_with_its_baseline():
    trace = Pipeline(FakeSession()).race("one two three")
    assert isinstance(trace, Trace) and trace.identical and len(trace.baseline.tokens) == 3


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


def test_unusable_options_are_named():
    for options in ({"beams": 4}, {"temperature": -1}):
        with pytest.raises(BadInput, match=next(iter(options))):
            Pipeline(FakeSession()).generate("hello", **options)
    with pytest.raises(BadInput, match="'emb' is not a pair"):
        specdemo.load("emb")
    with pytest.raises(BadInput, match="assistant_model needs model or pair"):
        specdemo.load(assistant_model="x")


@pytest.mark.slow
def test_the_notebook_runs(embedded_pair):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=NOTEBOOK.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "identical: True" in done.stdout
