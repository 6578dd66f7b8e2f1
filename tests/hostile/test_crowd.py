"""Fifty visitors with hang-ups, and an attacker who flips every setting that strangers get."""

from __future__ import annotations

import itertools
import os
import threading
import uuid

import httpx
import pytest

from specdemo.bench.prompts import read_prompts
from specdemo.serving.load import Crowd, LoadOptions, soak, started

SECONDS = float(os.environ.get("HOSTILE_SECONDS", 120))
PROMPTS = [prompt.instruction for prompt in read_prompts() if len(prompt.instruction) < 400]
FLIPS = (
    {"KV cache precision": "f16"},
    {"KV cache precision": "u8"},
    {"Device": "AUTO"},
    {"Draft device": "HETERO:CPU"},
    {"Numerics": "fast"},
    {"Pair": "gpt2-xl"},
    {"Pair": "own", "Target": "somebody/model"},
    {"Drafter": "model", "Draft length": "15", "Temperature": 5, "Seed": 7},
    {"Drafter": "lookup", "Draft length": "1", "Acceptance rule": "maximal", "Top-k": 1},
)


@pytest.fixture(scope="module")
def public_page(embedded_pair):
    """The page as strangers share it."""
    with started("app.py", "--pair", "embedded", "--shared", SPECDEMO_LOG="WARNING") as server:
        yield server


def test_fifty_visitors_lose_nothing_and_leave_nothing_behind(public_page):
    page = public_page
    asked = LoadOptions(visitors=50, minutes=SECONDS / 60, max_new_tokens=40)
    report = soak(page.url, page.process.pid, PROMPTS, asked)
    assert report["clean"], report
    assert "Traceback" not in page.said()


def test_an_attacker_does_not_slow_the_others_by_more_than_twice(public_page):
    crowd = Crowd(public_page.url, PROMPTS, 16)
    alone, errors = crowd.level(50, SECONDS / 3)
    done = threading.Event()
    attacking = threading.Thread(target=attack, args=(public_page.url, done))
    attacking.start()
    try:
        attacked, more = crowd.level(50, SECONDS / 3)
    finally:
        done.set()
        attacking.join()
    before, during = alone["ttft_p95_s"], attacked["ttft_p95_s"]
    print(f"first token, p95: {before:.2f} s alone, {during:.2f} s attacked")
    assert errors == more == []
    assert during < 2 * before


def attack(url: str, done: threading.Event) -> None:
    """Races with one setting after the other, each in a session of its own, not read to the end."""
    config = httpx.get(f"{url}/config").json()
    parts = {one["id"]: one["props"] for one in config["components"]}
    race = next(one for one in config["dependencies"] if one["api_name"] == "_race")
    start = {parts[id].get("label"): parts[id].get("value") for id in race["inputs"]}
    for flip in itertools.cycle(FLIPS):
        if done.is_set():
            return
        values = {**start, "Your question": "Tell a story.", "Maximum tokens": 2000, **flip}
        body = {"fn_index": race["id"], "session_hash": uuid.uuid4().hex}
        httpx.post(f"{url}/gradio_api/queue/join", json={**body, "data": list(values.values())})
        place = f"{url}/gradio_api/queue/data?session_hash={body['session_hash']}"
        with httpx.stream("GET", place, timeout=60) as stream:
            for line in itertools.islice(stream.iter_lines(), 20):
                if done.is_set() or "process_completed" in line:
                    break


@pytest.mark.parametrize("path", ["config", "gradio_api/info", "health"])
def test_the_page_still_answers_at_once_after_all_that(public_page, path):
    assert httpx.get(f"{public_page.url}/{path}", timeout=10).status_code == 200
