"""Decoders with recurrent layers (docs/reference/recurrent.md): the graphs of optimum-intel's
exports with made-up weights. Whatever is accepted, rejected, forked or batched, their logits are
those of one token at a time, to the bit."""

import re
from contextlib import ExitStack

import numpy as np
import openvino as ov
import pytest
import recurrent_models
import torch
from openvino import opset13 as ops
from test_engine_paged import CLOSE as EXACT

from specdemo.engine.backends import numerics, recurrent
from specdemo.engine.backends.graph import layers_of, named_input, page_attention
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.cost_model import LARGEST
from specdemo.engine.faults import CacheFull, ModelError
from specdemo.engine.forwards import PREFILL_CHUNK, Run
from specdemo.engine.prefixes import PrefixCache

TEXT = np.random.default_rng(0).integers(0, 256, 300).tolist()


@pytest.fixture(scope="module", params=recurrent_models.CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family, tmp_path_factory):
    model = PagedModel(recurrent_models.write_ir(family, tmp_path_factory.mktemp(family)), EXACT)
    [*_, invariance] = numerics.measure_invariance(model)
    assert invariance.tokens == 64 and invariance.merging and invariance.chunks
    return model


@pytest.fixture(autouse=True)
def nothing_is_left(model):
    yield
    assert model.pool.used == model.pool.states.used == 0


def rows_of(model, sequence, tokens, stepwise=True) -> np.ndarray:
    [logits] = model.forward([Run(sequence, tokens, len(tokens), stepwise)])
    return logits.rows.copy()


def prefilled(model, length):
    """A sequence of `length` tokens of TEXT, in chunks as prompts are read."""
    sequence = model.new_sequence()
    for begin in range(0, length, PREFILL_CHUNK):
        rows_of(model, sequence, TEXT[begin : min(begin + PREFILL_CHUNK, length)], False)
    return sequence


@pytest.fixture(scope="module")
def reference(model):
    """Gives the logits after the tokens of TEXT from `begin` to `end`, one token a forward, after
    a prompt of `prompt` tokens."""
    known = {}

    def part(prompt: int, begin: int, end: int) -> np.ndarray:
        if prompt not in known:
            with prefilled(model, prompt) as sequence:
                tokens = TEXT[prompt : prompt + 100]
                rows = [rows_of(model, sequence, [token]) for token in tokens]
            known[prompt] = np.concatenate(rows)
        return known[prompt][begin - prompt : end - prompt]

    return part


def test_logits_are_those_of_transformers(family, model):
    require_logits_of_transformers(family, model)


