"""Answers of real pairs through a Session: identical to plain decoding, whatever drafts, and errors in a sentence."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdemo.engine import decode, numerics
from specdemo.engine.graph import ModelError
from specdemo.engine.policy import Lookahead
from specdemo.trace import Settings, Trace, from_json, summarize, to_json
from specdemo.session import RequestError, Session

PROMPTS = [
    "Explain the difference between fission and fusion",
    "Translate to French: the cat sat on the mat.",
    "Repeat this exactly: one two three one two three one two three",
    "What is 17 times 23?",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "List five fruits.",
    "日本の首都はどこですか?",
]


@pytest.fixture(scope="module")
def embedded(embedded_pair):
    session = Session(embedded_pair)
    yield session
    session.close()


@pytest.fixture(scope="module")
def two_models(tiny_llama_pair):
    session = Session(tiny_llama_pair)
    yield session
    session.close()


def answered(session: Session, instruction: str, settings: Settings) -> Trace:
    *_, trace = session.answer(instruction, settings)
    return trace


def plain_ids(session: Session, trace: Trace) -> tuple[int, ...]:
    """The prompt decoded again by the target alone in the same numerics, with no draft and no certificate."""
    target = session._engine("exact").target
    models = {"target": target}
    tokens = session._check(trace.instruction, trace.settings)
    with target.new_sequence(min_tokens=2) as sequence:
        prompt = decode.perform(decode.prefill(sequence, tokens), models)
        decoding = decode.decode(
            prompt,
            target=sequence,
            drafter=None,
            lookahead=Lookahead(),
            sampling=decode.Sampling(trace.settings.temperature, seed=trace.settings.seed),
            limits=decode.Limits(trace.settings.max_new_tokens, session.context_limit, session._loaded.stop_ids),
        )
        rounds = [event for event in decode.run(decoding, models) if hasattr(event, "emitted")]
    return tuple(token.id for round_ in rounds for token in round_.tokens)


@pytest.mark.parametrize("instruction", PROMPTS)
def test_embedded_answer_is_plain_decodings_answer(embedded, instruction):
    trace = answered(embedded, instruction, Settings(max_new_tokens=40))
    assert trace.token_ids == plain_ids(embedded, trace)
    assert trace.certificate.certified


@pytest.mark.parametrize("drafter", ["model", "lookup", "auto"])
@pytest.mark.parametrize("draft_tokens", [None, 1, 2, 5, 15])
def test_two_models_answer_as_the_target_alone_does(two_models, drafter, draft_tokens):
    for number, temperature in enumerate([0.0, 0.0, 0.0, 0.8]):
        settings = Settings(
            max_new_tokens=60, drafter=drafter, draft_tokens=draft_tokens, temperature=temperature, seed=number
        )
        trace = answered(two_models, f"{PROMPTS[number]} {number}", settings)
        assert trace.token_ids == plain_ids(two_models, trace)
        assert trace.certificate.certified


def test_a_draft_model_is_accepted_sometimes_and_rejected_sometimes(two_models):
    summary = summarize(answered(two_models, PROMPTS[0], Settings(max_new_tokens=80, drafter="model", draft_tokens=4)))
    assert 0 < summary.accepted < summary.drafted


def test_the_baseline_streams_the_same_tokens_and_says_identical(embedded):
    trace = answered(embedded, PROMPTS[0], Settings(max_new_tokens=30))
    *tokens, compared = embedded.baseline(trace)
    assert tuple(token.id for token in tokens) == trace.token_ids == tuple(t.id for t in compared.baseline.tokens)
    assert compared.identical is True
    assert "".join(token.text for token in tokens) == trace.text
    assert summarize(compared).speedup > 0


def test_an_answer_that_is_not_the_targets_is_not_called_identical(embedded):
    trace = answered(embedded, PROMPTS[0], Settings(max_new_tokens=20))
    last = trace.rounds[-1]
    forged = dataclasses.replace(last, emitted=dataclasses.replace(last.emitted, id=last.emitted.id + 1))
    forged_trace = dataclasses.replace(trace, rounds=(*trace.rounds[:-1], forged), certificate=None)
    *_, compared = embedded.baseline(forged_trace)
    assert compared.identical is False


def test_asking_again_reuses_the_prompt_and_gives_the_same_answer(embedded):
    first = answered(embedded, "Name three colours.", Settings(max_new_tokens=20))
    again = answered(embedded, "Name three colours.", Settings(max_new_tokens=20, draft_tokens=3))
    assert first.prompt_reused < again.prompt_reused == again.prompt_tokens
    assert again.token_ids == first.token_ids


def test_the_opening_of_the_template_is_prefilled_once(embedded):
    prompts = embedded._engine("exact").prompts
    prompts.clear()
    first = answered(embedded, "Name two rivers of Asia.", Settings(max_new_tokens=20))
    second = answered(embedded, "Who wrote Don Quixote?", Settings(max_new_tokens=20))
    assert first.prompt_reused == 0 and second.prompt_reused == len(prompts.opening) > 8
    prompts.clear()
    fresh = answered(embedded, "Who wrote Don Quixote?", Settings(max_new_tokens=20))
    assert fresh.prompt_reused == 0 and fresh.token_ids == second.token_ids
    assert fresh.rounds[0].emitted.target_probability == second.rounds[0].emitted.target_probability


def test_a_shared_beginning_of_long_prompts_is_prefilled_once(embedded):
    passage = "The river rose in the night and the bridge was gone by morning. " * 25
    answered(embedded, passage + "Who came?", Settings(max_new_tokens=2))
    second = answered(embedded, passage + "What was gone?", Settings(max_new_tokens=12))
    assert 256 <= second.prompt_reused < second.prompt_tokens
    embedded._engine("exact").prompts.clear()
    fresh = answered(embedded, passage + "What was gone?", Settings(max_new_tokens=12))
    assert fresh.prompt_reused == 0 and fresh.token_ids == second.token_ids


def test_every_token_has_its_text_and_the_trace_survives_json(embedded):
    trace = answered(embedded, PROMPTS[7], Settings(max_new_tokens=25))
    assert trace.text == embedded._tokenizer.decode(trace.token_ids) or trace.text.startswith(
        embedded._tokenizer.decode(trace.token_ids)[:-1]
    )
    assert from_json(to_json(trace)) == trace


def test_stopping_ends_within_a_round_and_the_next_question_is_answered(embedded):
    stop = threading.Event()
    seen = []
    for event in embedded.answer(PROMPTS[0], Settings(max_new_tokens=200), stop=stop):
        seen.append(event)
        if len(seen) == 5:
            stop.set()
    assert seen[-1].finish_reason == "cancelled" and len(seen) == 6
    assert answered(embedded, PROMPTS[0], Settings(max_new_tokens=10)).finish_reason == "length"


def test_dropping_the_iterator_frees_the_session_and_its_blocks(embedded):
    target = embedded._engine("exact").target
    answered(embedded, PROMPTS[1], Settings(max_new_tokens=5))
    used = target.pool.used
    events = embedded.answer(PROMPTS[1], Settings(max_new_tokens=200))
    next(events), next(events)
    events.close()
    assert target.pool.used == used
    assert answered(embedded, PROMPTS[1], Settings(max_new_tokens=5)).finish_reason == "length"


def test_the_context_limit_ends_an_answer_exactly(tiny_llama_pair):
    session = Session(dataclasses.replace(tiny_llama_pair, context_limit=40))
    try:
        trace = answered(session, "hello", Settings(max_new_tokens=500, draft_tokens=7))
        assert trace.finish_reason == "context"
        assert trace.prompt_tokens + len(trace.token_ids) == 40
        assert trace.token_ids == plain_ids(session, trace)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("instruction", "settings", "said"),
    [
        ("", Settings(), "empty"),
        (" \n", Settings(), "empty"),
        ("word " * 9000, Settings(), "shorten"),
        ("hi", Settings(max_new_tokens=0), "max new tokens is 0"),
        ("hi", Settings(draft_tokens=0), "draft tokens is 0"),
        ("hi", Settings(temperature=-1), "temperature is -1"),
        ("hi", Settings(temperature=float("nan")), "temperature is nan"),
        ("hi", Settings(top_p=0), "top-p is 0"),
        ("hi", Settings(top_k=-1), "top-k is -1"),
        ("hi", Settings(numerics="sloppy"), "numerics is 'sloppy'"),
        ("hi", Settings(drafter="oracle"), "drafter is 'oracle'"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(embedded, instruction, settings, said):
    with pytest.raises(RequestError, match=said):
        embedded.answer(instruction, settings)


# Several at a time


def together(session: Session, requests: list[tuple[str, Settings]]) -> list[Trace]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: answered(session, *request), requests))


def test_visitors_at_the_same_time_get_what_each_gets_alone(embedded):
    settings = [Settings(max_new_tokens=20), Settings(max_new_tokens=20, temperature=0.8, seed=3)]
    requests = [(f"{prompt} ", settings[at % 2]) for at, prompt in enumerate(PROMPTS[:6])]
    alone = [answered(embedded, *request) for request in requests]
    embedded._engine("exact").prompts.clear()
    shared = together(embedded, requests)
    assert [trace.token_ids for trace in shared] == [trace.token_ids for trace in alone]
    assert all(trace.certificate.certified for trace in shared)
    assert max(trace.shared_with for trace in shared) >= 3 and not any(trace.shared_with for trace in alone)
    assert [trace.instruction for trace in shared] == [instruction for instruction, _ in requests]
    assert all(use.used == use.kept for use in embedded.cache_blocks().values())


def test_two_models_answer_many_at_once_as_the_target_alone_does(two_models):
    requests = [
        (f"{PROMPTS[at % 8]} {at}" * (1 + at), Settings(max_new_tokens=40, drafter="model", draft_tokens=at % 5 + 1))
        for at in range(10)
    ]
    for trace in together(two_models, requests):
        assert trace.token_ids == plain_ids(two_models, trace) and trace.certificate.certified
    assert all(use.used == use.kept for use in two_models.cache_blocks().values())


def test_sequences_in_one_forward_get_bitwise_the_logits_that_each_gets_alone(embedded):
    engine = embedded._engine("exact")
    said = "requests that share a forward get the same bits" in engine.found
    assert said == (engine.merged > 0) == numerics.merging_is_exact(engine.target, engine.merged or 16)


def test_the_timed_baseline_says_with_how_many_it_shared_the_machine(two_models):
    trace = answered(two_models, PROMPTS[0], Settings(max_new_tokens=80))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: list(two_models.baseline(trace))[-1], range(2)))
    assert all(compared.identical for compared in both)
    assert max(compared.baseline.shared_with for compared in both) == 1
    assert from_json(to_json(both[0])) == both[0]


def test_an_exclusive_session_never_shares_the_machine(tiny_llama_pair):
    session = Session(tiny_llama_pair, exclusive=True)
    try:
        traces = together(session, [(f"hello {at}", Settings(max_new_tokens=30)) for at in range(4)])
        assert [trace.shared_with for trace in traces] == [0] * 4
    finally:
        session.close()


def test_a_cache_of_fixed_size_serves_everybody_in_turn_and_never_grows(tiny_llama_pair):
    session = Session(dataclasses.replace(tiny_llama_pair, context_limit=300), cache_mb=1)
    try:
        engine = session._engine("exact")
        engine.target.pool.limit = 10  # one of these requests and no second one
        size = len(engine.target.pool.references)
        requests = [(f"{PROMPTS[0]} {at}", Settings(max_new_tokens=60)) for at in range(8)]
        for trace in together(session, requests):
            assert trace.token_ids == plain_ids(session, trace)
        assert len(engine.target.pool.references) == size and engine.target.pool.used <= 10
        with pytest.raises(RequestError, match="KV cache holds 320 for everybody"):
            next(session.answer("hello " * 20, Settings(max_new_tokens=250)))
    finally:
        session.close()


def test_an_inference_that_fails_is_an_error_for_its_visitor_and_the_next_one_is_answered(two_models, monkeypatch):
    target = two_models._engine("exact").target
    forward = target.forward
    fails = iter([True])

    def broken(batch):
        if len(target_calls) == 3 and next(fails, False):
            raise ModelError("The inference failed: broken on purpose")
        target_calls.append(len(batch))
        return forward(batch)

    target_calls: list[int] = []
    monkeypatch.setattr(target, "forward", broken)
    with pytest.raises(ModelError):
        answered(two_models, "This one is unlucky", Settings(max_new_tokens=40))
    trace = answered(two_models, "This one is not", Settings(max_new_tokens=40))
    assert trace.finish_reason == "length" and trace.certificate.certified
    assert all(use.used == use.kept for use in two_models.cache_blocks().values())


def test_models_deleted_from_the_disk_go_on_answering_and_opening_them_again_says_what_to_do(tiny_llama_pair, tmp_path):
    copied = {}
    for name in ("target", "draft"):
        shutil.copytree(getattr(tiny_llama_pair, f"{name}_xml").parent, tmp_path / name)
        copied[f"{name}_xml"] = tmp_path / name / "openvino_model.xml"
    session = Session(dataclasses.replace(tiny_llama_pair, **copied))
    try:
        before = answered(session, "hello", Settings(max_new_tokens=20))
        for name in ("target", "draft"):
            shutil.rmtree(tmp_path / name)
        session._engine("exact").prompts.clear()
        assert answered(session, "hello", Settings(max_new_tokens=20)).token_ids == before.token_ids
        with pytest.raises(ModelError, match="fetch or export it again"):
            next(session.answer("hello", Settings(max_new_tokens=5, numerics="fast")))
        assert answered(session, "hello", Settings(max_new_tokens=20)).token_ids == before.token_ids
    finally:
        session.close()


def test_fast_numerics_answer_too_and_carry_no_certificate(embedded):
    trace = answered(embedded, PROMPTS[4], Settings(max_new_tokens=12, numerics="fast"))
    assert trace.certificate is None and len(trace.token_ids) == 12
    *_, compared = embedded.baseline(trace)
    assert compared.identical in (True, False)
