"""Anything as a saved run, a link, a body or a GGUF header: it is read, or refused in a sentence.

Each property has 100 examples; `make test-hostile` tries more of them for FUZZ_SECONDS.
"""

import dataclasses
import json
import os
import struct
import tempfile
import time
from contextlib import suppress
from copy import deepcopy
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from helpers import paths, race_trace
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from specdemo.convert import configuration, exporting, gguf_decoder, gguf_file, gguf_tokenizer
from specdemo.errors import BadInput, FetchError, MissingPackage
from specdemo.pairs.registry import PAIRS, ModelChoice
from specdemo.runs.saved_run import from_json
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace
from specdemo.server.page import model_menu, routes
from specdemo.server.page.routes import PageGuard
from specdemo.text.templates import Chat, Message, chat_template

EXAMPLES, SECONDS = 100, float(os.environ.get("FUZZ_SECONDS", 0))


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


TRACE = race_trace("one ", "two ", "three ")
SAMPLE = dataclasses.replace(TRACE, shared_with=3).to_json()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def sentence(error: Exception) -> str:
    assert 10 < len(str(error)) < 800 and "\n" not in str(error)
    return str(error)


def parses_or_says(text: str | bytes) -> Trace | None:
    try:
        trace = from_json(text)
    except BadInput as error:
        assert len(sentence(error)) < 300
        return None
    assert from_json(trace.to_json()) == trace
    return trace


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


MENU = model_menu.ModelMenu(ModelChoice("embedded"), shared=False)


@fuzz(
    st.dictionaries(
        st.sampled_from(["question", *model_menu.HELP]) | st.text(max_size=8),
        st.text(max_size=40) | st.floats().map(str) | st.sampled_from(["own", "auto", "dolly-3b"]),
        max_size=8,
    )
)
def test_a_link_with_anything_in_it_gives_settings_and_models_that_can_be_used(query):
    usual = dataclasses.asdict(Settings())
    values = {"question": "", **usual, **MENU.defaults, **MENU.from_link(query)}
    assert values["question"] == query.get("question", "")
    chosen = dataclasses.asdict(model_menu.settings_of(values))
    assert {name for name in usual if chosen[name] != usual[name]} <= query.keys()
    models = model_menu.models_of(values)
    assert models.pair in {pair.name for pair in PAIRS} and not models.model
    assert (models.device, models.draft_device) == ("CPU", "CPU")


FIELDS = "data fn_index session_hash trigger_id event_id component_id fn_name instruction path meta"
NAMES = st.sampled_from(FIELDS.split()) | st.text(max_size=8)
VALUES = st.sampled_from(["abc", "opened", 0, True, [], ["hi"] * 9, {"path": "/etc/passwd"}]) | JSON
GUARD = PageGuard()
functions = {number: Mock(inputs=[Mock(skip_api=False)] * number) for number in range(3)}
functions[9] = Mock(inputs=[Mock(skip_api=False)] * 9, api_name="generate")
GUARD.blocks = Mock(fns=functions)


@fuzz(
    st.sampled_from(list(routes.CALLS)),
    st.binary(max_size=50) | st.dictionaries(NAMES, VALUES).map(json.dumps),
)
def test_a_body_of_the_page_becomes_plain_values_or_is_refused_in_a_sentence(path, body):
    scope = {"method": "POST", "path": path, "headers": []}
    body = body if isinstance(body, bytes) else body.encode()
    try:
        read = json.loads(GUARD.validate_request(scope, body))
    except (BadInput, HTTPException) as error:
        assert 10 < len(str(error)) < 400
        return
    lists = [item for item in read.values() if isinstance(item, list)]
    values = [*read.values(), *(item for items in lists for item in items)]
    assert not any(isinstance(item, dict) for item in values)
    assert [name for name, item in read.items() if isinstance(item, list)] in ([], ["data"])


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
def checkpoint_folder() -> tuple[tempfile.TemporaryDirectory, dict[str, dict]]:
    """A folder with weights, and a configuration of each family that is converted without torch."""
    folder = tempfile.TemporaryDirectory()
    table = {"token": {"dtype": "F32", "shape": [3, 32], "data_offsets": [0, 384]}}
    header = json.dumps(table).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(384)
    Path(folder.name, "model.safetensors").write_bytes(content)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9}
    rope = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    rope["original_max_position_embeddings"] = 64
    own = {"rope_parameters": rope, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5}
    neox = {"rotary_pct": 0.25, "layer_norm_eps": 1e-5, "use_parallel_residual": False}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": None}
    families = {"llama": sizes | own, "qwen2": sizes | own, "gpt_neox": sizes | neox}
    families["gpt2"] = gpt2 | {"vocab_size": 9}
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 8, 13]}, "fc_norm": True}
    names = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    families["eagle3"] = sizes | own | layers | names | {"draft_vocab_size": 3}
    more = {"intermediate_size": 64, "eos_token_id": [1, 2], "max_position_embeddings": 64}
    return folder, {kind: {"model_type": kind, **item, **more} for kind, item in families.items()}


