"""Weight format, KV cache precision, numerics and drafter combine freely."""

from __future__ import annotations

import dataclasses
import math

import openvino as ov
import pytest
from tiny_models import ir_folder

from specdemo.errors import BadInput
from specdemo.models import machine
from specdemo.models.export import fitting_group_size
from specdemo.session import Session
from specdemo.settings import Settings


@pytest.mark.parametrize(
    ("weights", "kv_cache", "numerics", "drafter"),
    [
        ("int8", "auto", "exact", "model"),
        ("int4", "f16", "exact", "auto"),
        ("fp16", "f32", "exact", "lookup"),
        ("int4", "u8", "fast", "model"),
    ],
)
def test_any_combination_answers_and_says_what_it_does_to_exactness(
    tiny_home, tiny_llama_pair, weights, kv_cache, numerics, drafter
):
    target = ir_folder(tiny_home, "llama-target", weights) / "openvino_model.xml"
    pair = dataclasses.replace(tiny_llama_pair, target_xml=target, kv_cache=kv_cache)
    with Session(pair) as session:
        asked = Settings(max_new_tokens=24, numerics=numerics, drafter=drafter, draft_tokens=3)
        *_, trace = session.answer("one two one two one", asked, certify=True)
        properties = session.target_properties(numerics)
    assert len(trace.token_ids) == 24
    found = trace.pair.numerics_found
    assert numerics in found
    if kv_cache != "auto":
        assert properties["KV_CACHE_PRECISION"] == kv_cache
        assert f"KV_CACHE_PRECISION={kv_cache}" in found
    invariant = "bitwise equal" in found
    assert invariant or numerics == "fast" or "logits depend" in found
    assert (trace.certificate is not None) == (invariant and numerics == "exact")
    if trace.certificate:
        assert trace.certificate.certified


@pytest.mark.parametrize(("weights", "stored"), [("int8", "i8"), ("int4", "i4"), ("fp16", "f16")])
def test_an_export_stores_its_matrices_in_the_format_that_was_asked_for(tiny_home, weights, stored):
    xml = ir_folder(tiny_home, "llama-target", weights) / "openvino_model.xml"
    kinds = [
        node.get_output_element_type(0).get_type_name()
        for node in ov.Core().read_model(xml).get_ordered_ops()
        if node.get_type_name() == "Constant" and math.prod(node.get_output_shape(0)) >= 64 * 128
    ]
    assert kinds.count(stored) >= 6  # three in the feed-forward part of each of two layers


@pytest.mark.parametrize(
    ("widths", "size"),
    [
        ({"hidden_size": 2560, "intermediate_size": 10240}, 128),
        ({"n_embd": 1600, "n_inner": None}, 64),
        ({"hidden_size": 96}, 32),
        ({"hidden_size": 100}, -1),
    ],
)
def test_int4_groups_are_the_largest_that_divide_the_models_widths(widths, size):
    assert fitting_group_size(widths) == size


def test_other_numerics_are_refused_where_the_target_cannot_be_held_twice(
    tiny_llama_pair, monkeypatch
):
    monkeypatch.setattr(machine, "available_bytes", lambda: 1000)
    with Session(tiny_llama_pair) as session:
        with pytest.raises(BadInput, match="keep to the numerics"):
            list(session.answer("one two", Settings(max_new_tokens=2, numerics="fast")))
        *_, trace = session.answer("one two", Settings(max_new_tokens=2))
        assert len(trace.token_ids) == 2
