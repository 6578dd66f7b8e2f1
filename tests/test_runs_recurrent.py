"""Pairs of decoders with recurrent layers in a Session, which page, API and audit use."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import httpx
import openvino as ov
import pytest
import recurrent_models
from helpers import served, service_of
from test_audit import AUDIT, lent
from test_engine_heads import write_head
from test_visitors import race

from specdemo import cli
from specdemo.audit import properties
from specdemo.commands import shared
from specdemo.engine.backends import kernels, numerics
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.faults import ModelError
from specdemo.engine.forwards import ModelSettings
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings


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


def test_the_smaller_model_may_have_attention_only_or_be_the_only_recurrent_one(
    tiny_llama_pair, tmp_path
):
    lfm2 = pair_of("lfm2", tiny_llama_pair, tmp_path)
    settings = Settings(max_new_tokens=20, drafter="model", draft_tokens=3)
    for mixed in (
        replace(lfm2, draft=tiny_llama_pair.draft),
        replace(tiny_llama_pair, draft=lfm2.draft),
    ):
        with Session(mixed, background=False) as session:
            trace = answered(session, "Two and two", settings)
        assert trace.identical and any(round_.drafted for round_ in trace.rounds)


@pytest.mark.parametrize("drafter", ["model", "lookup", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_is_identical_to_its_baseline(opened, drafter, temperature):
    settings = Settings(max_new_tokens=40, drafter=drafter, temperature=temperature, seed=5)
    settings = replace(settings, draft_tokens=4)
    trace = answered(opened, "Two and two and two and two", settings)
    assert trace.identical
    assert drafter == "lookup" or sum(round_.accepted for round_ in trace.rounds)


def test_a_draft_head_reads_the_states_of_its_target(pair, tmp_path):
    head = write_head(tmp_path, (0.5,))
    with Session(replace(pair, draft=None, head=head), background=False) as session:
        settings = Settings(max_new_tokens=30, drafter="model", draft_tokens=3)
        trace = answered(session, "Two and two", settings)
    assert trace.identical and any(round_.drafted for round_ in trace.rounds)


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
    monkeypatch.setattr(shared, "load_pair", lambda choice: opened.loaded)
    session = contextlib.nullcontext(opened)
    monkeypatch.setattr("specdemo.runs.session.Session", lambda loaded, threads=None: session)
    monkeypatch.setattr(properties, "MAX_CASES", 2)
    assert cli.main([*AUDIT, "--draws", "40", "--limit", "2"]) == 0
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
