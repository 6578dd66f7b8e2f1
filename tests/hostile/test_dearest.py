"""The dearest requests of each route, sent one after the other, and floods that are no requests,
while another visitor waits for first tokens."""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from statistics import median
from typing import NamedTuple

import httpx
import psutil
import pytest
from test_page_parts import largest_run

from specdemo.machine.server_process import started
from tools.load_test import ask

BYTES = 762_000  # of a body for the embedded pair
LONG = 2_000  # tokens
PATIENCE = 5.0  # seconds that the attacker waits for more of an answer
JITTER = 0.03
"""Seconds by which medians of first tokens differ on a machine that does nothing else."""

WIDE = {f"property {number}": {"type": "string"} for number in range(1700)}
NUMBERS = itertools.count()
Sent = tuple[str, str, dict | None]


def chat(content="Hello.", **more) -> Sent:
    body = {"model": "embedded", "messages": [{"role": "user", "content": content}], **more}
    return "POST", "/v1/chat/completions", body


def completion(prompt, **more) -> Sent:
    return "POST", "/v1/completions", {"model": "embedded", "prompt": prompt, **more}


def schema(properties: dict) -> dict:
    wanted = {"name": "wide", "schema": {"type": "object", "properties": properties}}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def new_prompt(tokens: int = LONG) -> list[int]:
    """Tokens that were never read before."""
    return [next(NUMBERS) + 5, *range(100, tokens + 99)]


def predicted(text: str) -> dict:
    return {"prediction": {"type": "content", "content": text}}


