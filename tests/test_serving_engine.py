"""The API in front of a real pair, and the remote session: the same answers as without."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fakes import served, until

from specdemo.answering import Question
from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, RequestFailed
from specdemo.serving.client import RemoteSession
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import BaselineToken, Trace
from specdemo.ui.choice import RemoteOffer

PROMPTS = [
    "Explain the difference between fission and fusion",
    "List five fruits.",
    "What is 17 times 23?",
    "def fibonacci(n):",
]


@pytest.fixture(scope="module")
def server(session, tiny_llama_pair):
    with served(session, tiny_llama_pair) as running:
        yield running


@pytest.fixture(scope="module")
def chat(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)

    def ask(prompt: str, **more):
        messages = [{"role": "user", "content": prompt}]
        return client.chat.completions.create(model="tiny-llama", messages=messages, **more)

    return ask


@pytest.fixture(scope="module")
def remote(server):
    with RemoteSession(server.url) as opened:
        yield opened


def answered(session, instruction, settings, **more) -> Trace:
    *_, trace = session.answer(instruction, settings, **more)
    return trace


def test_clients_at_once_get_what_the_session_says_to_one_alone(chat, session):
    alone = [answered(session, prompt, Settings(max_new_tokens=24)).text for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda one: chat(one, max_tokens=24, temperature=0), PROMPTS))
    assert [answer.choices[0].message.content for answer in answers] == alone


def test_a_remote_session_yields_the_rounds_and_the_trace_of_a_session_here(remote, session):
    settings = Settings(max_new_tokens=20, draft_tokens=3, temperature=0.8, seed=7)
    *rounds, trace = remote.answer(PROMPTS[1], settings)
    here = answered(session, PROMPTS[1], settings)
    assert all(isinstance(one, Round) for one in rounds) and tuple(rounds) == trace.rounds
    assert (trace.token_ids, trace.text, trace.settings) == (here.token_ids, here.text, settings)
    assert trace.pair == here.pair
    there, here = (answered(one, "t", settings, prompt=(5, 6, 7)) for one in (remote, session))
    assert (there.token_ids, there.instruction) == (here.token_ids, "t")


def test_a_remote_race_yields_rounds_then_baseline_tokens_then_the_trace(remote):
    *events, trace = remote.race(PROMPTS[1], Settings(max_new_tokens=20))
    events = [event for event in events if not isinstance(event, Waiting)]
    assert (*trace.rounds, *trace.baseline.tokens) == tuple(events) and trace.identical


@pytest.mark.parametrize(
    ("question", "kind", "reason"),
    [
        ({"settings": Settings(max_new_tokens=200), "baseline": True}, BaselineToken, "stop"),
        ({"settings": Settings(max_new_tokens=1900)}, Round, "cancelled"),
    ],
)
def test_stopping_a_remote_run_frees_its_place_and_keeps_what_had_come(
    remote, session, question, kind, reason
):
    stop = threading.Event()
    events = remote.ask(Question(PROMPTS[0], stop=stop, **question))
    first = next(event for event in events if isinstance(event, kind))
    stop.set()
    *_, trace = events
    assert trace.finish_reason == reason and trace.identical is None
    kept = trace.baseline.tokens if kind is BaselineToken else trace.rounds
    assert kept[0] == first and len(kept) < 200
    until(lambda: not session.load.active)


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        ("  ", Settings(), "is empty; write a question or a task"),
        ("Hi", Settings(max_new_tokens=4000), "at most 2047 tokens"),
        ("word " * 3000, Settings(), "this model reads fewer than 2048"),
    ],
)
def test_a_remote_refusal_is_the_engines_own_sentence(remote, words, settings, said):
    with pytest.raises(BadInput, match=said):
        list(remote.answer(words, settings))


def test_an_engine_that_is_not_there_is_said_in_a_sentence():
    with pytest.raises(RequestFailed, match="server at http://127.0.0.1:9 cannot be reached"):
        RemoteSession("http://127.0.0.1:9")
    for url in ("127.0.0.1:8000", "ftp://x"):
        with pytest.raises(BadInput, match="not the address of a server"):
            RemoteSession(url)


def test_the_page_offers_the_engines_pair_and_no_other(server, session):
    offer = RemoteOffer(server.url)
    [(title, _)] = offer.pairs()
    assert "tiny target" in title and server.url in title
    assert offer.resolve(offer.first) == offer.first
    with offer.open_session() as opened:
        assert opened.info == session.info
    with pytest.raises(BadInput, match="its pair is tiny target"):
        offer.resolve(ModelChoice("dolly-3b"))
