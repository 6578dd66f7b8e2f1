"""Pairs of decoders with recurrent layers in a Session, which page, API and audit use."""

import json
import shutil
from dataclasses import replace
from itertools import product

import httpx
import numpy as np
import openvino as ov
import pytest
import recurrent_models
from conftest import load_own
from helpers import served, service_of
from test_audit import AUDIT, audit_quickly, lent
from test_visitors import race

from specdemo import cli
from specdemo.engine.backends import kernels, numerics
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.faults import ModelError
from specdemo.engine.forwards import ModelSettings
from specdemo.engine.sampling import Sampling
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.training import data, steps
from specdemo.training.recipe import TrainSettings


def pair_of(family, tiny_llama_pair, folder):
    """A target with 8-bit weights and a draft that is right now and then."""
    target = recurrent_models.write_int8(family, folder / "target")
    draft = recurrent_models.write_int8(family, folder / "draft", 0.1)
    return replace(tiny_llama_pair, target=target, draft=draft)


@pytest.fixture(scope="module")
def pair(tiny_llama_pair, tmp_path_factory):
    return pair_of("qwen3_5_text", tiny_llama_pair, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def opened(pair):
    with Session(pair, background=False) as session:
        yield session


def answered(session, prompt, settings):
    return trace_of(session.ask(Question(prompt, settings, measured=False, baseline=True)))


@pytest.mark.parametrize("family", recurrent_models.CONFIGS)
def test_with_8_bit_weights_every_candidate_is_exact(family, tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", 0)
    xml, core = recurrent_models.write_int8(family, tmp_path), ov.Core()
    for properties_ in numerics.candidates(xml, "CPU", "auto", True, core):
        settings = ModelSettings(properties=properties_)
        if kernels.in_kernels(properties_):  # which compute no recurrent layers
            with pytest.raises(ModelError, match="only parts"):
                PagedModel(xml, settings, core)
            continue
        [*_, invariance] = numerics.measure_invariance(PagedModel(xml, settings, core))
        assert invariance.tokens == 64 and invariance.merging and invariance.chunks


def test_the_smaller_model_may_have_other_layers_than_the_larger_one(
    pair, tiny_llama_pair, tmp_path
):
    lfm2 = pair_of("lfm2", tiny_llama_pair, tmp_path)
    settings = Settings(max_new_tokens=20, drafter="model", draft_tokens=3)
    for mixed in (
        replace(lfm2, draft=tiny_llama_pair.draft),
        replace(lfm2, draft=pair.draft),
        replace(tiny_llama_pair, draft=lfm2.draft),
    ):
        with Session(mixed, background=False) as session:
            trace = answered(session, "Two and two", settings)
        assert trace.identical and any(round_.drafted for round_ in trace.rounds)


@pytest.mark.parametrize("family", recurrent_models.CONFIGS_OF_ALL)
def test_an_answer_is_identical_to_its_baseline(family, tiny_llama_pair, tmp_path):
    """Of models with experts too."""
    way = Settings(max_new_tokens=40, draft_tokens=4, seed=5)
    with Session(pair_of(family, tiny_llama_pair, tmp_path), background=False) as session:
        for drafter, temperature in product(("model", "lookup", "auto"), (0.0, 0.9)):
            settings = replace(way, drafter=drafter, temperature=temperature)
            trace = answered(session, "Two and two and two and two", settings)
            assert trace.identical
            assert drafter == "lookup" or sum(round_.accepted for round_ in trace.rounds)


@pytest.mark.parametrize("family", recurrent_models.CONFIGS)
def test_a_training_run_writes_and_reads_as_many_answers_at_once_as_have_room_for_states(
    family, tiny_llama_pair, tmp_path, monkeypatch
):
    loaded = replace(tiny_llama_pair, target=recurrent_models.write_int8(family, tmp_path))
    model = data._opened(loaded)
    model.resize_cache(3 * data._blocks(model, 60))
    prompts = {str(number): [number] * 25 for number in range(8)}
    answers = [data._Answer("", name, prompts[name], Sampling(0.9, seed=1)) for name in prompts]
    assert len(list(data._complete(answers, model, 30, frozenset()))) == 8
    group = [answer.conversation(frozenset(), loaded.tokenizer) for answer in answers]
    monkeypatch.setattr(type(loaded.template), "render", lambda _, name, tokenizer: prompts[name])
    written = np.concatenate([row for answer in answers for row in answer.states])
    close = np.isclose(data._read(model, loaded, group), written, rtol=0.05, atol=0.2)
    assert close.mean() > 0.995  # with VNNI a last bit can become a step of rounded activations
    assert model.pool.used == model.pool.states.used == 0


def test_a_head_that_is_trained_on_such_a_target_drafts_for_it(
    pair, tiny_home, tmp_path, monkeypatch
):
    for path in (tiny_home / "llama-target").glob("tokenizer*"):
        shutil.copy(path, pair.target.parent)
    monkeypatch.setattr(data, "MIX", {"sum": 1})
    sizes = {"tokens": 1000, "answer_tokens": 80, "width": 32, "chains": 64, "passes": 0.1}
    target, head = pair.target.parent, tmp_path / "head"
    steps.train_draft(TrainSettings(target=str(target), out=head, **sizes))
    with Session(load_own(target, head), background=False) as session:
        settings = Settings(max_new_tokens=30, drafter="model", draft_tokens=3)
        trace = answered(session, "Two and two", settings)
    assert trace.identical
    assert {token.source for round_ in trace.rounds for token in round_.drafted} == {"head"}


def test_cancelled_requests_leave_only_what_is_kept_and_that_is_bounded(opened):
    settings = Settings(max_new_tokens=200, drafter="model", ignore_eos=True)
    for count in range(100):
        events = opened.ask(Question(f"{count} and two", settings))
        next(events)
        events.close()
    trace_of(opened.ask(Question("Two", replace(settings, max_new_tokens=2))))
    for use in opened.engine.cache_blocks().values():
        assert use.used == use.kept <= 8192 / 32


def test_states_count_in_the_cache_that_a_request_may_fill(pair):
    """A cache of one megabyte holds one full context, with its states."""
    with Session(pair, background=False, cache_mb=1) as session:
        [target, _] = session.engine.cache_blocks().values()
        states = session.engine.target("exact").model.pool.state_blocks(session.context_limit)
        assert target.limit > session.context_limit / 32 + states
        settings = Settings(max_new_tokens=session.context_limit)
        session.ask(Question("Two", settings)).close()


def test_an_audit_finds_no_failure(opened, monkeypatch, capsys):
    audit_quickly(opened, monkeypatch)
    assert cli.main([*AUDIT, "--draws", "40", "--limit", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    results = {name: cell["result"] for name, cell in report["rows"][0]["cells"].items()}
    assert set(results.values()) <= {"pass", "not offered"} and len(results) >= 10
    assert results["greedy"] == results["self"] == results["sampling"] == "pass"


def test_the_api_and_the_page_answer_with_such_a_model(pair, opened):
    question = "Two and two and two"
    wanted = answered(opened, question, Settings(max_new_tokens=12, drafter="none"))
    with served(lent(opened), pair, max_new_tokens=64) as server:
        body = {"model": "tiny target", "prompt": question, "max_tokens": 12, "temperature": 0}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert reply["choices"][0]["text"] == wanted.text and wanted.text
    [*_, last] = race(service_of(opened), question, drafter="model", draft_tokens=3)
    assert last["verdict"]["identity"].startswith("Identical: two independent runs")
