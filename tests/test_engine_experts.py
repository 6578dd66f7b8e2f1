"""Decoders with experts, of Qwen3 and gpt-oss (with sliding windows and sinks): the graphs of
optimum-intel's exports with made-up weights."""

import pytest
import recurrent_models
from test_engine_recurrent import EXACT, require_logits_of_transformers

from specdemo.engine.backends import numerics
from specdemo.engine.backends.paged import PagedModel


@pytest.mark.parametrize("family", recurrent_models.EXPERTS)
def test_logits_are_those_of_transformers_and_bits_equal_whatever_the_rows(family, tmp_path):
    model = PagedModel(recurrent_models.write_ir(family, tmp_path), EXACT)
    [*_, invariance] = numerics.measure_invariance(model)
    assert invariance.tokens == 64 and invariance.merging and invariance.chunks
    require_logits_of_transformers(family, model)