NUMBERS = [0, -1, 10**7, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")]
ODD = [*NUMBERS, "x", "8", True, None, [], {}, ["llama"], [1, 2], "deleted"]
WRONG = st.sampled_from(ODD) | JSON


def changed(base: dict, changes: list[tuple[int, object]]) -> dict:
    """`base` with the values at these places changed, also those in its dicts."""
    data = json.loads(json.dumps(base))
    places = list(paths(data))
    for place, value in changes:
        *path, key = places[place % len(places)]
        with suppress(KeyError, TypeError, IndexError):  # an earlier change took it away
            reduce(getitem, path, data)[key] = deepcopy(value)
            if value == "deleted":
                del reduce(getitem, path, data)[key]
    return data


CHANGES = st.lists(st.tuples(st.integers(0, 50), WRONG), min_size=1, max_size=3)


@fuzz(st.sampled_from(["llama", "qwen2", "gpt_neox", "gpt2", "eagle3"]), CHANGES)
@example("llama", [(3, 10**7)])
def test_a_configuration_with_anything_changed_is_read_or_refused_in_a_sentence(kind, changes):
    folder, families = checkpoint_folder()
    source = Path(folder.name)
    (source / "config.json").write_text(json.dumps(changed(families[kind], changes)))
    try:
        stop_ids, context = configuration.read_config(source)
        assert all(0 <= id < 2**31 for id in stop_ids) and 0 <= context < 2**31
    except BadInput as error:
        sentence(error)
    refusals = pytest.raises((BadInput, FetchError, MissingPackage))
    with patch.object(exporting, "_NEEDED", ("no_such_package",)), refusals as refused:
        exporting.export(source, source / "out", "int8")
    sentence(refused.value)


TOKENS = {f"{name}_token": "<x>" for name in ("bos", "eos", "unk", "pad")}
TOKENS["eos_token"] = {"content": "</s>", "special": True}
TOKENS["chat_template"] = [{"name": "default", "template": "{{ messages[0].content }}"}]


@fuzz(CHANGES)
def test_tokens_with_anything_changed_give_a_template_or_a_sentence(changes):
    folder, _ = checkpoint_folder()
    text = json.dumps(changed(TOKENS, changes))
    Path(folder.name, "tokenizer_config.json").write_text(text)
    try:
        template = chat_template(Path(folder.name))
        assert template is None or template.text(Chat([Message("user", "Why?")])).count("Why?") == 1
    except (BadInput, FetchError) as error:
        sentence(error)


@cache
def gguf_folder() -> tuple[tempfile.TemporaryDirectory, bytes]:
    """A folder for files, and the content of a small one."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "tiny.gguf")
    write_gguf(path, METADATA)
    gguf_tokenizer.write_tokenizer(gguf_file.read(path), path.parent)
    assert gguf_decoder.read_decoder(gguf_file.read(path))
    return folder, path.read_bytes()


METADATA = {
    "llama.block_count": 1,
    "llama.attention.head_count": 1,
    "llama.context_length": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.scaling.type": "linear",
    "llama.rope.scaling.factor": 2.0,
    "general.architecture": "llama",
    "general.alignment": 32,
    "tokenizer.chat_template": "{{ messages[0].content }}",
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<s>", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1],
    "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}
KINDS = {bool: (7, "?"), int: (11, "q"), float: (12, "d"), str: (8, ""), list: (9, "")}


def packed(value: object, kind: type) -> bytes:
    """A value of a GGUF file's metadata, without its type. Raises struct.error, AttributeError."""
    if kind is list:
        inner = type(value[0]) if value else int
        items = b"".join(packed(item, inner) for item in value)
        return struct.pack("<IQ", KINDS[inner][0], len(value)) + items
    if kind is str:
        return struct.pack("<Q", len(value.encode())) + value.encode()
    return struct.pack(f"<{KINDS[kind][1]}", value)


def write_gguf(path: Path, metadata: dict) -> None:
    fields = [
        packed(name, str) + struct.pack("<I", KINDS[type(value)][0]) + packed(value, type(value))
        for name, value in metadata.items()
    ]
    tensors = {"token_embd.weight": 4, "blk.0.attn_q.weight": 32}
    packs = {name: struct.pack("<IQQIQ", 2, 32, rows, 0, 0) for name, rows in tensors.items()}
    infos = [packed(name, str) + info for name, info in packs.items()]
    counts = struct.pack("<IQQ", 3, len(infos), len(fields))
    path.write_bytes(b"GGUF" + counts + b"".join(fields + infos) + bytes(8000))


def read_gguf(path: Path) -> None:
    """Everything that a header says is read, or refused in a sentence."""
    try:
        file = gguf_file.read(path)
        gguf_decoder.read_decoder(file)
        gguf_tokenizer.write_tokenizer(file, path.parent)
        assert configuration.read_config(path.parent)
    except (BadInput, FetchError) as error:
        sentence(error)


@fuzz(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=4))
@example([(293, 10)])  # a line break in a name that the refusal quotes
def test_a_gguf_header_with_any_bytes_changed_is_read_or_refused_in_a_sentence(changes):
    folder, content = gguf_folder()
    data = bytearray(content)
    for place, value in changes:
        data[place] = value
    path = Path(folder.name, "changed.gguf")
    path.write_bytes(data)
    read_gguf(path)


@fuzz(CHANGES)
def test_a_gguf_file_with_any_value_changed_is_read_or_refused_in_a_sentence(changes):
    folder, _ = gguf_folder()
    path = Path(folder.name, "changed.gguf")
    try:
        write_gguf(path, changed(METADATA, changes))
    except (struct.error, KeyError, AttributeError, TypeError):
        return  # no such file can hold this value
    read_gguf(path)
