"""Draft heads: what they read of the target, and drafting with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import openvino as ov
import pytest
from tiny_models import ir_folder

from specdemo.bench.prompts import BenchPrompt
from specdemo.convert import heads, ir
from specdemo.convert.weights import fit_int4
from specdemo.engine.backends.draft_head import DraftHead, fractions
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.faults import ModelError
from specdemo.engine.messages import ModelSettings, Run, Taps
from specdemo.errors import BadInput
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import ModelChoice, chosen_pair
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from tools.replay import record

EXACT = (("INFERENCE_PRECISION_HINT", "f32"), ("KV_CACHE_PRECISION", "f32"))


def write_head(folder, fractions=(), embedding=None, target="made up"):
    """A draft head with made-up weights for hidden states of 64 values and the even ids below 256;
    with a made-up `embedding` too, if none is named."""
    rng = np.random.default_rng(0)

    def made_up(*shape):
        return fit_int4(rng.normal(size=shape).astype(np.float32), np.eye(shape[1]))

    weights = {"mix": made_up(8, 64 * (2 + len(fractions)) + 8), "out": made_up(64, 8)}
    weights |= {"gate_up": made_up(16, 8), "down": made_up(8, 8), "rows": made_up(128, 64)}
    if embedding is None:
        embedding = rng.normal(size=(256, 64)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    written = heads.HeadWeights(weights, np.arange(0, 256, 2), fractions)
    heads.write(written, embedding, folder, target)
    return folder / ir.HEAD


@pytest.fixture(scope="module")
def head_pair(tiny_llama_pair, tmp_path_factory):
    """The Llama-shaped pair with a draft head that is rarely right."""
    xml = write_head(tmp_path_factory.mktemp("head"), (0.5,))
    return dataclasses.replace(tiny_llama_pair, draft=None, head=xml)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(), (1 / 3, 1.0)])
@pytest.mark.parametrize("kind", ["llama", "dolly"])
def test_hidden_states_beside_the_logits_leave_their_bits(request, kind, shares):
    """Of a Llama and of a GPT-NeoX, dynamic and with a fixed shape."""
    if kind == "llama":
        xml = request.getfixturevalue("tiny_llama_pair").target
    else:
        xml = request.getfixturevalue("tiny").dolly / "openvino_model.xml"
    found = []
    for hidden in (None, Taps(fractions=shares), Taps(layers=(0, 1, 2))):
        model = PagedModel(xml, ModelSettings(properties=EXACT, fixed_shapes=(3,), hidden=hidden))
        with model.new_sequence() as sequence:
            [prompt] = model.forward([Run(sequence, list(range(9)), 2)])
            rows = [prompt.rows.copy()]
            next(model.compiling)
            [three] = model.forward([Run(sequence, [1, 2, 3], 3, stepwise=True)])
            rows.append(three.rows.copy())
        found.append(np.concatenate(rows))
        if hidden is None:
            assert three.state is None and three.states(1) is None
        else:
            assert prompt.state.shape == (9, 64 * (len(hidden.layers) or 1 + len(shares)))
            assert three.states(2).tolist() == three.state[:2].tolist()
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_the_last_addition_of_the_residual_stream_is_what_the_final_norm_reads(tiny_llama_pair):
    settings = ModelSettings(properties=EXACT, hidden=Taps(fractions=(1.0,)))
    model = PagedModel(tiny_llama_pair.target, settings)
    with model.new_sequence() as sequence:
        [logits] = model.forward([Run(sequence, [5, 6, 7], 3)])
        normed, stream = np.split(logits.state, 2, axis=-1)
    scale = np.sqrt((stream**2).mean(-1, keepdims=True))
    weights = normed * scale / stream  # an RMS norm's weights: the same for every row
    assert np.allclose(weights[0], weights[1], rtol=1e-3)


def test_steps_of_several_chains_run_together_as_each_does_alone(tmp_path):
    xml = write_head(tmp_path)
    head = DraftHead(xml, ov.Core())
    rng = np.random.default_rng(0)
    states = rng.normal(size=(3, 1, 64)).astype(np.float32)
    steps = [Run(None, [at], 1, True, states=states[at]) for at in range(3)]
    alone = []
    for step in steps:
        [logits] = head.forward([step])
        alone.append((logits.rows.copy(), logits.states(1)))
    for logits, (rows, state) in zip(head.forward(steps), alone, strict=True):
        assert np.allclose(logits.rows, rows, atol=1e-2)
        assert np.allclose(logits.states(1), state, atol=1e-2)
    assert head.seconds > 0 and len(head.head_tokens) == 128


def test_a_compiled_head_keeps_its_matrices_in_four_bits(tmp_path):
    core = ov.Core()
    compiled = core.compile_model(core.read_model(write_head(tmp_path)), "CPU")
    kept = [
        str(node.get_rt_info()["outputPrecisions"].astype(str))
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Const"
    ]
    assert kept.count("i4") == 5


def test_rounding_is_fitted_to_what_the_matrix_is_multiplied_by():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(32, 128)).astype(np.float32)
    given = (rng.normal(size=(500, 12)) @ rng.normal(size=(12, 128))).astype(np.float32)

    def error(squares):
        rounded = fit_int4(matrix, squares).floats()
        return np.square(given @ (matrix - rounded).T).mean()

    assert error(given.T @ given) < error(np.eye(128)) / 2


def test_a_scale_cuts_the_largest_weights_where_the_others_gain(monkeypatch):
    matrix = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)

    def error():
        return np.square(matrix - fit_int4(matrix, np.eye(128)).floats()).mean()

    chosen = error()
    monkeypatch.setattr("specdemo.convert.weights.SHARES", (1.0,))
    assert chosen < 0.95 * error()


def test_a_head_says_which_hidden_states_it_reads(tmp_path):
    core = ov.Core()
    assert fractions(write_head(tmp_path / "a"), core) == ()
    assert fractions(write_head(tmp_path / "b", (0.25, 0.5)), core) == (0.25, 0.5)
    broken = tmp_path / "openvino_head.xml"
    broken.write_text("no")
    with pytest.raises(ModelError, match="not a usable draft head"):
        fractions(broken, core)


def load_with_head(target, head):
    choice = ModelChoice(model=str(target), assistant_model=str(head))
    return load_pair(chosen_pair(choice))


def test_a_head_of_its_target_is_loaded_at_any_precision_of_the_target(tiny_home, tmp_path):
    embedding, _ = heads.tables(ir_folder(tiny_home, "llama-target", "int8") / ir.MODEL)
    head = write_head(tmp_path / "head", (0.5,), embedding)
    for precision in ("int8", "int4", "fp16"):
        target = ir_folder(tiny_home, "llama-target", precision)
        assert load_with_head(target, head.parent).head == head


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "was made for made up \\(1\\): its embedding is not that of"),
        ({"target": ""}, "was made for another target: its embedding"),
        ({"embedding": np.ones((200, 64), np.float32)}, "does not name 128 of 200 tokens"),
        ({"embedding": np.ones((300, 64), np.float32)}, "knows 300 tokens, and .* 256"),
        ({"fractions": (0.5, 2.0)}, "not a usable draft head: it reads the fractions"),
        ({"fractions": (float("nan"),)}, "not a usable draft head: it reads the fractions"),
    ],
    ids=str,
)
def test_a_head_of_another_target_is_refused_at_the_load(tiny_home, tmp_path, change, words):
    head = write_head(tmp_path / "head", **{"target": "made up (1)", **change})
    with pytest.raises((BadInput, ModelError), match=words):
        load_with_head(ir_folder(tiny_home, "llama-target", "int8"), head.parent)


def test_a_head_for_states_of_another_width_is_refused(embedded_pair, tmp_path):
    head = write_head(tmp_path / "head", (1 / 3, 2 / 3))
    with pytest.raises(BadInput, match="reads 192 values, and the states of SmolLM2 have 1728"):
        heads.require_target(head, embedded_pair.target, "SmolLM2")


def test_where_the_target_cannot_feed_it_a_draft_head_is_refused_in_one_sentence(
    head_pair, monkeypatch
):
    with Session(head_pair) as session:
        monkeypatch.setattr(session.engine, "drafts", False)
        with pytest.raises(BadInput, match="draft head, which needs"):
            next(session.ask(Question("Hello", Settings(drafter="model"))))
        assert list(session.ask(Question("Hello", Settings(max_new_tokens=4))))


def test_a_recording_holds_the_chains_of_a_draft_head(head_pair):
    prompts = [BenchPrompt("1", "a", "Count from one to five.")]
    with Session(head_pair) as session:
        for found in record(session, prompts, Settings(max_new_tokens=8)):
            assert [len(chain) for chain in found.head] == [0, 5, 5, 5, 4, 3, 2, 1]
            assert all(token % 2 == 0 for chain in found.head for token, _ in chain)
