"""Decoders with experts, of Qwen3 and gpt-oss (with sliding windows and sinks): the graphs of
optimum-intel's exports with made-up weights."""

from dataclasses import replace

import pytest
import recurrent_models
from test_engine_recurrent import EXACT, require_logits_of_transformers
from test_runs_recurrent import answered, pair_of

from specdemo.engine.backends import numerics
from specdemo.engine.backends.paged import PagedModel
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings


@pytest.fixture(params=recurrent_models.EXPERTS)
def family(request):
    return request.param


def test_logits_are_those_of_transformers_and_bits_equal_whatever_the_rows(family, tmp_path):
    model = PagedModel(recurrent_models.write_ir(family, tmp_path), EXACT)
    [*_, invariance] = numerics.measure_invariance(model)
    assert invariance.tokens == 64 and invariance.merging and invariance.chunks
    require_logits_of_transformers(family, model)


def test_an_answer_with_a_draft_model_is_identical_to_its_baseline(
    family, tiny_llama_pair, tmp_path
):
    pair = pair_of(family, tiny_llama_pair, tmp_path)
    with Session(pair, background=False) as session:
        for temperature in (0.0, 0.9):
            settings = Settings(max_new_tokens=30, drafter="model", temperature=temperature)
            trace = answered(session, "Two and two", replace(settings, draft_tokens=4))
            assert trace.identical and sum(round_.accepted for round_ in trace.rounds)
