"""The dearest requests of each route of the API, sent one after the other, while another visitor
waits for first tokens."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import suppress
from statistics import median

import httpx
import psutil
import pytest

from specdemo.bench.load_test import started
from specdemo.engine.messages import PREFILL_CHUNK

JSON = {"Content-Type": "application/json"}
BYTES = 762_000  # of a body for the embedded pair
LONG = 2_000  # tokens
WIDE = {f"property {number}": {"type": "string"} for number in range(1700)}
NUMBERS = itertools.count()


def chat(content="Hello.", **more) -> tuple[str, str, str]:
    body = {"model": "embedded", "messages": [{"role": "user", "content": content}], **more}
    return "POST", "/v1/chat/completions", json.dumps(body, ensure_ascii=False)


def completion(prompt, **more) -> tuple[str, str, str]:
    return "POST", "/v1/completions", json.dumps({"model": "embedded", "prompt": prompt, **more})


def schema(properties: dict) -> dict:
    wanted = {"name": "wide", "schema": {"type": "object", "properties": properties}}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def long_prompt() -> tuple[str, str, str]:
    """A prompt of tokens that were never read before."""
    return completion([next(NUMBERS) + 5, *range(100, LONG + 99)], max_tokens=1)


DEAREST = {
    "a text of as many characters as may be": lambda: chat("a b " * 165_000),
    "a text of as many tokens": lambda: chat("\U0001f600" * (BYTES // 4 - 100)),
    "parts of messages": lambda: chat([{"type": "text", "text": "a"}] * 1000),
    "a schema of as many characters": lambda: chat(**schema({**WIDE, str(next(NUMBERS)): True})),
    "a body of lists": lambda: chat(metadata=[[]] * (BYTES // 4 - 100)),
    "a wrong body": lambda: chat([{}] * (BYTES // 4 - 100)),
    "a body that is too large": lambda: chat("x" * 3_999_000),
    "an answer of 400 tokens": lambda: chat(f"Tell {next(NUMBERS)} stories.", max_tokens=400),
    "ids beyond the context": lambda: completion([1] * (BYTES // 3 - 100)),
    "a long prompt": long_prompt,
    "echoes with log-probabilities": lambda: completion(
        list(range(next(NUMBERS), 400)), echo=True, logprobs=20, max_tokens=0
    ),
    "many answers": lambda: chat("Tell a story.", n=32, max_tokens=16),
    "a model of a long name": lambda: ("GET", "/v1/models/" + "x" * 60_000, None),
    "the models": lambda: ("GET", "/v1/models", None),
    "the description": lambda: ("GET", "/openapi.json", None),
    "the health": lambda: ("GET", "/health", None),
    "the metrics": lambda: ("GET", "/metrics", None),
}


@pytest.fixture(scope="module")
def server(embedded_pair):
    command = "-m", "specdemo", "serve", "--no-ray", "--pair", "embedded"
    with started(*command, SPECDEMO_LOG="WARNING") as running:
        yield running


def first_tokens(client: httpx.Client, count: int) -> list[float]:
    """Seconds to the first tokens of short questions, one after the other."""
    seconds = []
    for _ in range(count):
        _, path, body = chat(f"Say {next(NUMBERS)}.", max_tokens=2, stream=True)
        begun = time.monotonic()
        with client.stream("POST", path, content=body, headers=JSON) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            seconds.append(time.monotonic() - begun)
            list(lines)
    return seconds


def send(client: httpx.Client, dearest: str) -> httpx.Response:
    method, path, body = DEAREST[dearest]()
    return client.request(method, path, content=body, headers=JSON if body else None)


@pytest.mark.parametrize("dearest", DEAREST)
def test_the_dearest_request_makes_another_visitor_wait_at_most_twice_as_long(server, dearest):
    process, ended = psutil.Process(server.process.pid), threading.Event()
    with (
        httpx.Client(base_url=server.url, timeout=600) as visitor,
        httpx.Client(base_url=server.url, timeout=600) as attacker,
    ):
        first_tokens(visitor, 2)
        alone = median(first_tokens(visitor, 10))
        cpu, begun = sum(process.cpu_times()[:2]), time.monotonic()
        status = send(attacker, dearest).status_code
        cpu = sum(process.cpu_times()[:2]) - cpu
        seconds = time.monotonic() - begun

        def attack() -> None:
            with suppress(httpx.HTTPError, RuntimeError):  # it is closed in the end
                while not ended.wait(0.1):
                    send(attacker, dearest)

        attacking = threading.Thread(target=attack)
        attacking.start()
        try:
            attacked = median(first_tokens(visitor, 10))
        finally:
            ended.set()
            attacker.close()
            attacking.join()
    print(
        f"{dearest}: {status}, {1000 * seconds:,.0f} ms, {1000 * cpu:,.0f} ms of processors; "
        f"first token {1000 * alone:.0f} ms alone, {1000 * attacked:.0f} ms attacked"
    )
    # No forward is interrupted, so a long prompt of another visitor delays by one of its chunks.
    chunk = seconds * PREFILL_CHUNK / LONG if dearest == "a long prompt" else 0.0
    assert status < 500 and attacked < 2 * alone + 2 * chunk + 0.1
