"""Drafting with EAGLE-3 heads: the head's own choices along an answer, and answers that stay the
target's."""

from __future__ import annotations

import dataclasses

import numpy as np
import openvino as ov
import pytest
from eagle3_reference import ReferenceHead, write_made_up_head
from test_convert_eagle3 import exported

from specdemo.convert import heads, ir
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.messages import ModelSettings, Run, Taps
from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

pytestmark = pytest.mark.slow
LAYERS = (0, 1, 2)
PROMPT = "Count from one to five.\n" * 15  # more tokens than a chunk of the prefill
DRAFTED = Settings(max_new_tokens=24, drafter="model", draft_tokens=3)


def head_pair(pair, folder, weight_format="fp16", **own):
    """The Llama-shaped pair with a made-up EAGLE-3 head."""
    sizes = {"hidden": 64, "vocabulary": 256, "rows": 200, "width": 16, "embedding": False}
    write_made_up_head(folder / "head", **sizes | own, eagle_aux_hidden_state_layer_ids=LAYERS)
    xml = exported(folder / "head", weight_format)
    return dataclasses.replace(pair, draft=None, head=xml, head_layers=LAYERS)


@pytest.fixture(scope="module")
def reference_pair(tiny_llama_pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    embedding, _ = heads.tables(tiny_llama_pair.target)
    pair = head_pair(tiny_llama_pair, folder)
    return pair, ReferenceHead(folder / "head", embedding)


@pytest.fixture(scope="module")
def eagle_pair(tiny_llama_pair, tmp_path_factory):
    """With an embedding of the head's own, and normalized states in its chains."""
    folder = tmp_path_factory.mktemp("normalized")
    return head_pair(tiny_llama_pair, folder, "int8", norm_output=True, embedding=True)


def states_of(pair, tokens: list[int]) -> np.ndarray:
    model = PagedModel(pair.target, ModelSettings(hidden=Taps(LAYERS)))
    with model.new_sequence() as sequence:
        return model.forward([Run(sequence, tokens, 1)])[0].state.copy()


def test_every_draft_along_an_answer_is_the_references(reference_pair):
    """Rows of the prompt in chunks, rows written anew after rejections, chains of any depth; with
    the prompt in the prefix cache too, and without its rows where only n-grams were asked."""
    pair, reference = reference_pair
    with Session(pair) as session:
        prompts = [PROMPT, PROMPT, PROMPT + "Go."]
        for prompt in prompts:
            *_, trace = session.ask(Question(prompt, DRAFTED))
            text = pair.template.render(prompt, pair.tokenizer)
            count = len(text)
            text = [*text, *trace.token_ids]
            g = reference.fused(states_of(pair, text).astype(float))
            right = total = 0
            for round_ in trace.decoding_rounds:
                count += 1
                rows = text[1:count]
                logits, state, past = reference.rows(g[: count - 1], rows, reference.empty)
                for token in round_.drafted:
                    own = logits[-1][list(reference.tokens).index(token.id)]
                    right += logits[-1].max() - own < 0.05  # near ties are rounding
                    total += 1
                    logits, state, past = reference.rows(state[-1:], [token.id], past)
                count += len(round_.tokens) - 1
            assert total > 30 and right == total


def test_its_prompt_is_read_only_where_that_pays(reference_pair, monkeypatch):
    pair, _ = reference_pair
    with Session(pair) as session:
        session.prepare()
        head, read = session._engine.draft.runner, []
        forward = head.forward

        def noting(batch):
            read.extend(run.rows == 0 for run in batch)
            return forward(batch)

        monkeypatch.setattr(head, "forward", noting)
        for seconds, text in ((1.0, PROMPT), (1e-7, PROMPT + "!")):
            head.costs.learn({1: seconds, 16: 16 * seconds})
            list(session.ask(Question(text, dataclasses.replace(DRAFTED, draft_tokens=None))))
            assert any(read) == (seconds < 1)


def test_a_target_without_states_is_refused_by_name(reference_pair, monkeypatch):
    with Session(reference_pair[0]) as session:
        monkeypatch.setattr(session._engine, "drafts", False)
        with pytest.raises(BadInput, match="draft head, which needs"):
            next(session.ask(Question("Hello", DRAFTED)))


def test_the_export_of_optimum_intel_drafts_as_ours_does(reference_pair, tmp_path):
    """Its IR has no output for the chain's states."""
    pair, _ = reference_pair
    model = ov.Core().read_model(pair.head)
    model.remove_result(model.output("state").node)
    ov.save_model(model, tmp_path / ir.MODEL, compress_to_fp16=False)
    drafts = []
    for xml in (pair.head, tmp_path / ir.MODEL):
        with Session(dataclasses.replace(pair, head=xml)) as session:
            *_, trace = session.ask(Question(PROMPT, DRAFTED))
            drafts.append([[one.id for one in round_.drafted] for round_ in trace.rounds])
    assert drafts[0] == drafts[1]
