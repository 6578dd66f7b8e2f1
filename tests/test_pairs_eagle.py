"""A published EAGLE-3 head as the draft of a pair: found, fetched, and refused for another target
before anything is compiled."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from conftest import load_own
from eagle3_reference import write_made_up_head
from safetensors.numpy import load_file, save_file
from tiny_models import ir_folder

from specdemo.convert import ir
from specdemo.errors import BadInput, SpecdemoError

SIZES = {"hidden": 64, "vocabulary": 256, "rows": 200, "width": 16}
LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}  # of a target of two layers


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))


loaded = partial(load_own, weight_format="int8")


def head_folder(folder: Path, **own) -> Path:
    write_made_up_head(folder / "head", **SIZES | LAYERS | own)
    return folder / "head"


@pytest.fixture
def target(tiny_home) -> Path:
    return ir_folder(tiny_home, "llama-target", "int8")


def test_a_head_is_known_by_its_configuration_and_converted_once(target, tmp_path):
    source = head_folder(tmp_path)
    pair = loaded(target, source)
    assert pair.draft is None and pair.head_layers == (0, 1, 2) and pair.info.draft == "head"
    assert pair.head.is_file() and pair.head.parent.parent.name == "exported"
    made = pair.head.stat().st_mtime_ns
    assert loaded(target, source).head.stat().st_mtime_ns == made
    assert loaded(target, pair.head.parent).head == pair.head  # IR is used as it is


def test_a_head_on_the_hub_needs_no_tokenizer(server, target, tmp_path):
    server.add_folder("o/head", head_folder(tmp_path))
    pair = loaded(target, "o/head")
    assert pair.head_layers == (0, 1, 2) and pair.info.draft_revision
    server.repositories.clear()
    assert loaded(target, "o/head").head == pair.head


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"target_hidden": 96}, "made for a target with 96 values a state, and .* has 64"),
        ({"vocabulary": 300}, "with 300 tokens in the vocabulary, and .* has 256"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 14, 25]}, "layers 2, 14, 25 .* has 2"),
        ({"eagle_aux_hidden_state_layer_ids": None}, "layers 2, 1, -1 .* has 2"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3"),
    ],
    ids=str,
)
def test_a_head_for_another_target_is_one_sentence(target, tmp_path, own, message, monkeypatch):
    monkeypatch.setattr(ov.Core, "compile_model", lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(BadInput, match=message):
        loaded(target, head_folder(tmp_path, **own))


@pytest.mark.parametrize("change", [{"device": "torch:cpu"}, {"draft_device": "torch:cpu"}])
def test_a_target_on_a_torch_device_gives_no_states(tiny_home, tmp_path, change):
    with pytest.raises(BadInput, match="head is an EAGLE-3 head, which needs states"):
        loaded(tiny_home / "llama-target", head_folder(tmp_path), **change)


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets + 100,
        lambda offsets: offsets - 1,
        lambda offsets: offsets[:0],
        lambda offsets: offsets[:-1],
        lambda offsets: -np.arange(len(offsets)),
        lambda offsets: np.full(len(offsets), 2**62),
    ],
    ids=["too large", "negative", "none", "too few", "all the same", "huge"],
)
def test_ir_that_does_not_go_with_its_configuration_is_one_sentence(target, tmp_path, change):
    folder = loaded(target, head_folder(tmp_path)).head.parent
    core = ov.Core()
    model = core.read_model(folder / ir.MODEL)
    result = model.output("d2t").node
    other = ov.opset13.constant(change(result.input_value(0).get_node().data))
    other.output(0).get_tensor().set_names({"d2t"})
    result.input(0).replace_source_output(other.output(0))
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.json").write_bytes((folder / "config.json").read_bytes())
    ov.save_model(model, changed / ir.MODEL, compress_to_fp16=False)
    with pytest.raises(BadInput, match="IR of changed does not go with its config.json"):
        loaded(target, changed)
    (changed / ir.MODEL).write_bytes((target / ir.MODEL).read_bytes())
    (changed / ir.WEIGHTS).write_bytes((target / ir.WEIGHTS).read_bytes())
    with pytest.raises(SpecdemoError, match="is no EAGLE-3 head"):
        loaded(target, changed)


def test_a_damaged_head_leaves_nothing_behind(target, tmp_path):
    source = head_folder(tmp_path)
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"d2t": np.full(200, 900)}, source / "model.safetensors")
    with pytest.raises(BadInput, match="damaged tensor d2t"):
        loaded(target, source)
    assert not list((tmp_path / "home").glob("exported/head*"))


def test_the_configuration_is_read_where_it_is_nested(target, tmp_path):
    source = head_folder(tmp_path, architectures=["Eagle3Speculator"], prefix="layers.0")
    config = json.loads((source / "config.json").read_text())
    top = {key: config.pop(key) for key in (*LAYERS, "architectures", "draft_vocab_size")}
    nested = top | {"speculators_model_type": "eagle3", "transformer_layer_config": config}
    (source / "config.json").write_text(json.dumps(nested))
    assert loaded(target, source).head_layers == (0, 1, 2)
