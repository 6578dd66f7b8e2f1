"""The paged model on a real (tiny) one: whatever is appended, truncated, forked, batched or
released, the logits are those of computing the whole text anew. And what changes its graph."""

import dataclasses
import shutil

import numpy as np
import openvino as ov
import psutil
import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from openvino import opset13 as ops

from specdemo.convert.weights import compressed
from specdemo.engine.backends import graph, kernels
from specdemo.engine.backends.paged import CACHE, PagedModel
from specdemo.engine.cache import KVSequence
from specdemo.engine.faults import CacheFull, ModelError
from specdemo.engine.forwards import PREFILL_CHUNK, ModelSettings, Run, next_chunk
from specdemo.engine.profile import MERGED_TOKENS

F32 = (("INFERENCE_PRECISION_HINT", "f32"), ("KV_CACHE_PRECISION", "f32"))

CLOSE = ModelSettings(properties=(*F32, ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")))
"""Kernels differ by TOLERANCE logits at most; dynamic quantization would magnify that to 0.5."""

KERNELS = kernels.FORWARD, kernels.KERNELS
OWN = ModelSettings(properties=(F32[0], CACHE, KERNELS))
"""With these the engine's own kernels compute the whole decoder."""

TOLERANCE = 1e-4
CORE, RNG = ov.Core(), np.random.default_rng(0)


@pytest.fixture(scope="module")
def xml(tiny_llama_pair):
    return tiny_llama_pair.target


@pytest.fixture(scope="module")
def model(xml):
    return PagedModel(xml, CLOSE)


@pytest.fixture(scope="module")
def own(xml):
    pytest.importorskip("llvmlite")
    return PagedModel(xml, OWN)


def recomputed(model: PagedModel, tokens: list[int]) -> np.ndarray:
    with model.new_sequence() as fresh:
        return model.forward([Run(fresh, tokens, 1)])[0].rows[0].copy()


class CacheMachine(stateful.RuleBasedStateMachine):
    """Random appends, truncations, forks, batches and releases, each checked by recomputing. The
    logits' sums are those of their rows."""

    model: PagedModel

    @stateful.initialize(tokens=st.integers(1, 3))
    def begin(self, tokens):
        self.model.min_tokens = tokens
        self.texts: dict[KVSequence, list[int]] = {self.model.new_sequence(): []}

    def drawn(self, data) -> tuple[KVSequence, int]:
        """Any sequence, and any number of its tokens."""
        sequence = list(self.texts)[data.draw(st.integers(0, len(self.texts) - 1))]
        return sequence, data.draw(st.integers(0, sequence.length))

    @rule(data=st.data(), several=st.booleans(), stepwise=st.booleans())
    def append(self, data, several, stepwise):
        runs = []
        for sequence in list(self.texts) if several else [self.drawn(data)[0]]:
            most = 5 if several else 40
            piece = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=most))
            runs.append(Run(sequence, piece, data.draw(st.integers(1, most)), stepwise))
        runs = [dataclasses.replace(run, rows=min(run.rows, len(run.tokens))) for run in runs]
        rows = []
        for logits in self.model.forward(runs):
            sums = np.log(np.exp(logits.rows.astype(np.float64)).sum(axis=1))
            assert np.abs(logits.log_sum - sums).max() < TOLERANCE
            rows.append(logits.rows.copy())
        for run, got in zip(runs, rows, strict=True):
            self.texts[run.sequence] += run.tokens
            assert len(got) == run.rows
            expected = recomputed(self.model, self.texts[run.sequence])
            assert np.abs(got[-1] - expected).max() < TOLERANCE

    @rule(data=st.data())
    def truncate(self, data):
        sequence, length = self.drawn(data)
        sequence.truncate(length)
        del self.texts[sequence][length:]

    @precondition(lambda self: len(self.texts) < 4)
    @rule(data=st.data())
    def fork(self, data):
        sequence, length = self.drawn(data)
        self.texts[self.model.fork(sequence, length)] = self.texts[sequence][:length]

    @precondition(lambda self: len(self.texts) > 1)
    @rule(data=st.data())
    def release(self, data):
        sequence, _ = self.drawn(data)
        sequence.release()
        del self.texts[sequence]

    @stateful.invariant()
    def blocks_are_counted_and_sequences_hold_the_texts(self):
        blocks = [block for sequence in self.texts for block in sequence.blocks]
        for block in set(blocks):
            assert self.model.pool.references[block] == blocks.count(block)
        assert self.model.pool.used == len(set(blocks))
        assert all(sequence.tokens == text for sequence, text in self.texts.items())

    def teardown(self):
        self.model.min_tokens = 1
        for sequence in self.texts:
            sequence.release()
        assert self.model.pool.used == 0


