"""Anything as a saved run, a link, a body or a GGUF header: it is read, or refused in a sentence.

Each property has 200 examples; `make test-hostile` tries more of them for FUZZ_SECONDS.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from unittest.mock import Mock

import numpy as np
from fakes import FakeSession
from gguf import GGUFWriter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from specdemo.convert import gguf_file
from specdemo.errors import BadInput, FetchError
from specdemo.pairs.choice import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, from_json, to_json
from specdemo.ui import offers, routes
from specdemo.ui.routes import PageGuard

EXAMPLES, SECONDS = 200, float(os.environ.get("FUZZ_SECONDS", 0))


def fuzz(*strategies):
    """The property holds for EXAMPLES, and for as many again and again until SECONDS are over."""

    def decorate(property):
        check = settings(max_examples=EXAMPLES, deadline=None)(given(*strategies)(property))

        def repeated():
            until, tried = time.monotonic() + SECONDS, 0
            while not tried or time.monotonic() < until:
                check()
                tried += EXAMPLES
            print(f"{property.__name__}: {tried:,} examples")

        return repeated

    return decorate


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


@fuzz(st.sampled_from(list(paths(json.loads(SAMPLE)))), st.just("deleted") | JSON)
def test_a_trace_with_anything_changed_is_read_or_refused_in_a_sentence(path, value):
    trace = json.loads(SAMPLE)
    node = reduce(getitem, path[:-1], trace)
    if value == "deleted":
        del node[path[-1]]
    else:
        node[path[-1]] = value
    parses_or_says(json.dumps(trace))


@fuzz(st.binary(max_size=200) | st.text(max_size=200) | JSON.map(json.dumps))
@example("[" * 100_000)
@example('{"a":' * 50_000)
@example('{"schema": 1e999}')
def test_anything_at_all_is_refused_in_a_sentence(upload):
    parses_or_says(upload)


@fuzz(
    st.dictionaries(
        st.sampled_from(offers.NAMES) | st.text(max_size=8),
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
    values = offers.from_link(query, ["embedded", "dolly-3b"], defaults)
    assert len(values["question"]) <= offers.LONGEST_LINK_QUESTION
    assert offers.settings_of(values)
    models = offers.models_of(values)
    assert models.pair in ("embedded", "dolly-3b") and not models.target
    assert (models.device, models.draft_device) == ("CPU", "CPU")


FIELDS = "data fn_index session_hash trigger_id event_id component_id fn_name instruction path meta"
NAMES = st.sampled_from(FIELDS.split()) | st.text(max_size=8)
VALUES = st.sampled_from(["abc", "opened", 0, True, [], ["hi"] * 9, {"path": "/etc/passwd"}]) | JSON
GUARD = PageGuard()
functions = {number: Mock(inputs=[Mock(skip_api=False)] * number) for number in range(3)}
functions[9] = Mock(inputs=[Mock(skip_api=False)] * 9, api_name="generate")
GUARD.attach(Mock(fns=functions), "/tmp")


@fuzz(
    st.sampled_from(list(routes.CALLS)),
    st.binary(max_size=50)
    | st.dictionaries(st.sampled_from(FIELDS.split()) | st.text(max_size=8), VALUES).map(
        json.dumps
    ),
)
def test_a_body_of_the_page_becomes_plain_values_or_is_refused_in_a_sentence(path, body):
    scope = {"method": "POST", "path": path, "headers": []}
    body = body if isinstance(body, bytes) else body.encode()
    try:
        read = json.loads(GUARD.validate_request(scope, body))
    except (BadInput, HTTPException) as error:
        assert 10 < len(str(error)) < 400
        return
    lists = [one for one in read.values() if isinstance(one, list)]
    values = [*read.values(), *(one for items in lists for one in items)]
    assert not any(isinstance(one, dict) for one in values)
    assert [name for name, one in read.items() if isinstance(one, list)] in ([], ["data"])


def test_a_saved_run_of_the_first_versions_still_opens():
    old = json.loads(SAMPLE)
    del old["shared_with"], old["baseline"]["shared_with"]
    for token in old["baseline"]["tokens"]:
        del token["margin"]
    old["baseline"]["near_ties"] = [{"position": 1, "margin": 0.01}]
    old["settings"] = {"max_new_tokens": 5, "draft_tokens": "auto"}
    trace = parses_or_says(json.dumps(old))
    assert trace.shared_with == trace.baseline.shared_with == 0


@cache
def gguf_header() -> tuple[tempfile.TemporaryDirectory, bytes]:
    """A folder for files, and the content of a small one."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "tiny.gguf")
    writer = GGUFWriter(path, "llama")
    for name in ("block_count", "attention.head_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{name}", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_types([1, 1, 1])
    writer.add_tensor("token_embd.weight", np.ones((3, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.ones((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder, path.read_bytes()


@fuzz(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4))
def test_a_gguf_header_with_anything_changed_is_read_or_refused_in_a_sentence(changes):
    folder, content = gguf_header()
    data = bytearray(content)
    for at, value in changes:
        data[at] = value
    path = Path(folder.name, "changed.gguf")
    path.write_bytes(data)
    try:
        gguf_file.decoder(gguf_file.read(path))
    except (BadInput, FetchError) as error:
        assert 10 < len(str(error)) < 800 and "\n" not in str(error)
