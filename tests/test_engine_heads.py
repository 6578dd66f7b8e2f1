"""Draft heads and EAGLE-3 heads: what they read of the target, drafting with them; rows, chains and
rollback as an independent reference has them."""

import dataclasses
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
import tiny_gguf
import torch
from conftest import load_own
from reference_heads import EagleReference
from test_convert_eagle3 import SIZES, VOCABULARY, exported, written
from test_engine_paged import CLOSE, F32
from tiny_models import ir_folder, write_head

from specdemo.bench.prompts import BenchPrompt
from specdemo.convert import exporting, heads, model_files
from specdemo.convert.weights import fit_int4
from specdemo.engine.backends.draft_head import DraftHead, fractions
from specdemo.engine.backends.eagle_head import EagleHead
from specdemo.engine.backends.forward import KernelForward
from specdemo.engine.backends.numerics import open_target
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.drafts.model_drafters import DEPTH
from specdemo.engine.engine import Engine
from specdemo.engine.faults import ModelError
from specdemo.engine.forwards import ModelSettings, Run, Taps
from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from tools.replay import record


@pytest.fixture(scope="module")
def head_pair(tiny_llama_pair, tmp_path_factory):
    """The Llama-shaped pair with a draft head that is rarely right."""
    xml = write_head(tmp_path_factory.mktemp("head"), (0.5,))
    return dataclasses.replace(tiny_llama_pair, draft=None, head=xml)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(), (1 / 3, 1.0)])
@pytest.mark.parametrize("kind", ["llama", "dolly"])
def test_hidden_states_beside_the_logits_leave_their_bits(request, kind, shares):
    """Of a Llama and of a GPT-NeoX."""
    if kind == "llama":
        xml = request.getfixturevalue("tiny_llama_pair").target
    else:
        xml = request.getfixturevalue("tiny").dolly / "openvino_model.xml"
    found = []
    for hidden in (None, Taps(fractions=shares), Taps(layers=(0, 1, 2))):
        model = PagedModel(xml, ModelSettings(properties=F32, hidden=hidden))
        with model.new_sequence() as sequence:
            [prompt] = model.forward([Run(sequence, list(range(9)), 2)])
            rows = [prompt.rows.copy()]
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
    settings = ModelSettings(properties=F32, hidden=Taps(fractions=(1.0,)))
    model = PagedModel(tiny_llama_pair.target, settings)
    with model.new_sequence() as sequence:
        [logits] = model.forward([Run(sequence, [5, 6, 7], 3)])
        normed, stream = np.split(logits.state, 2, axis=-1)
    scale = np.sqrt((stream**2).mean(-1, keepdims=True))
    weights = normed * scale / stream  # an RMS norm's weights: the same for every row
    assert np.allclose(weights[0], weights[1], rtol=1e-3)


@pytest.mark.parametrize("in_kernels", [False, True])
def test_steps_of_several_chains_run_together_as_each_does_alone(tmp_path, in_kernels):
    xml = write_head(tmp_path)
    head = DraftHead(xml, ov.Core(), in_kernels)
    assert isinstance(head._instance, KernelForward) == in_kernels
    rng = np.random.default_rng(0)
    states = rng.normal(size=(3, 1, 64)).astype(np.float32)
    steps = [Run(None, [at], 1, True, states=states[at]) for at in range(3)]
    alone = []
    for step in steps:
        [logits] = head.forward([step])
        alone.append((logits.rows.copy(), logits.states(1)))
    for logits, (rows, state) in zip(head.forward(steps), alone, strict=True):
        assert np.allclose(logits.rows, rows, atol=0 if in_kernels else 1e-2)
        assert np.allclose(logits.states(1), state, atol=0 if in_kernels else 1e-2)
    [by_plugin] = DraftHead(xml, ov.Core()).forward(steps[:1])
    assert np.allclose(by_plugin.rows, alone[0][0], atol=0.05 * np.abs(alone[0][0]).max())
    assert head.seconds > 0 and len(head.token_ids) == 128


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


