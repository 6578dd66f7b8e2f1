"""The stateful path, taken where paged attention is not to be had: the same cache rules, the same text, said aloud."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import openvino as ov
import pytest
from hypothesis import settings
from openvino import opset13 as ops
from test_engine_cache import EXACT, TOLERANCE, CacheMachine, recomputed

from specdemo.engine import numerics
from specdemo.engine.graph import ModelError
from specdemo.engine.model import CacheFull, ModelSettings, PagedModel, Run
from specdemo.engine.open import open_model
from specdemo.engine.stateful import StatefulModel
from specdemo.trace import Settings
from specdemo.session import Session


@pytest.fixture(scope="module")
def xml(tiny_llama_pair):
    return tiny_llama_pair.target_xml


@pytest.fixture(scope="module")
def model(xml):
    return open_model(xml, dataclasses.replace(EXACT, paged=False))


@pytest.fixture(scope="module")
def spelled_out_pair(tiny_llama_pair, tmp_path_factory):
    """The pair with attention spelled out in matrix products, as exporters before SDPA did: paged attention finds
    nothing there to replace."""
    folder = tmp_path_factory.mktemp("spelled-out")
    model = ov.Core().read_model(tiny_llama_pair.target_xml)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            query, key, value, mask, *_ = node.input_values()
            scale = ops.constant(np.float32(query.get_partial_shape()[-1].get_length() ** -0.5))
            scores = ops.add(ops.matmul(ops.multiply(query, scale), key, False, True), mask)
            node.output(0).replace(ops.matmul(ops.softmax(scores, -1), value, False, False).output(0))
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return dataclasses.replace(tiny_llama_pair, target_xml=folder / "openvino_model.xml")


class StatefulCacheMachine(CacheMachine):
    pass


def test_the_state_agrees_with_recomputing_after_any_history(model):
    StatefulCacheMachine.model = model
    machine = StatefulCacheMachine.TestCase
    machine.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
    machine().runTest()


def test_logits_are_those_of_the_paged_model(model, xml):
    paged = PagedModel(xml, EXACT)
    text = np.random.default_rng(3).integers(0, 256, 50).tolist()
    with model.new_sequence() as one, paged.new_sequence() as other:
        for piece in (text[:40], text[40:43], text[43:50]):
            rows = model.forward([Run(one, piece, 2)])[0]
            expected = paged.forward([Run(other, piece, 2)])[0]
            assert np.abs(rows.rows - expected.rows).max() < TOLERANCE
            assert rows.best.tolist() == expected.best.tolist()
            assert rows.log_sum == pytest.approx(expected.log_sum, abs=TOLERANCE)


def test_a_fork_and_its_source_go_separate_ways(model):
    text = list(range(70))
    with model.new_sequence() as one:
        model.forward([Run(one, text, 1)])
        with model.fork(one, 50) as other:
            one.truncate(5)
            model.forward([Run(one, [9] * 40, 1)])
            row = model.forward([Run(other, [7, 8], 1)])[0].rows[0].copy()
    assert np.abs(row - recomputed(model, [*text[:50], 7, 8])).max() < TOLERANCE


def test_requests_of_released_sequences_are_used_again_and_remember_nothing(model):
    with model.new_sequence() as first:
        model.forward([Run(first, [1] * 30, 1)])
        request = first.request
    with model.new_sequence() as second:
        row = model.forward([Run(second, [4, 5, 6], 1)])[0].rows[0].copy()
        assert second.request is request
    assert np.abs(row - recomputed(model, [4, 5, 6])).max() < TOLERANCE


def test_a_bounded_state_refuses_and_stays_usable(xml):
    bounded = StatefulModel(xml, dataclasses.replace(EXACT, block_limit=3))
    with bounded.new_sequence() as sequence:
        bounded.forward([Run(sequence, [1] * 64, 1)])
        with pytest.raises(CacheFull, match="3 allowed"):
            bounded.forward([Run(sequence, [1] * 64, 1)])
        assert sequence.length == 64
        bounded.forward([Run(sequence, [1] * 32, 1)])
    assert bounded.pool.used == 0


def test_a_trimmed_head_gives_the_same_logits_for_fewer_tokens_statefully_too(xml, model):
    kept = np.array([0, 3, 17, 200, 255])
    trimmed = StatefulModel(xml, EXACT, head_tokens=kept)
    with trimmed.new_sequence() as short, model.new_sequence() as whole:
        few = trimmed.forward([Run(short, [5, 6, 7], 1)])[0]
        all_ = model.forward([Run(whole, [5, 6, 7], 1)])[0]
        assert few.rows[0] == pytest.approx(all_.rows[0][kept], abs=TOLERANCE)


def test_a_model_without_paged_attention_answers_the_same_and_says_how_it_runs(spelled_out_pair, tiny_llama_pair):
    asked = Settings(max_new_tokens=40, draft_tokens=4, drafter="model")
    answers = {}
    for name, pair in (("stateful", spelled_out_pair), ("paged", tiny_llama_pair)):
        session = Session(pair)
        try:
            *_, trace = session.answer("Name three colours.", asked)
            *_, compared = session.baseline(trace)
        finally:
            session.close()
        assert compared.identical
        answers[name] = trace
    assert answers["stateful"].token_ids == answers["paged"].token_ids
    assert answers["stateful"].rounds[3].drafted, "nothing was drafted"
    assert "stateful" in answers["stateful"].pair.numerics_found
    assert "paged attention" in answers["stateful"].pair.numerics_found
    assert "stateful" not in answers["paged"].pair.numerics_found


def test_a_device_that_loses_the_paged_cache_is_noticed(xml, monkeypatch):
    monkeypatch.setattr(PagedModel, "keeps_its_cache", lambda self: False)
    assert isinstance(open_model(xml, ModelSettings("HETERO:CPU")), StatefulModel)
    assert isinstance(open_model(xml, ModelSettings("CPU")), PagedModel)


def test_a_device_that_refuses_the_cpus_settings_runs_in_its_own(xml, monkeypatch):
    def picky(xml, settings, **options):
        if settings.properties:
            raise ModelError("PICKY cannot run this model: unsupported property")
        return open_model(xml, ModelSettings("CPU"), **options)

    monkeypatch.setattr(numerics, "open_model", picky)
    model, _ = numerics.exact_model(xml, "PICKY", ov.Core())
    assert model.settings.properties == ()
    assert numerics.fastest_model(xml, "PICKY", ov.Core()).settings.properties == ()
    with pytest.raises(ModelError, match="unsupported"):
        numerics.exact_model(xml, "CPU", ov.Core())


def test_a_damaged_file_is_refused_once_and_not_tried_statefully(tmp_path, xml):
    shutil.copy(xml, tmp_path / "openvino_model.xml")
    (tmp_path / "openvino_model.bin").write_bytes(b"short")
    with pytest.raises(ModelError):
        open_model(tmp_path / "openvino_model.xml", ModelSettings())
