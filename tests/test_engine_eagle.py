"""EAGLE-3 heads in the engine: rows, chains and rollback as an independent reference has them, and
the target's states that they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import tiny_gguf
from eagle3_reference import ReferenceHead
from test_convert import EXACT
from test_convert_eagle3 import HIDDEN, VOCABULARY, exported, written

from specdemo.convert import exporting, heads, ir
from specdemo.engine.backends.eagle_head import EagleHead
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.faults import ModelError
from specdemo.engine.messages import ModelSettings, Run, Taps

PROPERTIES = tuple(EXACT.items())
DEPTH = 5


def opened(xml: Path, target: Path | None = None, **settings) -> EagleHead:
    return EagleHead(xml, target, ModelSettings(properties=PROPERTIES, **settings), ov.Core())


class Text:
    """Made-up tokens with states of a target, and the reference's rows of them."""

    def __init__(self, reference: ReferenceHead, seed: int, count: int = 60):
        rng = np.random.default_rng(seed)
        width = reference.weights["fc.weight"].shape[1]
        self.reference = reference
        self.tokens = rng.integers(0, VOCABULARY, count).tolist()
        self.states = rng.normal(size=(count, width)).astype(np.float32)

    def expected(self, rows: int, chain: list[int]) -> np.ndarray:
        """Logits of the last of `rows` true rows, and of a `chain` of tokens after it."""
        own = self.reference
        g, tokens, past = own.fused(self.states[:rows]), self.tokens[:rows], own.empty
        logits, state, past = own.rows(g, tokens, past)
        found = [logits[-1]]
        for token in chain:
            logits, state, past = own.rows(state[-1:], [token], past)
            found.append(logits[0])
        return np.array(found)


@pytest.mark.parametrize("shapes", [(), (1, 2)])
@pytest.mark.parametrize("own", [{}, {"norm_output": True, "target_hidden": 64}], ids=str)
def test_chains_of_several_requests_and_rows_written_anew_are_those_of_the_reference(
    tmp_path, own, shapes
):
    source = written(tmp_path, **own)
    head = opened(exported(source), fixed_shapes=shapes)
    list(head.compiling)
    assert set(head._fixed) == set(shapes)
    texts = [Text(ReferenceHead(source), seed) for seed in range(3)]
    sequences = [head.new_sequence() for _ in texts]
    rng = np.random.default_rng(9)
    for accepted in (20, 3, 1, 6, 4):  # after each, the rows of the chain are dropped
        runs = []
        for text, sequence in zip(texts, sequences, strict=True):
            sequence.truncate(max(sequence.length - DEPTH, 0))
            rows = slice(sequence.length, sequence.length + accepted)
            tokens, states = text.tokens[rows], text.states[rows]
            runs.append(Run(sequence, tokens, 1, accepted < 16, states=states))
        # One request is a step ahead of the others, so rows of both kinds share forwards.
        replies = [
            head.forward(runs[:1])[0].copy(),
            *(one.copy() for one in head.forward(runs[1:])),
        ]
        found = [[reply.rows[0]] for reply in replies]
        chains = rng.integers(0, VOCABULARY, (len(texts), DEPTH)).tolist()
        for at in range(DEPTH):
            steps = zip(sequences, chains, replies, strict=True)
            runs = [
                Run(sequence, [chain[at]], 1, True, chained=reply.state[-1:])
                for sequence, chain, reply in steps
            ]
            replies = [one.copy() for one in head.forward(runs)]
            for rows, reply in zip(found, replies, strict=True):
                rows.append(reply.rows[0])
        for text, sequence, chain, rows in zip(texts, sequences, chains, found, strict=True):
            expected = text.expected(sequence.length - DEPTH, chain)
            assert np.abs(np.array(rows) - expected).max() < 1e-4


def test_rows_of_states_and_of_chains_share_a_forward(tmp_path):
    source = written(tmp_path)
    head, text = opened(exported(source)), Text(ReferenceHead(source), 0)
    first, second = head.new_sequence(), head.new_sequence()
    [reply] = head.forward([Run(first, text.tokens[:8], 1, states=text.states[:8])])
    chained = Run(first, [5], 1, True, chained=reply.state[-1:].copy())
    prompt = Run(second, text.tokens[:9], 1, states=text.states[:9])
    one, other = head.forward([chained, prompt])
    assert np.abs(one.rows[0] - text.expected(8, [5])[1]).max() < 1e-4
    assert np.abs(other.rows[0] - text.expected(9, [])[0]).max() < 1e-4


def test_a_head_without_an_embedding_takes_the_targets(tmp_path, tiny_llama_pair):
    source = written(tmp_path, hidden=64, vocabulary=256, rows=200, embedding=False)
    embedding, _ = heads.tables(tiny_llama_pair.target)
    head = opened(exported(source), tiny_llama_pair.target)
    text = Text(ReferenceHead(source, embedding), 0)
    tokens = [token % 256 for token in text.tokens[:8]]
    with head.new_sequence() as sequence:
        [found] = head.forward([Run(sequence, tokens, 8, states=text.states[:8])])
    own = text.reference
    expected, _, _ = own.rows(own.fused(text.states[:8]), tokens, own.empty)
    assert np.abs(found.rows - expected).max() < 1e-4


def test_an_export_that_gives_no_states_chains_all_the_same(tmp_path):
    """As those of optimum-intel are."""
    source = written(tmp_path)
    xml = exported(source)
    model = ov.Core().read_model(xml)
    model.remove_result(model.output("state").node)
    ov.save_model(model, tmp_path / "other.xml", compress_to_fp16=False)
    text, states = Text(ReferenceHead(source), 0), []
    for path in (xml, tmp_path / "other.xml"):
        head = opened(path)
        [reply] = head.forward(
            [Run(head.new_sequence(), text.tokens[:8], 1, states=text.states[:8])]
        )
        states.append(reply.state.copy())
    assert np.array_equal(*states) and states[0].shape == (8, HIDDEN)


def test_other_models_are_no_heads(tiny_llama_pair):
    with pytest.raises(ModelError, match="is no EAGLE-3 head"):
        opened(tiny_llama_pair.target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_states_of_a_target_are_those_that_enter_its_layers(tmp_path, kind):
    """As transformers names them, from a checkpoint and, of two layers, from a GGUF file."""
    import torch

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
        settings = ModelSettings(properties=PROPERTIES, hidden=Taps(layers))
        paged = PagedModel(folder / ir.MODEL, settings)
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
