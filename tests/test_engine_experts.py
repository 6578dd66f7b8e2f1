"""Decoders with experts, of Qwen3 and gpt-oss (with sliding windows and sinks): the graphs of
optimum-intel's exports with made-up weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import recurrent_models
import torch
from test_engine_recurrent import EXACT, TEXT, rows_of
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
    with torch.no_grad():
        wanted = recurrent_models.torch_model(family)(torch.tensor([TEXT[:150]])).logits[0].numpy()
    with model.new_sequence() as sequence:
        parts = [rows_of(model, sequence, TEXT[at : at + 50], False) for at in (0, 50)]
        parts += [rows_of(model, sequence, TEXT[at : at + 10]) for at in range(100, 150, 10)]
    assert np.abs(np.concatenate(parts) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_an_answer_with_a_draft_model_is_identical_to_its_baseline(
    family, tiny_llama_pair, tmp_path
):
    pair = pair_of(family, tiny_llama_pair, tmp_path)
    with Session(pair, background=False) as session:
        for temperature in (0.0, 0.9):
            settings = Settings(max_new_tokens=30, drafter="model", temperature=temperature)
            trace = answered(session, "Two and two", replace(settings, draft_tokens=4))
            assert trace.identical and sum(round_.accepted for round_ in trace.rounds)
