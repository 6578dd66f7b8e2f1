"""The API in front of a real pair: the same answers as without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest
from fakes import served

from specdemo.runs.settings import Settings

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
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def complete(client):
    return partial(client.completions.create, model="tiny-llama")


@pytest.fixture(scope="module")
def chat(client):
    def ask(prompt: str, **more):
        messages = [{"role": "user", "content": prompt}]
        return client.chat.completions.create(model="tiny-llama", messages=messages, **more)

    return ask


def test_clients_at_once_get_what_the_session_says_to_one_alone(chat, session):
    settings = Settings(max_new_tokens=24)
    alone = [[*session.answer(prompt, settings)][-1].text for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda one: chat(one, max_tokens=24, temperature=0), PROMPTS))
    assert [answer.choices[0].message.content for answer in answers] == alone


def test_several_answers_are_those_of_single_requests(complete):
    both, how = PROMPTS[:2], {"max_tokens": 12, "temperature": 1}
    together = complete(prompt=both, n=2, seed=3, **how).choices
    alone = [
        complete(prompt=prompt, seed=seed, **how).choices[0].text
        for prompt in both
        for seed in (3, 4)
    ]
    assert [choice.text for choice in together] == alone


CHANGES = [
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"logit_bias": {"17": 5, "40": -100}},
    {"repetition_penalty": 1.3, "min_p": 0.05},
    {"ignore_eos": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_what_changes_the_distribution_gives_the_sessions_answer(chat, session, change):
    sampling = {"temperature": 0.8, "seed": 5}
    settings = Settings(max_new_tokens=24, **sampling, **change)
    expected = [*session.answer(PROMPTS[0], settings)][-1].text
    answer = chat(PROMPTS[0], max_tokens=24, **sampling, extra_body=change)
    assert answer.choices[0].message.content == expected


def test_the_likelihood_of_an_echo_is_that_of_the_answer(complete):
    how = {"temperature": 0, "logprobs": 2}
    prompt = [5, 6, 7, 8]
    made = complete(prompt=prompt, max_tokens=8, **how).choices[0].logprobs
    trace = complete(
        prompt=prompt, max_tokens=8, temperature=0, extra_body={"speculative": {"trace": True}}
    ).model_extra["speculative"]["trace"]
    answer = [
        token["id"]
        for one in trace["rounds"]
        for token in [*filter(lambda t: t["accepted"], one["drafted"]), one["emitted"]]
        if token
    ]
    echo = complete(prompt=prompt + answer, max_tokens=1, echo=True, **how).choices[0].logprobs
    assert echo.token_logprobs[0] is None and len(echo.tokens) == len(prompt) + 9
    assert echo.tokens[4:12] == made.tokens
    assert echo.token_logprobs[4:12] == pytest.approx(made.token_logprobs, abs=0.05)
    pairs = zip(made.top_logprobs, made.tokens, strict=True)
    assert all(likely[text] == max(likely.values()) for likely, text in pairs), "it is greedy"


def test_what_a_prediction_foretells_is_drafted(chat):
    settings = {"max_tokens": 24, "temperature": 0}
    answer = chat(PROMPTS[1], **settings)
    text = answer.choices[0].message.content
    how = {"prediction": {"type": "content", "content": text}}
    predicted = chat(PROMPTS[1], **settings, **how)
    assert predicted.choices[0].message.content == text