@pytest.mark.parametrize("computed_by", ["model", "own"])
def test_cache_agrees_with_recomputing_after_any_history(request, computed_by):
    CacheMachine.model = request.getfixturevalue(computed_by)
    machine = CacheMachine.TestCase
    machine.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
    machine().runTest()


def test_a_large_bound_of_the_cache_takes_no_memory_before_it_is_used(xml):
    model = PagedModel(xml, CLOSE)
    before = psutil.Process().memory_info().rss
    model.resize_cache(100_000)
    assert model.pool.limit * model.block_bytes > 1_000_000_000
    recomputed(model, [1] * 500)
    assert psutil.Process().memory_info().rss - before < 100_000_000


def test_a_bounded_cache_refuses_and_stays_usable(xml):
    bounded = PagedModel(xml, CLOSE)
    bounded.resize_cache(3)
    with bounded.new_sequence() as sequence:
        run = Run(sequence, [1] * (2 * bounded.block_size), 1)
        bounded.forward([run])
        with pytest.raises(CacheFull, match="3 allowed"):
            bounded.forward([run])
        assert sequence.length == 2 * bounded.block_size
        bounded.forward([dataclasses.replace(run, tokens=[1] * bounded.block_size)])
    assert bounded.pool.used == 0


def test_logits_of_some_tokens_are_those_of_all_less_ids_that_the_model_lacks(xml, model):
    ids = np.array([*range(0, model.vocabulary_size, 3), model.vocabulary_size])
    few = PagedModel(xml, dataclasses.replace(CLOSE, token_ids=ids))
    assert few.token_ids.tolist() == ids[:-1].tolist()
    wanted = recomputed(model, [5, 6, 7])[ids[:-1]]
    assert recomputed(few, [5, 6, 7]) == pytest.approx(wanted, abs=TOLERANCE)


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


# Matrix products: joined and cut.

EXACT = dict(CLOSE.properties)
ALIVE: list[ov.Tensor] = []  # graphs share the memory of these


def weights(kind: str, columns: int, group: int) -> ov.Output:
    """A matrix of 64 rows."""
    integers = ov.Tensor(getattr(ov.Type, kind), ov.Shape([64, columns // group, group]))
    ALIVE.append(integers)
    flat = graph.raw_bytes(integers)
    flat[:] = RNG.integers(0, 256, flat.size, np.uint8)
    scales = RNG.random((64, columns // group, 1)).astype(np.float16)
    return compressed(integers, scales)


def network(matrix: ov.Output) -> ov.Model:
    x = ops.parameter([-1, 1, matrix.get_shape()[1]], ov.Type.f32)
    return ov.Model([ops.result(ops.matmul(x, matrix, False, True))], [x])


def kinds(model: ov.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ops()]


def test_an_output_matrix_whose_groups_share_a_scale_stays_compressed_when_it_is_cut():
    decoder = network(weights("i4", 64, 32))
    state, rows = RNG.normal(size=(2, 1, 64)).astype(np.float32), np.arange(2, dtype=np.int32)
    whole = CORE.compile_model(decoder, "CPU", EXACT)([state])[0]
    graph.limit_logits(decoder, ids := np.array([1, 2, 40, 63]))
    assert "Slice" not in kinds(decoder)
    cut = CORE.compile_model(decoder, "CPU", EXACT)([state, rows])[0]
    assert cut == pytest.approx(whole[..., ids], rel=1e-4, abs=1e-3)
