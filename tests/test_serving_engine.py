"""The API in front of a real pair: the same answers as without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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
def chat(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)

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