def require_logits_of_transformers(family: str, model: PagedModel) -> None:
    with torch.no_grad():
        wanted = recurrent_models.torch_model(family)(torch.tensor([TEXT[:150]])).logits[0].numpy()
    with model.new_sequence() as sequence:
        parts = [rows_of(model, sequence, TEXT[at : at + 50], False) for at in (0, 50)]
        parts += [rows_of(model, sequence, TEXT[at : at + 10]) for at in range(100, 150, 10)]
    # With AVX512 the largest difference is 1.2e-5 of the largest logit.
    assert np.abs(np.concatenate(parts) - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_every_length_of_acceptance_goes_back_to_the_same_bits(model, reference):
    for prompt in (24, 31, 57):  # within a block, and across the ends of a block and of a chunk
        with prefilled(model, prompt) as prompted:
            for accepted in range(LARGEST):
                end = prompt + accepted
                with model.fork(prompted, prompt) as sequence:
                    draft = [*TEXT[prompt:end], *[7] * (LARGEST - accepted)]
                    rows = rows_of(model, sequence, draft)
                    assert np.array_equal(rows[:accepted], reference(prompt, prompt, end))
                    sequence.truncate(end)
                    sequence.settle()
                    rows = rows_of(model, sequence, TEXT[end : end + 3])
                    assert np.array_equal(rows, reference(prompt, end, end + 3))


def test_random_schedules_of_accepting_and_rejecting_have_the_bits_of_single_tokens(
    model, reference
):
    rng = np.random.default_rng(1)
    with ExitStack() as prompts:
        prompted = [prompts.enter_context(prefilled(model, size)) for size in (1, 30, 60, 128, 200)]
        for _ in range(200):
            source = prompted[rng.integers(len(prompted))]
            prompt = source.length
            with model.fork(source, prompt) as sequence:
                for _ in range(rng.integers(2, 5)):
                    begin, size = sequence.length, rng.integers(1, LARGEST + 1)
                    end = begin + int(rng.integers(0, size + 1))
                    wrong = rng.integers(0, 256, begin + size - end)
                    rows = rows_of(model, sequence, [*TEXT[begin:end], *wrong])
                    sequence.truncate(end)
                    if rng.integers(2):
                        sequence.settle()
                    assert sequence.length == end
                    assert np.array_equal(rows[: end - begin], reference(prompt, begin, end))


def test_a_sequence_goes_back_to_states_that_it_has(model, reference):
    with prefilled(model, 100) as sequence:
        for token in TEXT[100:130]:
            rows_of(model, sequence, [token])
        assert [sequence.reach(length) for length in (130, 114, 113, 62)] == [130, 114, 63, 0]
        sequence.truncate(113)
        assert sequence.length == 63 and sequence.tokens == TEXT[:63]
        assert np.array_equal(rows_of(model, sequence, TEXT[63:68]), reference(63, 63, 68))


def test_eight_requests_in_a_forward_get_the_bits_that_each_gets_by_itself(model, reference):
    lengths = (1, 5, 31, 32, 33, 63, 64, 100)
    sequences = [prefilled(model, length) for length in lengths]
    for sizes in ([8] * 8, [1] * 8, [1, 2, 3, 4, 5, 6, 7, 16]):
        runs = [
            Run(sequence, TEXT[length : length + size], size, stepwise=True)
            for sequence, length, size in zip(sequences, lengths, sizes, strict=True)
        ]
        rows = [logits.rows.copy() for logits in model.forward(runs)]
        for run, length, found in zip(runs, lengths, rows, strict=True):
            assert np.array_equal(found, reference(length, length, run.sequence.length))
            run.sequence.truncate(length)
    for sequence in sequences:
        sequence.release()


def test_a_padded_token_has_the_bits_of_others_and_changes_no_state(model, reference):
    wanted = reference(31, 31, 60)
    model.min_tokens = 2
    try:
        with prefilled(model, 31) as sequence:
            rows = [rows_of(model, sequence, [token]) for token in TEXT[31:60]]
        assert np.array_equal(np.concatenate(rows), wanted)
    finally:
        model.min_tokens = 1


@pytest.mark.parametrize("spacing, states", [(50, (189, 126, 63)), (100, (189, 63, 63))])
def test_a_prompt_reuses_the_states_at_the_ends_of_chunks(
    model, reference, monkeypatch, spacing, states
):
    monkeypatch.setattr(model.pool, "spacing", spacing)
    cache = PrefixCache(model, PREFILL_CHUNK)
    with prefilled(model, 200) as sequence:
        cache.keep(model.fork(sequence, 200))
    assert model.pool.used == len(cache.blocks())
    ends = zip((200, 200, 188, 70, 60), (200, *states, 0), strict=True)
    for index, (length, reused) in enumerate(ends):
        found, _ = cache.find((*TEXT[:length], 7, 7), any_length=not index)
        assert found.length == reused
        if reused:
            rows = rows_of(model, found, TEXT[reused : reused + 5])
            assert np.array_equal(rows, reference(reused, reused, reused + 5))
        found.release()
    cache.make_room(0)


def test_states_are_taken_from_the_blocks_that_a_request_may_hold(model):
    most = PrefixCache(model, PREFILL_CHUNK).max_blocks(len(TEXT), len(TEXT) + 40)
    with model.new_sequence() as sequence:
        for begin in range(0, len(TEXT), PREFILL_CHUNK):
            rows_of(model, sequence, TEXT[begin : begin + PREFILL_CHUNK], False)
        for _ in range(40):
            rows_of(model, sequence, [1])
            assert len(sequence.held_blocks()) == model.pool.used <= most
        rows_of(model, sequence, [1] * LARGEST)
        assert model.pool.used <= most


def test_a_table_that_is_too_small_refuses_and_stays_usable(model, family, tmp_path):
    small = PagedModel(recurrent_models.write_ir(family, tmp_path), EXACT)
    small.resize_cache(6 * small.pool.state_size)
    with small.new_sequence() as sequence:
        rows_of(small, sequence, [1, 2], False)
        with pytest.raises(CacheFull, match="allowed"):
            rows_of(small, sequence, [1] * LARGEST)
        assert sequence.length == 2
        rows_of(small, sequence, [3])
    assert small.pool.used == small.pool.states.used == 0


def refusal(graph: ov.Model, folder) -> str:
    ov.save_model(graph, folder / "other.xml")
    with pytest.raises(ModelError) as error:
        PagedModel(folder / "other.xml", EXACT)
    return str(error.value)


def test_recurrent_layers_that_cannot_be_paged_are_refused_in_one_sentence(model, family, tmp_path):
    graph = ov.Core().read_model(recurrent_models.write_ir(family, tmp_path))
    first = ops.constant(np.zeros((1, 8, 4), np.float32))
    state = ops.read_value(first, "other", ov.Type.f32, ov.PartialShape([-1, 8, 4]))
    graph.add_sinks([ops.assign(state, "other")])
    pattern = (
        r"The IR has recurrent layers of a kind [^.]*OpenVINO [\d.]+ [^.]*; choose [^;]*\.5 [^.]*\."
    )
    assert re.fullmatch(pattern, refusal(graph, tmp_path))


def test_a_state_of_another_shape_is_refused_in_one_sentence(model, family, tmp_path):
    xml = recurrent_models.write_ir(family, tmp_path)
    changed = re.sub(r'variable_shape="\?,(\d+),(\d)"', r'variable_shape="?,\1,7"', xml.read_text())
    xml.write_text(changed)
    with pytest.raises(ModelError, match="not a readable OpenVINO model; fetch or export it again"):
        PagedModel(xml, EXACT)


def test_an_input_of_a_newer_exporter_is_refused_in_one_sentence(model, family, tmp_path):
    graph = ov.Core().read_model(recurrent_models.write_ir(family, tmp_path))
    added = named_input("linear_mask", [-1], ov.Type.i64)
    state = ops.convert(ops.reduce_sum(added, ops.constant([0]), False), "f32")
    logits = graph.get_results()[0].input(0)
    logits.replace_source_output(ops.add(logits.get_source_output(), state).output(0))
    graph.add_parameters([added])
    ov.save_model(graph, tmp_path / "other.xml")
    other = PagedModel(tmp_path / "other.xml", EXACT)
    with other.new_sequence() as sequence, pytest.raises(ModelError) as error:
        rows_of(other, sequence, [1, 2])
    assert re.fullmatch(
        r"The IR has the input 'linear_mask', which is not .*\.1\.", str(error.value)
    )


def rotary_product(graph: ov.Model) -> ov.Node:
    """The product of inverse frequencies and positions."""
    node = next(node for node in graph.get_ops() if node.get_type_name() == "Cos")
    while node.get_type_name() != "MatMul":
        sources = [value.get_node() for value in node.input_values()]
        node = next(source for source in sources if source.get_type_name() != "Constant")
    return node


def test_rotary_positions_of_an_unknown_form_are_refused_in_one_sentence(tmp_path):
    graph = ov.Core().read_model(recurrent_models.write_ir("qwen3_5_text", tmp_path))
    node = rotary_product(graph)
    zero = ops.convert(ops.multiply(graph.input("position_ids").node, ops.constant(0)), "f32")
    scaled = ops.add(node.input_value(0), ops.reduce_sum(zero, ops.constant([0, 1]), True))
    node.input(0).replace_source_output(scaled.output(0))
    assert re.fullmatch(r"The IR computes rotary .*; export .*\.", refusal(graph, tmp_path))


def test_inverse_frequencies_may_be_compressed_as_other_weights_are(tmp_path):
    """As `optimum-cli export openvino --weight-format int8` leaves them."""
    xml, rows = recurrent_models.write_ir("qwen3_5_text", tmp_path), []
    for compressed in (False, True):
        graph = ov.Core().read_model(xml)
        port = rotary_product(graph).input(0)
        scales = port.get_source_output().get_node().data.astype(np.float16) / np.float16(128)
        integers = np.full(scales.shape, 128, np.uint8)
        product = ops.multiply(ops.convert(integers, "f16"), scales)
        values = (integers * scales).astype(np.float32)
        frequencies = ops.convert(product, "f32") if compressed else ops.constant(values)
        port.replace_source_output(frequencies.output(0))
        path = tmp_path / f"{compressed}.xml"
        ov.save_model(graph, path, compress_to_fp16=False)
        model = PagedModel(path, EXACT)
        with model.new_sequence() as sequence:
            rows.append(rows_of(model, sequence, TEXT[:40]))
    assert np.array_equal(*rows)


def test_recurrent_layers_are_counted_as_layers(model, family, tmp_path):
    graph = ov.Core().read_model(recurrent_models.write_ir(family, tmp_path))
    assert layers_of(graph) == 3
    page_attention(graph)
    assert layers_of(graph) == 3


def test_a_run_is_one_part_for_recurrent_layers(model):
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1, 2], 0)])
        sequence.reserve_states(2, True)
        inputs = recurrent.inputs_of([Run(sequence, [3, 4], 2, stepwise=True)], 1)
        assert inputs["la.subsequence_begins"] == [0, 2, 3]
        assert inputs["la.past_lens"] == [2, 0] and inputs["la.cache_interval"] == [1, 0]
        zeros = model.pool.states.limit
        assert inputs["la.block_indices"][3:] == [zeros, zeros + 1]
