"""The stateful path, taken where paged attention is not to be had: the same cache rules, a note."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from test_engine_cache import CLOSE, TOLERANCE, recomputed

from specdemo.engine import numerics
from specdemo.engine.errors import ModelError
from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.engine.open import open_model
from specdemo.engine.stateful import StatefulModel
from specdemo.session import Session
from specdemo.settings import Settings


@pytest.fixture(scope="module")
def xml(tiny_llama_pair):
    return tiny_llama_pair.target_xml


@pytest.fixture(scope="module")
def model(xml):
    return open_model(xml, dataclasses.replace(CLOSE, paged=False))


@pytest.fixture(scope="module")
def spelled_out_pair(tiny_llama_pair, tmp_path_factory):
    """The pair with attention spelled out in matrix products, as exporters before SDPA did: paged
    attention finds nothing there to replace."""
    folder = tmp_path_factory.mktemp("spelled-out")
    model = ov.Core().read_model(tiny_llama_pair.target_xml)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            query, key, value, mask, *_ = node.input_values()
            scale = ops.constant(np.float32(query.get_partial_shape()[-1].get_length() ** -0.5))
            scores = ops.add(ops.matmul(ops.multiply(query, scale), key, False, True), mask)
            node.output(0).replace(
                ops.matmul(ops.softmax(scores, -1), value, False, False).output(0)
            )
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    return dataclasses.replace(tiny_llama_pair, target_xml=folder / "openvino_model.xml")


def test_logits_are_those_of_the_paged_model(model, xml):
    paged = PagedModel(xml, CLOSE)
    text = np.random.default_rng(3).integers(0, 256, 50).tolist()
    with model.new_sequence() as one, paged.new_sequence() as other:
        for piece in (text[:40], text[40:43], text[43:50]):
            rows = model.forward([Run(one, piece, 2)])[0]
            expected = paged.forward([Run(other, piece, 2)])[0]
            assert np.abs(rows.rows - expected.rows).max() < TOLERANCE
            assert rows.log_sum == pytest.approx(expected.log_sum, abs=TOLERANCE)


def test_requests_of_released_sequences_are_used_again_and_remember_nothing(model):
    with model.new_sequence() as first:
        model.forward([Run(first, [1] * 30, 1)])
        request = first.request
    with model.new_sequence() as second:
        row = model.forward([Run(second, [4, 5, 6], 1)])[0].rows[0].copy()
        assert second.request is request
    assert np.abs(row - recomputed(model, [4, 5, 6])).max() < TOLERANCE


def test_a_model_without_paged_attention_answers_as_its_baseline_does(spelled_out_pair):
    asked = Settings(max_new_tokens=40, draft_tokens=4, drafter="model")
    with closing(Session(spelled_out_pair)) as session:
        *_, trace = session.race("Name three colours.", asked)
    # Attention spelled out rounds by the number of tokens: only a near tie may be chosen otherwise.
    assert trace.identical or trace.difference.margin < 10 * TOLERANCE
    assert trace.rounds[3].drafted, "nothing was drafted"
    assert "stateful KV cache" in trace.pair.numerics_found
    assert "paged attention" in trace.pair.numerics_found


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
