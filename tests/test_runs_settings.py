"""Weight format, KV cache precision, numerics and drafter combine freely."""

from __future__ import annotations

import dataclasses
import math

import openvino as ov
import pytest
from tiny_models import ir_folder

from specdemo.errors import BadInput
from specdemo.host import hardware
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings


@pytest.mark.parametrize(
    ("weights", "stored", "kv_cache", "numerics", "drafter"),
    [
        ("int8", "i8", "auto", "exact", "model"),
        ("int4", "i4", "f16", "exact", "auto"),
        ("fp16", "f16", "f32", "exact", "lookup"),
        ("int4", "i4", "u8", "fast", "model"),
    ],
)
def test_any_combination_answers_and_says_what_it_does_to_exactness(
    tiny_home, tiny_llama_pair, weights, stored, kv_cache, numerics, drafter
):
    target = ir_folder(tiny_home, "llama-target", weights) / "openvino_model.xml"
    kinds = [
        node.get_output_element_type(0).get_type_name()
        for node in ov.Core().read_model(target).get_ordered_ops()
        if node.get_type_name() == "Constant" and math.prod(node.get_output_shape(0)) >= 64 * 128
    ]
    assert kinds.count(stored) >= 6  # three in the feed-forward part of each of two layers
    pair = dataclasses.replace(tiny_llama_pair, target=target, kv_cache=kv_cache)
    with Session(pair) as session:
        settings = Settings(max_new_tokens=24, numerics=numerics, drafter=drafter, draft_tokens=3)
        *_, trace = session.ask(
            Question("one two one two one", settings, measured=False, baseline=True)
        )
        properties = session.target_properties(numerics)
    assert len(trace.token_ids) == 24
    words = trace.pair.numerics_found
    assert numerics in words
    if kv_cache != "auto":
        assert properties["KV_CACHE_PRECISION"] == kv_cache
        assert f"KV_CACHE_PRECISION={kv_cache}" in words
    invariant = "bitwise equal" in words
    assert invariant or numerics == "fast" or "logits depend" in words
    assert trace.identical or not (invariant and numerics == "exact")


def test_other_numerics_are_refused_where_the_target_cannot_be_held_twice(
    tiny_llama_pair, monkeypatch
):
    monkeypatch.setattr(hardware, "available_bytes", lambda: 1000)
    with Session(tiny_llama_pair) as session:
        with pytest.raises(BadInput, match="keep to the numerics"):
            list(session.ask(Question("one two", Settings(max_new_tokens=2, numerics="fast"))))
        *_, trace = session.ask(Question("one two", Settings(max_new_tokens=2)))
        assert len(trace.token_ids) == 2
