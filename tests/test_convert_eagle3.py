"""EAGLE-3 heads become IR without torch: logits and states of an independent reference, or one
sentence. As the draft of a pair they are found, fetched, and refused for another target before
anything is compiled."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from conftest import load_own
from reference_heads import EagleReference, ReferenceHead
from safetensors.numpy import load_file, save_file
from test_convert import EXACT, exported
from tiny_gguf import LLAMA3
from tiny_models import ir_folder

from specdemo.convert import model_files
from specdemo.convert.eagle3 import eagle_shape
from specdemo.errors import BadInput, FetchError, SpecdemoError

VOCABULARY, ROWS, HIDDEN, COUNT = 700, 400, 128, 12
SIZES = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "rows": ROWS}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}  # of a target of two layers
SPECULATORS = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}


def written(folder: Path, **own) -> Path:
    """A made-up head in the folder "head"."""
    source = EagleReference(**SIZES | own).write(folder / "head")
    if "speculators_model_type" in own:
        layer = json.loads((source / "config.json").read_text())
        names = (*LAYERS, "architectures", "speculators_model_type", "draft_vocab_size")
        config = {key: layer.pop(key) for key in list(layer) if key in names or "norm_" in key}
        whole = config | {"transformer_layer_config": layer | {"rms_norm_eps": 1e-6}}
        (source / "config.json").write_text(json.dumps(whole))
    return source


def require_rows(reference: ReferenceHead, xml: Path, width: int) -> dict:
    """The head in `xml` gives the rows of the reference for made-up states of this `width`. Gives
    its other results too."""
    rng, (vocabulary, _) = np.random.default_rng(0), reference.embedding.shape
    tokens = rng.integers(0, vocabulary, COUNT)
    states = rng.normal(size=(COUNT, width)).astype(np.float32)
    logits, chained = reference(reference.fused(states), tokens)
    inputs = {"hidden_states": states, "attention_mask": np.ones(COUNT, np.int64)}
    inputs |= {"position_ids": np.arange(COUNT), "input_ids": tokens}
    inputs |= {"inputs_embeds": reference.embedding[tokens].detach().numpy()}
    compiled = ov.Core().compile_model(xml, "CPU", EXACT)
    names = {name for port in compiled.inputs for name in port.names}
    batch = {name: inputs[name][None] for name in names & set(inputs)}
    results = compiled({**batch, "beam_idx": np.zeros(1, np.int32)})
    assert logits.std() > 0.5
    assert abs(results["logits"][0] - logits).max() < 1e-4
    assert abs(results["state"][0] - chained).max() < 1e-4
    return results


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"architectures": ["Eagle3LlamaForCausalLM"], "prefix": "layers.0", "target_hidden": 64},
        {**SPECULATORS, "norm_before_residual": True, "rope_scaling": LLAMA3, "rope_theta": 5e5},
        {**SPECULATORS, "norm_before_fc": True, "norm_output": True, "model_type": "qwen3"},
        {"fc_norm": True, "norms": True, "biases": True, "target_hidden": 96},
        {"rope_scaling": LINEAR, "rows": VOCABULARY},
        {"embedding": False, "eagle_aux_hidden_state_layer_ids": [1, 4, 7, 9]},
    ],
    ids=lambda own: ",".join(own) or "usual",
)
def test_logits_and_the_next_state_are_those_of_the_equations(tmp_path, own):
    reference = EagleReference(**SIZES | own)
    if not own.get("embedding", True):
        reference.embedding = torch.randn(VOCABULARY, HIDDEN)
    results = require_rows(reference, exported(written(tmp_path, **own)), reference.fc.in_features)
    assert np.array_equal(results["d2t"] + np.arange(len(reference.tokens)), reference.tokens)


def test_the_layer_has_the_asked_bits_and_embedding_and_output_matrix_at_least_eight(tmp_path):
    model = ov.Core().read_model(exported(written(tmp_path), "int4"))
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    kinds = [node.get_element_type() for node in constants if len(node.shape) > 1]
    assert kinds.count(ov.Type.i8) == 2
    assert kinds.count(ov.Type.i4) == 8


@pytest.mark.parametrize(
    ("own", "count", "expected"),
    [
        ({}, 28, (2, 14, 25)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 36]}, 36, (2, 18, 36)),
        ({**SPECULATORS, **LAYERS}, 2, (0, 1, 2)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}, 36, (2, 18, 33)),
    ],
)
def test_the_configuration_names_the_targets_layers_that_are_read(tmp_path, own, count, expected):
    shape = eagle_shape(written(tmp_path, **own))
    assert shape.target_layers(count) == expected and shape.states == 3


@pytest.mark.parametrize(
    ("own", "tensors", "message"),
    [
        ({"architectures": ["EagleLlamaForCausalLM"]}, {}, "is 'EagleLlamaForCausalLM'; it must"),
        ({"architectures": "Eagle3"}, {}, "architectures is 'Eagle3'"),
        ({"num_hidden_layers": 2}, {}, "num_hidden_layers is 2; it must be 1"),
        ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu'; it must be 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, {}, "scales its positions .*yarn"),
        ({"model_type": "mistral"}, {}, "model_type is 'mistral'; it must be 'llama' or 'qwen3'"),
        ({"layer_types": ["sliding_attention"]}, {}, "sliding_attention.*must be 'full_attention'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "state is false; it must be true"),
        ({"eagle_config": 1}, {}, "eagle_config is 1"),
        ({"norm_before_fc": True, "fc_norm": True}, {}, "norm_before_fc and fc_norm exclude"),
        ({"num_attention_heads": None}, {}, "num_attention_heads is missing"),
        ({"hidden_size": "wide"}, {}, "hidden_size is 'wide'"),
        ({"eagle_aux_hidden_state_layer_ids": [2, -1]}, {}, "is -1"),
        ({}, {"fc.weight": None}, "fc.weight should be .* there is none"),
        ({}, {"d2t": None}, "no tensor d2t"),
        ({}, {"norm.weight": lambda norm: norm[:-1]}, r"it is \[127\]"),
        ({}, {"d2t": lambda d2t: d2t[:-1]}, "d2t should be 400 integers"),
        ({}, {"d2t": lambda d2t: d2t.astype(np.float32)}, "of F32"),
        ({}, {"d2t": lambda d2t: d2t + VOCABULARY}, "damaged tensor d2t"),
        ({}, {"d2t": lambda d2t: -np.arange(ROWS)}, "damaged tensor d2t"),
        ({}, {"extra.weight": lambda _: np.ones(4, np.float32)}, "extra.weight, which EAGLE-3"),
        ({"target_hidden_size": 64}, {"embed_tokens.weight": None}, "whose embedding it would use"),
    ],
)
def test_what_the_graph_lacks_and_what_contradicts_it_is_named(tmp_path, own, tensors, message):
    source = written(tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | own))
    weights = load_file(source / "model.safetensors")
    for name, change in tensors.items():
        old = weights.pop(name, None)
        if change:
            weights[name] = change(old)
    save_file(weights, source / "model.safetensors")
    with pytest.raises((BadInput, FetchError), match=message):
        exported(source)
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


# As the draft of a pair


loaded = partial(load_own, weight_format="int8")
head_of = partial(written, hidden=64, vocabulary=256, rows=200, width=16, **LAYERS)


@pytest.fixture
def target(tiny_home, monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return ir_folder(tiny_home, "llama-target", "int8")


def test_a_head_is_known_by_its_configuration_and_converted_once(target, tmp_path):
    source = head_of(tmp_path)
    pair = loaded(target, source)
    assert pair.draft is None and pair.head_layers == (0, 1, 2) and pair.info.draft == "head"
    assert pair.head.is_file() and pair.head.parent.parent.name == "exported"
    made = pair.head.stat().st_mtime_ns
    assert loaded(target, source).head.stat().st_mtime_ns == made
    assert loaded(target, pair.head.parent).head == pair.head  # IR is used as it is


def test_a_head_on_the_hub_needs_no_tokenizer(server, target, tmp_path):
    server.add_folder("o/head", head_of(tmp_path))
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
    ],
    ids=str,
)
def test_a_head_for_another_target_is_one_sentence(target, tmp_path, own, message, monkeypatch):
    monkeypatch.setattr(ov.Core, "compile_model", lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(BadInput, match=message):
        loaded(target, head_of(tmp_path, **own))


@pytest.mark.usefixtures("target")  # for its home
@pytest.mark.parametrize("change", [{"device": "torch:cpu"}, {"draft_device": "torch:cpu"}])
def test_a_target_on_a_torch_device_gives_no_states(tiny_home, tmp_path, change):
    with pytest.raises(BadInput, match="head is a draft head, which needs states"):
        loaded(tiny_home / "llama-target", head_of(tmp_path), **change)


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
    folder = loaded(target, head_of(tmp_path)).head.parent
    core = ov.Core()
    model = core.read_model(folder / model_files.MODEL)
    result = model.output("d2t").node
    other = ov.opset13.constant(change(result.input_value(0).get_node().data))
    other.output(0).get_tensor().set_names({"d2t"})
    result.input(0).replace_source_output(other.output(0))
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.json").write_bytes((folder / "config.json").read_bytes())
    ov.save_model(model, changed / model_files.MODEL, compress_to_fp16=False)
    with pytest.raises(BadInput, match="IR of changed does not go with its config.json"):
        loaded(target, changed)
    (changed / model_files.MODEL).write_bytes((target / model_files.MODEL).read_bytes())
    (changed / model_files.WEIGHTS).write_bytes((target / model_files.WEIGHTS).read_bytes())
    with pytest.raises(SpecdemoError, match="is no draft head"):
        loaded(target, changed)
