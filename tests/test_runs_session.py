"""Answers of real pairs through a Session: those of autoregressive decoding, whatever drafts, and
errors in a sentence."""

import math
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import openvino as ov
import pytest
from tiny_models import ir_folder

from specdemo.engine import request as requests
from specdemo.engine.backends import numerics as engine_numerics
from specdemo.engine.cost_measurement import FAR_CONTEXT
from specdemo.engine.decode import Limits
from specdemo.engine.forwards import PREFILL_CHUNK
from specdemo.engine.request import Request
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Sampling
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.machine import hardware
from specdemo.runs.question import Question, trace_of
from specdemo.runs.saved_run import from_json
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace, describe_difference, summarize
from specdemo.text.templates import Chat, Message

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


def answered(session: Session, prompt: object, settings: Settings, **options) -> Trace:
    return trace_of(session.ask(Question(prompt, settings, **options)))


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
    *_, last = trace.baseline.tokens  # its text has a character that the limit of tokens cuts
    events[-1] = replace(tokens[-1], text=last.text)
    assert trace.rounds + trace.baseline.tokens == tuple(events)
    assert "".join(token.text for token in trace.baseline.tokens) == trace.text
    assert all((token.margin is None) == (temperature > 0) for token in tokens)
    assert trace.identical is True and trace.difference is None
    assert summarize(trace).speedup > 0
    text = embedded_session.loaded.tokenizer.decode(trace.token_ids)
    assert trace.text == text or trace.text.startswith(text[:-1])
    assert from_json(trace.to_json()) == trace


@pytest.mark.parametrize(
    ("weights", "stored", "kv_cache", "numerics"),
    [
        ("int8", "i8", "auto", "exact"),
        ("int4", "i4", "f16", "exact"),
        ("fp16", "f16", "f32", "exact"),
        ("int4", "i4", "u8", "fast"),
    ],
)
def test_any_combination_answers_and_states_what_it_does_to_exactness(
    tiny_home, tiny_llama_pair, weights, stored, kv_cache, numerics
):
    target = ir_folder(tiny_home, "llama-target", weights) / "openvino_model.xml"
    kinds = [
        node.get_output_element_type(0).get_type_name()
        for node in ov.Core().read_model(target).get_ordered_ops()
        if node.get_type_name() == "Constant" and math.prod(node.get_output_shape(0)) >= 64 * 128
    ]
    assert kinds.count(stored) >= 6  # three in the feed-forward part of each of two layers
    exact = numerics == "exact"
    with Session(replace(tiny_llama_pair, target=target, kv_cache=kv_cache)) as session:
        for number, drafter in enumerate(("model", "lookup", "auto")):
            for length in (None, 2, 15):
                sampling = {"temperature": 0.9, "top_k": 20} if number == 2 else {}
                settings = Settings(24, length, drafter, numerics=numerics, seed=9, **sampling)
                trace = answered(session, PROMPTS[number], settings, measured=False, baseline=True)
                assert len(trace.token_ids) == 24
                words = trace.pair.numerics_found
                invariant = "bitwise equal" in words
                assert trace.identical or not (invariant and exact)
        properties = session.target_properties(numerics)
        drafts = dict(session.engine.draft.runner.settings.properties)
    assert numerics in words and (invariant or not exact or "logits depend" in words)
    if kv_cache != "auto":
        assert properties["KV_CACHE_PRECISION"] == drafts["KV_CACHE_PRECISION"] == kv_cache
        assert f"KV_CACHE_PRECISION={kv_cache}" in words


def test_where_one_token_rounds_differently_answers_stay_equal(tiny_llama_pair, monkeypatch):
    """Without dynamic quantization, as on processors without VNNI."""
    candidates = engine_numerics.candidates
    monkeypatch.setattr(engine_numerics, "candidates", lambda *args: candidates(*args)[-1:])
    with Session(tiny_llama_pair) as session:
        assert "DYNAMIC_QUANTIZATION_GROUP_SIZE=0" in session.info.numerics_found
        for number, options in enumerate([{}, {"temperature": 0.9, "top_p": 0.9}]):
            settings = Settings(max_new_tokens=60, drafter="model", seed=number, **options)
            assert answered(session, PROMPTS[number], settings, baseline=True).identical


@pytest.mark.parametrize("wanted", [True, False])
def test_rejections_have_candidates_with_texts_only_if_these_are_wanted(toy, wanted):
    toy.draft.right = (1, 2)
    settings = Settings(drafter="model", draft_tokens=5)
    trace = answered(toy, "one two three", settings, candidates=wanted)
    candidates = [token for round_ in trace.rounds for token in round_.candidates]
    assert any(token.text for token in candidates) == bool(candidates) == wanted