TOOL = {"name": "f", "parameters": {"type": "object", "properties": WIDE}}
API: dict[str, Callable[[], Sent]] = {
    "a text of as many characters as may be": lambda: chat("a b " * 165_000),
    "a text of as many tokens": lambda: chat("\U0001f600" * (BYTES // 4 - 100)),
    "a text that fits": lambda: chat("a b " * 8_000, max_tokens=1),
    "parts of messages": lambda: chat([{"type": "text", "text": "a"}] * 1000, max_tokens=16),
    "variables of the template": lambda: chat(chat_template_kwargs={"a": "<|im_end|>" * 60_000}),
    "a prediction": lambda: chat(**predicted("a b " * 165_000), n=32, max_tokens=1),
    "a schema of as many characters": lambda: chat(**schema({**WIDE, str(next(NUMBERS)): True})),
    "tools": lambda: chat(tools=[{"type": "function", "function": TOOL}] * 3),
    "a body of lists": lambda: chat(metadata=[[]] * (BYTES // 4 - 100), max_tokens=16),
    "a wrong body": lambda: chat([{}] * (BYTES // 4 - 100)),
    "a body that is too large": lambda: chat("x" * 3_999_000),
    "an answer of 400 tokens": lambda: chat(f"Tell {next(NUMBERS)} stories.", max_tokens=400),
    "ids beyond the context": lambda: completion([1] * (BYTES // 3 - 100)),
    "a long prompt": lambda: completion(new_prompt(), max_tokens=1),
    "long prompts": lambda: completion([new_prompt(500) for _ in range(8)], max_tokens=1),
    "echoes with log-probabilities": lambda: completion(
        new_prompt(400), echo=True, logprobs=20, max_tokens=0
    ),
    "many answers": lambda: chat("Tell a story.", n=32, max_tokens=16, logprobs=True),
    "log-probabilities of many answers": lambda: chat(
        "Tell a story.", n=32, max_tokens=24, logprobs=True, top_logprobs=20
    ),
    "a trace and a baseline": lambda: chat(
        "Tell a story.", max_tokens=100, speculative={"trace": True, "baseline": True}
    ),
    "a model of a long name": lambda: ("GET", "/v1/models/" + "x" * 60_000, None),
    "the models": lambda: ("GET", "/v1/models", None),
    "the description": lambda: ("GET", "/openapi.json", None),
    "the health": lambda: ("GET", "/health", None),
    "the metrics": lambda: ("GET", "/metrics", None),
}


def run_of(path: str, question: str, **values) -> Sent:
    """A run of the page in a tab of its own."""
    values = {"pair": "embedded", "question": question, **values}
    return "POST", path, {"visitor": f"tab{next(NUMBERS)}", "values": values}


def opened(run: str) -> Sent:
    return "POST", "/open", {"run": run, "visitor": f"tab{next(NUMBERS)}"}


LARGEST = largest_run()
PAGE: dict[str, Callable[[], Sent]] = {
    "a question of as many characters": lambda: run_of("/race", "a b " * 5_000, max_new_tokens=1),
    "a race": lambda: run_of("/race", f"Tell {next(NUMBERS)} stories.", max_new_tokens=300),
    "races of the drafts": lambda: run_of("/drafts", "Tell a story.", max_new_tokens=60),
    "the benchmark": lambda: run_of("/benchmark", ""),
    "a saved run": lambda: opened(LARGEST),
    "a saved run that is none": lambda: opened("[" * 1_000_000),
    "a call of /generate": lambda: (
        "POST",
        "/gradio_api/call/v2/generate",
        {"instruction": "x " * 9_000, "max_new_tokens": 1},
    ),
    "the page": lambda: ("GET", "/", None),
    "the figures": lambda: ("GET", "/metrics", None),
}


class Running(NamedTuple):
    """A server, and the seconds to the first token of one short question."""

    url: str
    process: psutil.Process
    first_token: Callable[[httpx.Client], float]


def of_api(client: httpx.Client) -> float:
    method, path, body = chat(f"Say {next(NUMBERS)}.", max_tokens=2, stream=True)
    begun = time.monotonic()
    with client.stream(method, path, json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        seconds = time.monotonic() - begun
        list(lines)
    return seconds


def of_page(client: httpx.Client) -> float:
    begun = time.monotonic()
    with closing(ask(client, str(client.base_url).rstrip("/"), f"Say {next(NUMBERS)}.", 2)) as told:
        next(told)
        seconds = time.monotonic() - begun
        list(told)
    return seconds


@pytest.fixture(scope="module")
def api(embedded_pair):
    command = "-m", "specdemo", "serve", "--no-ray", "--pair", "embedded"
    with started(*command, SPECDEMO_LOG="WARNING") as server:
        yield Running(server.url, psutil.Process(server.process.pid), of_api)


@pytest.fixture(scope="module")
def page(embedded_pair):
    with started("app.py", "--pair", "embedded", "--shared", SPECDEMO_LOG="WARNING") as server:
        yield Running(server.url, psutil.Process(server.process.pid), of_page)


def first_tokens(server: Running, client: httpx.Client, count: int) -> float:
    return median(server.first_token(client) for _ in range(count))


def send(client: httpx.Client, request: Sent) -> int:
    """The status of the answer, of which no more is read after PATIENCE; 0 if it has not begun."""
    method, path, body = request
    until = time.monotonic() + PATIENCE
    try:
        with client.stream(method, path, json=body) as response:
            for _ in itertools.takewhile(lambda _: time.monotonic() < until, response.iter_raw()):
                pass
            return response.status_code
    except httpx.TimeoutException:
        return 0


def measure(server: Running, name: str, dearest: Callable[[], Sent]) -> None:
    """The first token may take twice as long."""
    with (
        httpx.Client(base_url=server.url, timeout=60) as visitor,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as attacker,
    ):
        alone = alone_of(server, visitor)
        cpu, begun = sum(server.process.cpu_times()[:2]), time.monotonic()
        status = send(attacker, dearest())
        cpu = sum(server.process.cpu_times()[:2]) - cpu
        seconds = time.monotonic() - begun

        def again() -> None:
            with suppress(httpx.TransportError):
                send(attacker, dearest())

        with attacking(again, pause=0.1):
            attacked = first_tokens(server, visitor, 7)
    print(
        f"{name}: {status}, {1000 * seconds:,.0f} ms, {1000 * cpu:,.0f} ms of processors; "
        f"first token {1000 * alone:.0f} ms alone, {1000 * attacked:.0f} ms attacked"
    )
    assert status < 500 and attacked < 2 * alone + JITTER


def alone_of(server: Running, visitor: httpx.Client) -> float:
    first_tokens(server, visitor, 1)
    return first_tokens(server, visitor, 5)


@contextmanager
def attacking(attack: Callable[[], None], pause: float = 0.0) -> Iterator[None]:
    """Repeats an attack in a thread during the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause):
            attack()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


HEAD = "{} {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + "Transfer-Encoding: chunked\r\n\r\n"
POST = "POST", "/v1/chat/completions"
GET = HEAD.format("GET", "/health", "localhost")
FLOODS = {
    "chunks of a byte": (CHUNKED.format(*POST, "localhost"), "1\r\n1\r\n"),
    "chunks of a byte after 403": (CHUNKED.format(*POST, "evil.example"), "1\r\n1\r\n"),
    "chunks of a byte in a GET": (CHUNKED.format("GET", "/health", "localhost"), "1\r\n1\r\n"),
    "extensions of chunks": (CHUNKED.format(*POST, "localhost"), "1;a=b\r\n1\r\n"),
    "headers": (HEAD.format(*POST, "localhost"), "a:b\r\n"),
    "requests that wait for others": (
        HEAD.format("GET", "/health", "localhost"),
        "\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_what_is_sent_without_end_does_not_stop_the_event_loop(api, name):
    """Over eight connections at once, which are opened again when they are closed. The attacker
    takes a core of its own; with a parser in Python first tokens took five hundred times as long.
    """
    begin, again = FLOODS[name]
    address, piece = ("127.0.0.1", httpx.URL(api.url).port), again.encode() * 10_000
    sockets: list[socket.socket | None] = [None] * 8
    sent = itertools.count()

    def flood() -> None:
        for number, each in enumerate(sockets):
            try:
                if each is None:
                    each = sockets[number] = socket.create_connection(address)
                    each.sendall(begin.encode())
                    each.setblocking(False)
                each.send(piece)
                next(sent)
            except BlockingIOError:
                pass
            except OSError:
                each.close()
                sockets[number] = None

    with httpx.Client(base_url=api.url, timeout=60) as visitor:
        alone, healthy = alone_of(api, visitor), health_of(visitor)
        with attacking(flood, pause=0.001):
            attacked, sick = first_tokens(api, visitor, 7), health_of(visitor)
    for each in filter(None, sockets):
        each.close()
    print(
        f"{name}: {next(sent):,} pieces; first token {1000 * alone:.0f} ms alone, "
        f"{1000 * attacked:.0f} ms attacked; /health {1000 * healthy:.1f} and {1000 * sick:.1f} ms"
    )
    assert attacked < 20 * alone + 0.1 and sick < 10 * healthy + 0.1


def health_of(visitor: httpx.Client) -> float:
    """Seconds: the median of ten."""

    def ask() -> float:
        begun = time.monotonic()
        assert visitor.get("/health").status_code == 200
        return time.monotonic() - begun

    return median(ask() for _ in range(10))


def test_silent_connections_and_streams_that_nobody_reads_keep_nobody_out(api):
    """1,200 connections: silent, with half a head, with half a body, and streams."""
    address = "127.0.0.1", httpx.URL(api.url).port
    _, _, body = chat("Tell a story.", max_tokens=400, stream=True)
    text = json.dumps(body)
    stream = HEAD.format(*POST, "localhost") + f"Content-Length: {len(text)}\r\n\r\n"
    kinds = "", HEAD.format(*POST, "localhost"), stream + "{", stream + text
    with ExitStack() as stack, httpx.Client(base_url=api.url, timeout=60) as visitor:
        alone, before = alone_of(api, visitor), api.process.memory_info().rss
        for number in range(1200):
            each = stack.enter_context(socket.create_connection(address))
            each.sendall(kinds[number % 3 if number % 100 else 3].encode())
        attacked, healthy = first_tokens(api, visitor, 7), health_of(visitor)
        grown = api.process.memory_info().rss - before
    print(
        f"first token {1000 * alone:.0f} ms alone, {1000 * attacked:.0f} ms beside 1,200 "
        f"connections; /health {1000 * healthy:.1f} ms; {grown / 1e6:.0f} MB more"
    )
    # Twelve streams are made meanwhile, eight at once.
    assert attacked < 50 * alone + 0.1 and healthy < 0.1 and grown < 300_000_000


@pytest.mark.parametrize("name", API)
def test_the_dearest_request_of_the_api_makes_another_wait_at_most_twice_as_long(api, name):
    measure(api, name, API[name])


@pytest.mark.parametrize("name", PAGE)
def test_the_dearest_request_of_the_page_makes_another_wait_at_most_twice_as_long(page, name):
    measure(page, name, PAGE[name])
