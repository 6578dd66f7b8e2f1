"""The API in front of a real pair: the same answers as without."""

from __future__ import annotations

from functools import partial

import openai
import pytest
from helpers import served

PROMPTS = ["Explain the difference between fission and fusion", "List five fruits."]


@pytest.fixture(scope="module")
def client(session, tiny_llama_pair):
    with served(session, tiny_llama_pair) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def complete(client):
    return partial(client.completions.create, model="tiny-llama")


def test_several_answers_are_those_of_single_requests(complete):
    both, how = PROMPTS, {"max_tokens": 12, "temperature": 1}
    together = complete(prompt=both, n=2, seed=3, **how).choices
    alone = [
        complete(prompt=prompt, seed=seed, **how).choices[0].text
        for prompt in both
        for seed in (3, 4)
    ]
    assert [choice.text for choice in together] == alone


def test_the_likelihood_of_an_echo_is_that_of_the_answer(complete):
    how = {"temperature": 0, "logprobs": 2}
    prompt = [5, 6, 7, 8]
    made = complete(prompt=prompt, max_tokens=8, **how).choices[0].logprobs
    trace = complete(
        prompt=prompt, max_tokens=8, temperature=0, extra_body={"speculative": {"trace": True}}
    ).model_extra["speculative"]["trace"]
    answer = [
        token["id"]
        for round_ in trace["rounds"]
        for token in [*filter(lambda t: t["accepted"], round_["drafted"]), round_["emitted"]]
        if token
    ]
    echo = complete(prompt=prompt + answer, max_tokens=1, echo=True, **how).choices[0].logprobs
    assert echo.token_logprobs[0] is None and len(echo.tokens) == len(prompt) + 9
    assert echo.tokens[4:12] == made.tokens
    assert echo.token_logprobs[4:12] == pytest.approx(made.token_logprobs, abs=0.05)
    pairs = zip(made.top_logprobs, made.tokens, strict=True)
    assert all(likely[text] == max(likely.values()) for likely, text in pairs), "it is greedy"


def test_what_a_prediction_foretells_is_drafted(client):
    options = {"messages": [{"role": "user", "content": PROMPTS[1]}], "model": "tiny-llama"}
    options["extra_body"] = {"speculative": {"drafter": "lookup", "draft_tokens": 4}}
    create = partial(client.chat.completions.create, max_tokens=24, temperature=0, **options)
    text = create().choices[0].message.content
    predicted = create(prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0