def test_a_baseline_that_chooses_otherwise_parts_from_the_answer_and_goes_on_freely(toy):
    read = []
    toy.target.differs_at = 7
    toy.target.fault = lambda batch: read.extend(batch[0].tokens)
    settings = Settings(drafter="model", draft_tokens=5)
    trace = answered(toy, "one two three", settings, baseline=True)
    other = trace.baseline.tokens[7]
    assert trace.text == "one two three"
    assert trace.identical is False and trace.difference == 7
    assert describe_difference(trace).endswith(f"{other.text!r}, margin 20 logits")
    assert other.id in read, "the baseline goes on from its own token"


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


def test_a_question_about_an_answer_reuses_it_and_gets_the_same_bits(tiny_llama_pair, monkeypatch):
    """Target and draft model read only what is new. An answer that changed meanwhile is not."""
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(engine_numerics, "KERNEL_WEIGHTS", 0)
    with Session(tiny_llama_pair, background=False) as session:
        session.prepare()
        target, drafts = session.engine.target("exact"), session.engine.draft.prefixes
        assert target.invariance.decoded
        settings = Settings(max_new_tokens=70, drafter="model", draft_tokens=3)
        first = answered(session, PROMPTS[0], settings)
        text = [*tiny_llama_pair.tokenizer.encode(PROMPTS[0]), *first.token_ids]
        following = [*text, *tiny_llama_pair.tokenizer.encode(" Why? Say it again.")]
        with drafts.find(tuple(following))[0] as drafted:
            assert len(text) - 5 <= drafted.length < len(text), "but for its last draft"

        def logprobs(tokens: list[int]) -> tuple[int, list[object]]:
            request = Request(tuple(tokens), Sampling(), Limits(40, 1000), "none", logprobs=3)
            handle = session.engine.submit(request, target)
            rounds = list(handle.events())
            return handle.timing.reused, [(round_.tokens, round_.logprobs) for round_ in rounds]

        changed = [*text[:-30], 5, *following[len(text) - 30 :]]
        whole_chunks = (len(text) - 30) // PREFILL_CHUNK * PREFILL_CHUNK
        for tokens, reused in ((following, len(text) - 1), (changed, whole_chunks)):
            count, again = logprobs(tokens)
            forget_prompts(session)
            assert (count, (0, again)) == (reused, logprobs(tokens))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (" \n", "empty"),
        ((), "empty"),
        ((1,) * 9000, "prompt is too long: 9000 tokens"),
        ((1, 10**6), "tokens must be from 0 to"),
        ((-1,), "tokens must be from 0 to"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(session, prompt, message):
    with pytest.raises(BadInput, match=message):
        session.ask(Question(prompt, Settings()))


def test_a_conversation_is_put_into_the_chat_template(chat):
    turns = [Message("system", "Answer in one word."), Message("user", "The capital of France?")]
    trace = answered(chat, turns, Settings(max_new_tokens=8), baseline=True)
    ids = chat.loaded.template.render_chat(Chat(turns), chat.loaded.tokenizer)
    assert trace.identical and trace.prompt_tokens == len(ids)
    assert trace.instruction == "The capital of France?"
    assert answered(chat, ids, Settings(max_new_tokens=8)).token_ids == trace.token_ids


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


def test_dropping_the_iterator_frees_its_blocks(toy):
    answered(toy, PROMPTS[0], Settings(max_new_tokens=5))  # the cache keeps the prompt
    used = toy.target.pool.used
    events = toy.ask(Question(PROMPTS[0], Settings(max_new_tokens=200)))
    next(events), next(events)
    events.close()
    assert toy.target.pool.used == used and not toy.activity.active


def test_without_a_draft_model_lookup_drafts_and_the_context_limit_ends_an_answer(tiny_llama_pair):
    settings = Settings(max_new_tokens=500, draft_tokens=7)
    with Session(replace(tiny_llama_pair, draft=None, context_limit=40)) as session:
        trace = answered(session, "hello", settings, baseline=True)
        with pytest.raises(BadInput, match="no draft model"):
            session.ask(Question("hi", Settings(drafter="model")))
    assert trace.finish_reason == "context" and trace.identical
    assert trace.prompt_tokens + len(trace.token_ids) == 40


@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
def test_an_answer_ends_before_a_stop_string_and_its_baseline_after_that_token(session, drafter):
    settings = Settings(max_new_tokens=40, drafter=drafter, draft_tokens=5)
    unstopped = answered(session, PROMPTS[1], settings)
    for begin in range(8, 20, 3):
        stop = "".join(token.text for token in unstopped.tokens[begin : begin + 2])
        options = {"baseline": True, "stop": threading.Event()}
        trace = answered(session, PROMPTS[1], replace(settings, stop=(stop,)), **options)
        assert trace.text == unstopped.text[: unstopped.text.index(stop)]
        assert trace.finish_reason == "stop" and trace.identical
        assert trace.token_ids == unstopped.token_ids[: len(trace.tokens)]
        assert stop in "".join(token.text for token in trace.tokens)
        assert stop not in "".join(token.text for token in trace.tokens[:-1])
        assert from_json(trace.to_json()) == trace
    never = answered(session, PROMPTS[1], replace(settings, stop=("no such text",)))
    assert never.token_ids == unstopped.token_ids and never.text == unstopped.text


# Memory and preparation


def test_a_request_that_the_cache_can_never_hold_is_refused(tiny_llama_pair):
    with Session(replace(tiny_llama_pair, context_limit=300), cache_mb=1) as session:
        session.prepare()
        prefixes = session.engine.target("exact").prefixes
        prefixes.model.resize_cache(10 + prefixes.set_aside)
        with pytest.raises(BadInput, match="KV cache holds 320"):
            answered(session, "hello " * 20, Settings(max_new_tokens=250))


def test_a_measurement_takes_no_block_from_the_requests_that_fit(tiny_llama_pair):
    settings = Settings(max_new_tokens=500, drafter="none")
    small = replace(tiny_llama_pair, context_limit=300)
    with Session(small, cache_mb=0, background=False) as session:
        target = session.engine.target("exact")
        target.prefixes.make_room(0)
        assert target.prefixes.capacity == -(-300 // target.model.block_size) + 2, "a full context"
        measuring, used = session.engine._preparation(target, 60.0), []
        for _ in measuring:
            used.append(target.model.pool.used)
            if used[-1] * target.model.block_size > FAR_CONTEXT:
                assert answered(session, "hello", settings).finish_reason == "context"
                break
        else:
            pytest.fail("it measures after a long context")
        measuring.close()


def test_what_needs_no_draft_model_reserves_no_blocks_for_one(tiny_llama_pair):
    with Session(tiny_llama_pair, background=False) as session:
        drafts = session.engine.draft.prefixes
        drafts.set_aside = drafts.model.pool.limit  # nothing is left
        for drafter in ("none", "lookup"):
            settings = Settings(max_new_tokens=3, drafter=drafter)
            assert len(answered(session, "hello", settings).token_ids) == 3
        with pytest.raises(BadInput, match="ask for fewer"):
            answered(session, "hello", Settings(max_new_tokens=3), measured=False)


def test_a_race_of_a_page_waits_for_what_is_compiled_and_not_for_measurements(tiny_llama_pair):
    with Session(tiny_llama_pair, background=False) as session:
        target, settings = session.engine.target("exact"), Settings(max_new_tokens=4)
        trace = answered(session, "hello", settings, baseline=True, measured=False)
        assert trace.identical is True and not target.measured
        answered(session, "hello", settings, baseline=True)
        assert target.measured


def test_other_numerics_are_refused_where_the_target_fits_only_once(tiny_llama_pair, monkeypatch):
    monkeypatch.setattr(hardware, "available_bytes", lambda: 1000)
    with Session(tiny_llama_pair) as session:
        with pytest.raises(BadInput, match="keep to the numerics"):
            answered(session, "one two", Settings(max_new_tokens=2, numerics="fast"))
        assert len(answered(session, "one two", Settings(max_new_tokens=2)).token_ids) == 2


def test_a_thread_that_ends_meanwhile_leaves_no_negative_share(chat, monkeypatch):
    """Its time leaves the count of the times that threads waited."""
    counts = iter([Counter(ended=10**12, other=1), Counter(other=2)])
    monkeypatch.setattr(requests, "waiting_times", lambda: next(counts))
    assert 0 <= answered(chat, "Hi", Settings(max_new_tokens=3)).share <= 1


def test_json_ends_where_it_ends_though_a_stop_token_is_ignored(embedded_session):
    schema = '{"enum": ["yes", "no"]}'
    settings = Settings(max_new_tokens=20, json_schema=schema, ignore_eos=True)
    trace = trace_of(embedded_session.ask(Question("Is it so?", settings)))
    assert trace.text in ('"yes"', '"no"') and trace.finish_reason == "stop"
