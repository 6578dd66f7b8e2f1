"""Answers of real pairs through a Session: those of autoregressive decoding, whatever drafts, and
errors in a sentence."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import openvino as ov
import pytest
from tiny_models import ir_folder

from specdemo.engine.backends import numerics
from specdemo.engine.messages import PREFILL_CHUNK, Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.host import hardware
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import (
    BaselineToken,
    Trace,
    describe_difference,
    from_json,
    summarize,
    to_json,
)
from specdemo.text.templates import Message

PROMPTS = [
    "Explain the difference between fission and fusion",
    "Repeat this exactly: one two three one two three one two three",
    "def fibonacci(n):",
    "日本の首都はどこですか?",
    "Write a haiku about rain.",
    "List five fruits.",
]


@pytest.fixture(scope="module")
def chat(tiny_chat):
    with Session(tiny_chat) as session:
        yield session


def answered(session: Session, instruction: str, settings: Settings, **options) -> Trace:
    *_, trace = session.ask(Question(instruction, settings, **options))
    return trace


def forget_prompts(session: Session) -> None:
    session.engine.target("exact").prefixes.make_room(0)


# The same tokens as autoregressive decoding


@pytest.mark.parametrize(
    ("prompt", "temperature"), [(PROMPTS[0], 0.0), (PROMPTS[1], 0.0), (PROMPTS[3], 0.7)]
)
def test_the_embedded_pair_answers_as_its_baseline_does(embedded_session, prompt, temperature):
    settings = Settings(max_new_tokens=30, temperature=temperature, top_p=0.95, seed=3)
    *events, trace = embedded_session.ask(Question(prompt, settings, measured=False, baseline=True))
    events = [event for event in events if not isinstance(event, Waiting)]
    tokens = [event for event in events if isinstance(event, BaselineToken)]
    assert trace.rounds + trace.baseline.tokens == tuple(events)
    assert "".join(token.text for token in tokens) == trace.text
    assert all((token.margin is None) == (temperature > 0) for token in tokens)
    assert trace.identical is True and trace.difference is None
    assert summarize(trace).speedup > 0
    whole = embedded_session._tokenizer.decode(trace.token_ids)
    assert trace.text == whole or trace.text.startswith(whole[:-1])
    assert from_json(to_json(trace)) == trace


@pytest.mark.parametrize("drafter", ["model", "lookup", "auto"])
@pytest.mark.parametrize("draft_tokens", [None, 2, 15])
def test_two_models_answer_as_the_baseline_does(session, drafter, draft_tokens):
    for number, options in enumerate([{}, {}, {"temperature": 0.9, "top_k": 20}]):
        settings = Settings(40, draft_tokens, drafter, seed=number, **options)
        trace = answered(session, f"{PROMPTS[number]} {number}", settings, baseline=True)
        assert trace.identical


def test_where_one_token_rounds_differently_the_guard_keeps_the_answers_equal(
    tiny_llama_pair, monkeypatch
):
    """Without dynamic quantization, as on processors without VNNI."""
    candidates = numerics.candidates
    monkeypatch.setattr(numerics, "candidates", lambda *args: candidates(*args)[-1:])
    with closing(Session(tiny_llama_pair)) as session:
        assert "DYNAMIC_QUANTIZATION_GROUP_SIZE=0" in session.info.numerics_found
        for number, options in enumerate([{}, {"temperature": 0.9, "top_p": 0.9}]):
            settings = Settings(max_new_tokens=60, drafter="model", seed=number, **options)
            assert answered(session, PROMPTS[number], settings, baseline=True).identical


def test_a_baseline_that_chooses_otherwise_parts_from_the_answer_and_goes_on_freely(toy):
    read = []
    toy.target.differs_at = 7
    toy.target.fault = lambda batch: read.extend(batch[0].tokens)
    *_, trace = toy.race("one two three", Settings(drafter="model", draft_tokens=5))
    other = trace.baseline.tokens[7]
    assert trace.text == "one two three"
    assert trace.identical is False and trace.difference == 7
    assert describe_difference(trace).endswith(f"{other.text!r}, margin 20 logits")
    assert other.id in read, "the baseline goes on from its own token"


# Prompts


PASSAGE = "The river rose in the night and the bridge was gone by morning. " * 6


@pytest.mark.parametrize(
    ("before", "instruction", "reused"),
    [
        ("Name three colours.", "Name three colours.", "all"),
        ("Name two rivers of Asia.", "Who wrote Don Quixote?", "template"),
        (f"{PASSAGE}Who came?", f"{PASSAGE}Why not?", "chunks"),
    ],
)
def test_what_a_prompt_shares_with_one_before_is_prefilled_once(chat, before, instruction, reused):
    settings = Settings(max_new_tokens=12)
    forget_prompts(chat)
    first = answered(chat, before, settings)
    second = answered(chat, instruction, settings)
    template, tokenizer = chat.loaded.template, chat.loaded.tokenizer
    prefix = len(chat.engine.target("exact").prefixes.template_prefix)
    prompts = [template.render(text, tokenizer) for text in (before, instruction)]
    chunks = (len(os.path.commonprefix(prompts)) - prefix) // PREFILL_CHUNK
    assert prefix > 2 and chunks == (3 if reused == "chunks" else 0)
    counts = {"all": second.prompt_tokens, "template": prefix}
    assert first.prompt_reused == 0
    assert second.prefill_seconds <= second.time_to_first_token  # its own, not that of the first
    assert second.prompt_reused == counts.get(reused, prefix + chunks * PREFILL_CHUNK)
    forget_prompts(chat)
    fresh = answered(chat, instruction, settings)
    assert (fresh.prompt_reused, fresh.token_ids) == (0, second.token_ids)


# Ends


@pytest.mark.parametrize(("during", "ended"), [(Round, "cancelled"), (BaselineToken, "length")])
def test_stopping_ends_within_a_round_and_leaves_identical_open(embedded_session, during, ended):
    stop = threading.Event()
    events = embedded_session.ask(
        Question(PROMPTS[0], Settings(max_new_tokens=30), stop=stop, measured=False, baseline=True)
    )
    next(event for event in events if isinstance(event, during))
    stop.set()
    [trace] = events
    assert (trace.finish_reason, trace.identical) == (ended, None)
    assert trace.baseline is None if during is Round else len(trace.baseline.tokens) < 10


def test_dropping_the_iterator_frees_its_blocks(chat):
    answered(chat, PROMPTS[0], Settings(max_new_tokens=5))  # the cache keeps the prompt
    used = chat.engine.target("exact").model.pool.used
    events = chat.ask(Question(PROMPTS[0], Settings(max_new_tokens=200)))
    next(events), next(events)
    events.close()
    assert chat.engine.target("exact").model.pool.used == used
    assert answered(chat, PROMPTS[0], Settings(max_new_tokens=5)).finish_reason == "length"


def test_without_a_draft_model_lookup_drafts_and_the_context_limit_ends_an_answer(tiny_llama_pair):
    pair = dataclasses.replace(tiny_llama_pair, draft=None, context_limit=40)
    settings = Settings(max_new_tokens=500, draft_tokens=7)
    with closing(Session(pair)) as session:
        trace = answered(session, "hello", settings, baseline=True)
        with pytest.raises(BadInput, match="no draft model"):
            session.ask(Question("hi", Settings(drafter="model")))
    assert trace.finish_reason == "context" and trace.identical
    assert trace.prompt_tokens + len(trace.token_ids) == 40


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (" \n", "empty"),
        ((), "empty"),
        ((1,) * 9000, "prompt is 9000 tokens long"),
        ((1, 10**6), "tokens must be from 0 to"),
        ((-1,), "tokens must be from 0 to"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(session, prompt, message):
    with pytest.raises(BadInput, match=message):
        session.ask(Question(prompt, Settings()))


def test_a_conversation_is_put_into_the_chat_template(chat):
    turns = [Message("system", "Answer in one word."), Message("user", "The capital of France?")]
    *_, trace = chat.ask(Question(turns, Settings(max_new_tokens=8), baseline=True))
    ids = chat.loaded.template.render_chat(turns, chat.loaded.tokenizer)
    assert trace.identical and trace.prompt_tokens == len(ids)
    assert trace.instruction == "The capital of France?"
    assert answered(chat, ids, Settings(max_new_tokens=8)).token_ids == trace.token_ids


# Stop strings


@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
def test_an_answer_ends_before_a_stop_string_and_its_baseline_after_the_same_token(
    session, drafter
):
    settings = Settings(max_new_tokens=40, drafter=drafter, draft_tokens=5)
    whole = answered(session, PROMPTS[1], settings)
    for begin in range(8, 20, 3):
        stop = "".join(token.text for token in whole.tokens[begin : begin + 2])
        ended = dataclasses.replace(settings, stop=(stop,))
        trace = answered(session, PROMPTS[1], ended, baseline=True)
        assert trace.text == whole.text[: whole.text.index(stop)]
        assert trace.finish_reason == "stop" and trace.identical
        count = len(trace.tokens)
        assert trace.token_ids == whole.token_ids[:count]
        assert stop in "".join(token.text for token in trace.tokens)
        assert stop not in "".join(token.text for token in trace.tokens[:-1])
        assert from_json(to_json(trace)) == trace
    never = answered(session, PROMPTS[1], dataclasses.replace(settings, stop=("no such text",)))
    assert never.token_ids == whole.token_ids and never.text == whole.text


# Several at a time


def test_requests_at_the_same_time_get_what_each_gets_alone(chat):
    settings = [Settings(max_new_tokens=60), Settings(max_new_tokens=60, temperature=0.8, seed=3)]
    requests = [(f"{prompt} ", settings[number % 2]) for number, prompt in enumerate(PROMPTS)]
    alone = [answered(chat, *request) for request in requests]
    forget_prompts(chat)
    with ThreadPoolExecutor(len(requests)) as pool:
        shared = list(pool.map(lambda request: answered(chat, *request), requests))
    assert [trace.token_ids for trace in shared] == [trace.token_ids for trace in alone]
    assert max(trace.shared_with for trace in shared) >= 3
    assert not any(trace.shared_with for trace in alone)
    assert all(use.used == use.kept for use in chat.engine.cache_blocks().values())


def test_a_request_that_the_cache_can_never_hold_is_refused(tiny_llama_pair):
    pair = dataclasses.replace(tiny_llama_pair, context_limit=300)
    with closing(Session(pair, cache_mb=1)) as session:
        session.prepare()
        session.engine.target("exact").model.resize_cache(10)
        with pytest.raises(BadInput, match="KV cache holds 320"):
            next(session.ask(Question("hello " * 20, Settings(max_new_tokens=250))))


def test_a_race_of_a_page_waits_for_what_is_compiled_and_not_for_measurements(tiny_llama_pair):
    with Session(tiny_llama_pair, background=False) as session:
        target = session.engine.target("exact")
        question = Question("hello", Settings(max_new_tokens=4), baseline=True)
        *_, trace = session.ask(dataclasses.replace(question, measured=False))
        assert trace.identical is True and not target.measured
        list(session.ask(question))
        assert target.measured


# Settings that combine freely


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