def test_a_head_of_its_target_is_loaded_at_any_precision_of_the_target(tiny_home, tmp_path):
    embedding, _ = heads.tables(ir_folder(tiny_home, "llama-target", "int8") / model_files.MODEL)
    head = write_head(tmp_path / "head", (0.5,), embedding)
    for precision in ("int8", "int4", "fp16"):
        target = ir_folder(tiny_home, "llama-target", precision)
        assert load_own(target, head.parent).head == head


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
        load_own(ir_folder(tiny_home, "llama-target", "int8"), head.parent)


def test_a_head_for_states_of_another_width_is_refused(embedded_pair, tmp_path):
    head = write_head(tmp_path / "head", (1 / 3, 2 / 3))
    with pytest.raises(BadInput, match="reads 192 values, and the states of SmolLM2 have 1728"):
        heads.require_target(head, embedded_pair.target, "SmolLM2")


def test_where_the_target_cannot_feed_it_a_head_is_refused_in_a_sentence(head_pair, monkeypatch):
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


# EAGLE-3 heads


def opened(xml: Path, target: Path | None = None, **settings) -> EagleHead:
    return EagleHead(xml, target, ModelSettings(properties=CLOSE.properties, **settings), ov.Core())


@pytest.mark.parametrize(
    ("own", "gives_states"),
    [({}, True), ({"norm_output": True, "target_hidden": 64}, True), ({}, False)],
    ids=str,
)
def test_chains_of_requests_and_new_rows_are_those_of_the_reference(tmp_path, own, gives_states):
    source = written(tmp_path, **own)
    xml = exported(source)
    if not gives_states:  # as optimum-intel exports a head
        model = ov.Core().read_model(xml)
        model.remove_result(model.output("state").node)
        ov.save_model(model, xml := tmp_path / "other.xml", compress_to_fp16=False)
    head = opened(xml)
    reference, rng = EagleReference(**SIZES | own), np.random.default_rng(9)
    width = reference.fc.in_features
    texts = [  # of three requests: tokens, and states of a target
        (rng.integers(0, VOCABULARY, 60).tolist(), rng.normal(size=(60, width)).astype(np.float32))
        for _ in range(3)
    ]
    sequences = [head.new_sequence() for _ in texts]
    for accepted in (20, 3, 1, 6, 4):  # after each, the rows of the chain are dropped
        runs = []
        for (tokens, states), sequence in zip(texts, sequences, strict=True):
            sequence.truncate(max(sequence.length - DEPTH, 0))
            rows = slice(sequence.length, sequence.length + accepted)
            runs.append(Run(sequence, tokens[rows], 1, accepted < 16, states=states[rows]))
        chains = rng.integers(0, VOCABULARY, (len(texts), DEPTH)).tolist()
        found: list[list[np.ndarray]] = [[] for _ in texts]
        for step in range(DEPTH + 2):
            # The first request is a step ahead of the others, so rows of both kinds share forwards.
            depths = {number: step - (number > 0) for number in range(len(texts))}
            asked = [number for number, depth in depths.items() if 0 <= depth <= DEPTH]
            for number, reply in zip(asked, head.forward([runs[n] for n in asked]), strict=True):
                found[number].append(reply.rows[0].copy())
                token = chains[number][depths[number] : depths[number] + 1]
                state = reply.last_state()
                runs[number] = Run(sequences[number], token, 1, True, chained=state)
        for (tokens, states), chain, rows in zip(texts, chains, found, strict=True):
            read = sequences[0].length - DEPTH
            expected = reference.chain(states[:read], tokens[:read], chain)
            assert np.abs(np.array(rows) - expected).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_states_of_a_target_are_those_that_enter_its_layers(tmp_path, kind):
    """As transformers names them, from a checkpoint and, of two layers, from a GGUF file."""
    ids = [5, 17, 300, 3, 3, 42]
    for count in (2, 6):
        model = tiny_gguf.torch_model(kind, num_hidden_layers=count)
        folder, source = tmp_path / str(count), tmp_path / "model.gguf"
        if count == 2:
            tiny_gguf.write(source, model, kind)
        else:
            source = tmp_path / "model"
            model.save_pretrained(source)
        exporting.export(source, folder, "fp16")
        with torch.no_grad():
            every = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        layers = (0, 1) if count == 2 else (2, count // 2, count - 3, 5)
        settings = ModelSettings(properties=CLOSE.properties, hidden=Taps(layers))
        paged = PagedModel(folder / model_files.MODEL, settings)
        with paged.new_sequence() as sequence:
            [prompt] = paged.forward([Run(sequence, ids[:4], 1)])
            found = [prompt.state.copy()]
            [rest] = paged.forward([Run(sequence, ids[4:], 2, stepwise=True)])
            found = np.vstack([*found, rest.state])
        expected = np.hstack([every[layer][0].numpy() for layer in layers])
        assert np.abs(found - expected).max() < 1e-3


def test_a_layer_that_the_target_lacks_is_one_sentence(tiny_llama_pair):
    with pytest.raises(ModelError, match=r"layers \(2, 1, 3\) of a target that has 2"):
        PagedModel(tiny_llama_pair.target, ModelSettings(hidden=Taps((2, 1, 3))))


# Drafting


LAYERS = (0, 1, 2)
PROMPT = "Count from one to five.\n" * 15  # more tokens than a chunk of the prefill
DRAFTED = Settings(max_new_tokens=24, drafter="model", draft_tokens=3)


def with_eagle_head(pair, folder, weight_format="fp16", **own):
    """The Llama-shaped pair with a made-up EAGLE-3 head, and the head's reference."""
    sizes = {"hidden": 64, "vocabulary": 256, "rows": 200, "width": 16}
    reference = EagleReference(**sizes | own, eagle_aux_hidden_state_layer_ids=LAYERS)
    xml = exported(reference.write(folder / "head"), weight_format)
    return dataclasses.replace(pair, draft=None, head=xml, head_layers=LAYERS), reference


@pytest.fixture(scope="module")
def reference_pair(tiny_llama_pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    pair, reference = with_eagle_head(tiny_llama_pair, folder, embedding=False)
    embedding, _ = heads.tables(tiny_llama_pair.target)
    reference.embedding = torch.from_numpy(embedding)
    return pair, reference


@pytest.fixture(scope="module")
def eagle_pair(tiny_llama_pair, tmp_path_factory):
    """With an embedding of the head's own, and normalized states in its chains."""
    folder = tmp_path_factory.mktemp("normalized")
    return with_eagle_head(tiny_llama_pair, folder, "int8", norm_output=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["tiny_llama_pair", "eagle_pair"])
def test_the_caches_of_target_and_draft_fit_into_the_free_memory(request, pair):
    memory = {"context_limit": 131_072, "available_bytes": lambda: 20_000_000, "cache_mb": 20}
    with closing(Engine(request.getfixturevalue(pair), background=False, **memory)) as engine:
        models = [cache.model for cache in engine._caches.values()]
        assert len(models) == 2
        assert sum(model.pool.limit * model.block_bytes for model in models) <= 20_000_000


def states_of(pair, tokens: list[int]) -> np.ndarray:
    target, _ = open_target(pair, ov.Core())  # with the numerics of a session
    settings = dataclasses.replace(target.settings, hidden=Taps(LAYERS))
    model = PagedModel(pair.target, settings)
    with model.new_sequence() as sequence:
        return model.forward([Run(sequence, tokens, 1)])[0].state.copy()


def test_every_draft_along_an_answer_is_the_references(reference_pair):
    """Rows of the prompt in chunks, rows written anew after rejections, chains of any depth; with
    the prompt in the prefix cache too, and without its rows where only n-grams were asked."""
    pair, reference = reference_pair
    with Session(pair) as session:
        prompts = [PROMPT, PROMPT, PROMPT + "Go."]
        for prompt in prompts:
            *_, trace = session.ask(Question(prompt, DRAFTED))
            right, total = reference.right(trace, pair, partial(states_of, pair))
            assert total > 30 and right == total


def test_its_prompt_is_read_only_where_that_pays(reference_pair):
    pair, _ = reference_pair
    with Session(pair) as session:
        session.prepare()
        head = session.engine.draft.runner
        head.forward = Mock(wraps=head.forward)
        for seconds, text in ((1.0, PROMPT), (1e-7, PROMPT + "!")):
            head.costs.learn({1: seconds, 16: 16 * seconds})
            list(session.ask(Question(text, dataclasses.replace(DRAFTED, draft_tokens=None))))
            runs = [run for call in head.forward.call_args_list for run in call.args[0]]
            assert any(run.rows == 0 for run in runs) == (seconds < 1)
