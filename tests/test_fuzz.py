"""Anything at all as a saved run or a link: it is read, or refused in one sentence.

`make test-hostile` tries FUZZ_EXAMPLES of each kind.
"""

from __future__ import annotations

import dataclasses
import json
import os
from functools import reduce
from operator import getitem

from fakes import FakeSession
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdemo.errors import BadInput
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import Trace, from_json, to_json
from specdemo.ui import choice

FUZZ = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", 200)), deadline=None)


*_, TRACE = FakeSession().race("one two three", Settings())
SAMPLE = to_json(dataclasses.replace(TRACE, shared_with=3))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def parses_or_says(text: str | bytes) -> Trace | None:
    try:
        trace = from_json(text)
    except BadInput as error:
        assert 10 < len(str(error)) < 300 and "\n" not in str(error)
        return None
    assert from_json(to_json(trace)) == trace
    return trace


def paths(node, path=()):
    """The keys to every value inside a trace."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield *path, key
        if isinstance(value, dict | list):
            yield from paths(value, (*path, key))


@FUZZ
@given(st.sampled_from(list(paths(json.loads(SAMPLE)))), st.just("deleted") | JSON)
def test_a_trace_with_anything_changed_is_read_or_refused_in_a_sentence(path, value):
    trace = json.loads(SAMPLE)
    node = reduce(getitem, path[:-1], trace)
    if value == "deleted":
        del node[path[-1]]
    else:
        node[path[-1]] = value
    parses_or_says(json.dumps(trace))


@FUZZ
@example("[" * 100_000)
@example('{"a":' * 50_000)
@example('{"schema": 1e999}')
@given(st.binary(max_size=200) | st.text(max_size=200) | JSON.map(json.dumps))
def test_anything_at_all_is_refused_in_a_sentence(upload):
    parses_or_says(upload)


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(choice.NAMES) | st.text(max_size=8),
        st.text(max_size=40) | st.integers().map(str) | st.floats().map(str),
        max_size=8,
    )
)
def test_a_link_with_anything_in_it_gives_settings_and_models_that_can_be_used(query):
    defaults = {
        "question": "",
        **dataclasses.asdict(Settings()),
        **dataclasses.asdict(ModelChoice("embedded")),
    }
    values = choice.from_link(query, ["embedded", "dolly-3b"], defaults)
    assert len(values["question"]) <= choice.LONGEST_LINK_QUESTION
    assert choice.settings_of(values)
    models = choice.models_of(values)
    assert models.pair in ("embedded", "dolly-3b") and not models.target
    assert (models.device, models.draft_device) == ("CPU", "CPU")


def test_a_saved_run_of_the_first_versions_still_opens():
    old = json.loads(SAMPLE)
    del old["shared_with"], old["baseline"]["shared_with"]
    for token in old["baseline"]["tokens"]:
        del token["margin"]
    old["baseline"]["near_ties"] = [{"position": 1, "margin": 0.01}]
    old["settings"] = {"max_new_tokens": 5, "draft_tokens": "auto"}
    trace = parses_or_says(json.dumps(old))
    assert trace.shared_with == trace.baseline.shared_with == 0
