"""The API in front of a real pair, and the session that is somewhere else: the same answers as without."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from serving_fakes import served

from specdemo.trace import BaselineToken, Round, Settings, Trace
from specdemo.serving.client import EngineError, RemoteSession, RequestError, engine_url
from specdemo.session import Session
from specdemo.models.errors import BadChoice

PROMPTS = ["Explain the difference between fission and fusion", "List five fruits.", "What is 17 times 23?",
           "Write a haiku about rain.", "Name three colours.", "def fibonacci(n):"]  # fmt: skip


@pytest.fixture(scope="module")
def session(tiny_llama_pair):
    opened = Session(tiny_llama_pair)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server(session, tiny_llama_pair):
    with served(session, tiny_llama_pair, ongoing=8, waiting=8, longest=2000) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def remote(server):
    opened = RemoteSession(server.url)
    yield opened
    opened.close()


def chat(client, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model="tiny-llama", messages=messages, **more)


def answered(session, prompt, settings) -> Trace:
    *_, trace = session.answer(prompt, settings)
    return trace


def test_clients_at_once_get_what_the_session_says_to_one_alone(client, session):
    alone = {prompt: answered(session, prompt, Settings(max_new_tokens=24)).text for prompt in PROMPTS}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: chat(client, prompt, max_tokens=24, temperature=0), PROMPTS))
    assert [answer.choices[0].message.content for answer in answers] == [alone[prompt] for prompt in PROMPTS]
    assert all(answer.model_extra["speculative"]["certified"] is None for answer in answers)


def test_an_answer_is_certified_if_asked_for(client):
    answer = chat(client, PROMPTS[0], max_tokens=16, temperature=0, extra_body={"speculative": {"certify": True}})
    assert answer.model_extra["speculative"]["certified"]


def test_the_same_seed_gives_the_same_streamed_answer(client):
    def text() -> str:
        stream = chat(client, PROMPTS[0], max_tokens=16, temperature=0.8, seed=7, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert text() == text() != ""


def test_a_stop_string_ends_a_real_answer_before_it(client, session):
    whole = answered(session, PROMPTS[0], Settings(max_new_tokens=24)).text
    stop = whole[8:11]
    answer = chat(client, PROMPTS[0], max_tokens=24, temperature=0, stop=stop)
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_client_that_closes_its_stream_gives_its_place_in_the_batch_back(client, session):
    stream = chat(client, PROMPTS[0], max_tokens=1900, temperature=0, stream=True)
    next(iter(stream))
    assert session.load.active == 1
    stream.close()
    limit = time.monotonic() + 5
    while session.load.active and time.monotonic() < limit:
        time.sleep(0.01)
    assert session.load.active == 0


def test_a_remote_session_yields_the_rounds_and_the_trace_of_a_session_here(remote, session):
    settings = Settings(max_new_tokens=20, draft_tokens=3)
    *rounds, trace = remote.answer(PROMPTS[1], settings)
    here = answered(session, PROMPTS[1], settings)
    assert all(isinstance(one, Round) for one in rounds) and tuple(rounds) == trace.rounds
    assert (trace.token_ids, trace.text, trace.settings) == (here.token_ids, here.text, settings)
    assert trace.pair.target == here.pair.target and trace.certificate.certified


def test_a_remote_session_runs_the_baseline_too(remote):
    trace = answered(remote, PROMPTS[1], Settings(max_new_tokens=20))
    *tokens, compared = remote.baseline(trace)
    assert all(isinstance(one, BaselineToken) for one in tokens)
    assert tuple(one.id for one in tokens) == trace.token_ids
    assert compared.identical and compared.baseline.tokens == tuple(tokens)


def test_stopping_a_remote_answer_frees_its_place_and_keeps_what_had_come(remote, session):
    stop = threading.Event()
    events = remote.answer(PROMPTS[0], Settings(max_new_tokens=1900), stop=stop)
    first = next(events)
    stop.set()
    *_, trace = events
    assert trace.finish_reason == "cancelled" and trace.rounds[0] == first
    limit = time.monotonic() + 5
    while session.load.active and time.monotonic() < limit:
        time.sleep(0.01)
    assert session.load.active == 0


def test_a_remote_refusal_is_the_engines_own_sentence(remote):
    with pytest.raises(RequestError, match="The instruction is empty"):
        list(remote.answer("  ", Settings()))
    with pytest.raises(RequestError, match="draft tokens is 99"):
        list(remote.answer("Hi", Settings(draft_tokens=99)))


def test_a_trace_of_another_model_is_not_followed(remote):
    trace = answered(remote, PROMPTS[1], Settings(max_new_tokens=4))
    wrong = dataclasses.replace(trace.rounds[0].emitted, id=10**6)
    bad = dataclasses.replace(trace, rounds=(dataclasses.replace(trace.rounds[0], emitted=wrong),))
    with pytest.raises(RequestError, match="token ids that this model has not"):
        list(remote.baseline(bad))


def test_an_engine_that_is_not_there_is_said_in_a_sentence():
    with pytest.raises(EngineError, match="No engine answers at http://127.0.0.1:9"):
        RemoteSession("http://127.0.0.1:9")
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(BadChoice, match="not the address of an engine"):
            engine_url(url)


def test_the_page_offers_the_engines_pair_and_no_other(server, session):
    from specdemo.ui.controls import InputError, Models
    from specdemo.ui.remote import RemoteOffer

    offer = RemoteOffer(server.url)
    [offered] = offer.pairs()
    assert offered.value == "tiny-llama" and server.url in offered.title
    with offer.open_session(offer.resolve(Models("tiny-llama", device="GPU")), lambda *_: None) as opened:
        assert opened.info == session.info
    with pytest.raises(InputError, match="has the pair tiny-llama only"):
        offer.resolve(Models("dolly-3b"))


def test_a_remote_session_takes_what_a_session_takes():
    def taken(method) -> set[str]:
        return set(inspect.signature(method).parameters)

    assert taken(Session.answer) - {"prompt"} == taken(RemoteSession.answer)
    assert taken(Session.baseline) == taken(RemoteSession.baseline)
