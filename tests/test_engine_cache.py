"""The paged KV cache on a real (tiny) model: whatever is appended, truncated, forked, batched or
released, the logits are those of computing the whole text anew."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from specdemo.convert.weights import compressed
from specdemo.engine import graph, products
from specdemo.engine import model as paged
from specdemo.engine.checkpoint import release_file
from specdemo.engine.faults import CacheFull, ModelError
from specdemo.engine.messages import PREFILL_CHUNK, ModelSettings, Run, next_chunk
from specdemo.engine.model import PagedModel
from specdemo.engine.profile import MERGED_TOKENS

F32 = (("INFERENCE_PRECISION_HINT", "f32"), ("KV_CACHE_PRECISION", "f32"))

CLOSE = ModelSettings(
    properties=(*F32, ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")), fixed_shapes=(1, 2, 4, 8)
)
"""Kernels differ by TOLERANCE logits at most; dynamic quantization would magnify that to 0.5."""

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def xml(tiny_llama_pair):
    return tiny_llama_pair.target


@pytest.fixture(scope="module")
def model(xml):
    model = PagedModel(xml, CLOSE)
    list(model.compiling)
    return model


def recomputed(model: PagedModel, tokens: list[int]) -> np.ndarray:
    with model.new_sequence() as fresh:
        return model.forward([Run(fresh, tokens, 1)])[0].rows[0].copy()


class CacheMachine(RuleBasedStateMachine):
    """Random appends, truncations, forks, batches and releases, each checked by recomputing."""

    model: PagedModel

    @initialize(tokens=st.integers(1, 3))
    def begin(self, tokens):
        self.model.least_tokens = tokens
        self.sequences = [self.model.new_sequence()]
        self.texts: list[list[int]] = [[]]

    def any_sequence(self, data) -> int:
        return data.draw(st.integers(0, len(self.sequences) - 1))

    @rule(data=st.data(), several=st.booleans(), stepwise=st.booleans(), alone=st.booleans())
    def append(self, data, several, stepwise, alone):
        chosen = range(len(self.sequences)) if several else [self.any_sequence(data)]
        token, most = st.integers(0, 255), 5 if several else 40
        pieces = [data.draw(st.lists(token, min_size=1, max_size=most)) for _ in chosen]
        runs = [
            Run(self.sequences[at], piece, data.draw(st.integers(1, len(piece))), stepwise, alone)
            for at, piece in zip(chosen, pieces, strict=True)
        ]
        rows = [logits.rows.copy() for logits in self.model.forward(runs)]
        for at, run, got in zip(chosen, runs, rows, strict=True):
            self.texts[at] += run.tokens
            assert len(got) == run.rows
            assert np.abs(got[-1] - recomputed(self.model, self.texts[at])).max() < TOLERANCE

    @rule(data=st.data())
    def truncate(self, data):
        at = self.any_sequence(data)
        length = data.draw(st.integers(0, len(self.texts[at])))
        self.sequences[at].truncate(length)
        del self.texts[at][length:]

    @precondition(lambda self: len(self.sequences) < 4)
    @rule(data=st.data())
    def fork(self, data):
        at = self.any_sequence(data)
        length = data.draw(st.integers(0, len(self.texts[at])))
        self.sequences.append(self.model.fork(self.sequences[at], length))
        self.texts.append(self.texts[at][:length])

    @precondition(lambda self: len(self.sequences) > 1)
    @rule(data=st.data())
    def release(self, data):
        at = self.any_sequence(data)
        self.sequences.pop(at).release()
        self.texts.pop(at)

    @invariant()
    def blocks_are_counted_and_texts_held(self):
        held = [block for sequence in self.sequences for block in sequence.blocks]
        for block in set(held):
            assert self.model.pool.references[block] == held.count(block)
        assert self.model.pool.used == len(set(held))
        assert [sequence.tokens for sequence in self.sequences] == self.texts

    def teardown(self):
        self.model.least_tokens = 1
        for sequence in self.sequences:
            sequence.release()
        assert self.model.pool.used == 0


def test_cache_agrees_with_recomputing_after_any_history(model):
    CacheMachine.model = model
    machine = CacheMachine.TestCase
    machine.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
    machine().runTest()


def test_log_sum_and_margin_are_those_of_the_rows(model):
    with model.new_sequence() as sequence:
        logits = model.forward([Run(sequence, [1, 2, 3, 4], 3)])[0]
        assert logits.log_sum == pytest.approx(
            np.log(np.exp(logits.rows.astype(np.float64)).sum(axis=1)), abs=1e-4
        )
        two = np.sort(logits.rows, axis=1)[:, -2:]
        assert [logits.margin(at) for at in range(3)] == pytest.approx(two[:, 1] - two[:, 0])


def test_a_large_bound_of_the_cache_takes_no_memory_before_it_is_used(xml):
    model = PagedModel(xml, CLOSE)
    before = psutil.Process().memory_info().rss
    model.resize_cache(100_000)
    assert model.pool.limit * model.block_bytes > 1_000_000_000
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * 500, 1)])
    assert psutil.Process().memory_info().rss - before < 100_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give no pages back on request")
def test_a_model_answers_the_same_after_its_file_was_released(xml, model):
    before = recomputed(model, [1, 2, 3])
    release_file(xml.with_suffix(".bin"))
    maps = Path("/proc/self/smaps").read_text().split(str(xml.with_suffix(".bin").resolve()))
    assert len(maps) > 1 and all("Rss:                   0 kB" in part for part in maps[1:])
    assert np.array_equal(recomputed(model, [1, 2, 3]), before)


def test_a_bounded_cache_refuses_and_stays_usable(xml):
    bounded = PagedModel(xml, CLOSE)
    bounded.resize_cache(3)
    with bounded.new_sequence() as sequence:
        bounded.forward([Run(sequence, [1] * (2 * bounded.block_size), 1)])
        with pytest.raises(CacheFull, match="3 allowed"):
            bounded.forward([Run(sequence, [1] * (2 * bounded.block_size), 1)])
        assert sequence.length == 2 * bounded.block_size
        bounded.forward([Run(sequence, [1] * bounded.block_size, 1)])
    assert bounded.pool.used == 0


def test_a_bounded_vocabulary_gives_the_logits_of_the_ids_below_it(xml, model):
    bounded = PagedModel(xml, dataclasses.replace(CLOSE, vocabulary=200))
    assert bounded.vocabulary_size == 200
    few = recomputed(bounded, [5, 6, 7])
    assert few == pytest.approx(recomputed(model, [5, 6, 7])[:200], abs=TOLERANCE)


def test_an_output_matrix_whose_groups_share_a_scale_stays_compressed_when_it_is_cut():
    integers = ov.Tensor(ov.Type.i4, ov.Shape([6, 2, 32]))
    products.raw_bytes(integers)[:] = np.random.default_rng(0).integers(0, 256, 192, np.uint8)
    weights = compressed(integers, np.arange(1, 13, dtype=np.float16).reshape(6, 2, 1))
    given = ops.parameter([-1, 1, 64], ov.Type.f32, name="state")
    logits = ops.matmul(given, weights, False, True)
    decoder = ov.Model([ops.result(logits)], [given])
    state, rows = np.random.default_rng(1).normal(size=(2, 1, 64)).astype(np.float32), [0, 1]
    [expected] = ov.Core().compile_model(decoder, "CPU")([state]).values()
    graph.limit_logits(decoder, 4)
    assert "Slice" not in {node.get_type_name() for node in decoder.get_ops()}
    found = ov.Core().compile_model(decoder, "CPU")([state, np.array(rows, np.int32)])[0]
    assert found == pytest.approx(expected[..., :4], rel=1e-5)


def test_a_file_that_is_no_decoder_is_refused_with_a_sentence(xml, tmp_path):
    copy = tmp_path / "openvino_model.xml"
    for damaged in (lambda: copy.write_text("<net/>"), lambda: shutil.copy(xml, copy)):
        damaged()  # the second has no weights
        with pytest.raises(ModelError, match="not a readable"):
            PagedModel(copy)


@pytest.mark.parametrize("size", [2, 31, PREFILL_CHUNK])
def test_chunks_cover_the_prompt_and_never_leave_one_token_alone(size):
    for length in range(2, 300):
        tokens, lengths, rows = list(range(length)), [], 0
        while not rows:
            chunk, rows = next_chunk(tokens[sum(lengths) :], size)
            assert chunk == tokens[sum(lengths) :][: len(chunk)]
            lengths.append(len(chunk))
        assert sum(lengths) == length and rows == 1
        assert min(lengths) > 1 and max(lengths) <= min(size + 1, MERGED_TOKENS)


def test_products_of_one_input_are_joined_and_give_the_same_logits(xml, model, monkeypatch):
    layers = json.loads((xml.parent / "config.json").read_text())["num_hidden_layers"]
    products.fuse_products(decoder := graph.read_decoder(ov.Core(), xml))
    joined = [node for node in decoder.get_ops() if node.get_type_name() == "VariadicSplit"]
    assert len(joined) == 2 * layers  # queries, keys and values; gate and up
    monkeypatch.setattr(paged, "fuse_products", lambda decoder: None)
    apart = recomputed(PagedModel(xml, CLOSE), list(range(5, 25)))
    assert np.abs(recomputed(model, list(range(5, 25))) - apart).max() < TOLERANCE
