"""Replicas on Ray: one is killed under load, or the load brings another one."""

import itertools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai

from specdemo.bench.prompts import read_prompts
from specdemo.server import ray
from specdemo.server.server_options import ServeOptions

VISITORS, PATIENCE = 6, 150.0
DELAYS = {"upscale_delay_s": 3.0, "downscale_delay_s": 8.0, "look_back_period_s": 5.0}


def service(**replicas):
    port = random.randrange(20_000, 30_000)  # Ray's processes take ports that systems give
    options = ServeOptions("embedded", port=port, cpus_per_replica=1, **replicas)
    return ray.on_ray(options, threading.Event())


def wait_for(url: str, replicas: int) -> None:
    until = time.monotonic() + PATIENCE
    while httpx.get(f"{url}/health", timeout=PATIENCE).json().get("replicas") != replicas:
        assert time.monotonic() < until, f"there were not {replicas} replicas"
        time.sleep(0.3)


def under_load(url: str, during) -> list[str]:
    """What became of each question of visitors who ask one after the other: "finished", "cut off",
    or what went wrong."""
    leaving, ended = threading.Event(), []

    def visit(_: int) -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        how = {"model": "embedded", "max_tokens": 48, "temperature": 0, "stream": True}
        for prompt in itertools.takewhile(lambda _: not leaving.is_set(), read_prompts()):
            asked = [{"role": "user", "content": prompt.instruction}]
            try:
                list(client.chat.completions.create(messages=asked, **how))
                ended.append("finished")
            except openai.APIError as error:
                ended.append("cut off" if "has died" in str(error) else str(error))

    with ThreadPoolExecutor(VISITORS) as pool:
        visits = pool.map(visit, range(VISITORS))
        try:
            during()
        finally:
            leaving.set()
        list(visits)
    return ended


def busiest() -> tuple[int, int]:
    """Process id, and requests in flight, of the replica that has most to do."""
    from ray import serve

    handle = serve.get_deployment_handle(ray.ENGINE, ray.NAME)
    told = handle.broadcast("report").results(timeout_s=10, return_exceptions=True)
    reports = [one for one in told if not isinstance(one, Exception)]
    found = max(reports, key=lambda report: report["in_flight"])
    return found["pid"], found["in_flight"]


def test_a_replica_that_is_killed_costs_its_begun_answers_and_no_others():
    in_flight = 0

    def kill() -> None:
        nonlocal in_flight
        time.sleep(5)  # until everybody is in the middle of something
        process, in_flight = busiest()
        os.kill(process, signal.SIGKILL)
        wait_for(url, 1)
        wait_for(url, 2)
        time.sleep(5)

    with service(replicas=2) as url:
        wait_for(url, 2)
        ended = under_load(url, kill)
    assert ended.count("cut off") <= in_flight
    assert set(ended) <= {"finished", "cut off"}


def test_load_brings_a_replica_and_quiet_takes_it_away(monkeypatch):
    monkeypatch.setattr(ray, "SCALING", DELAYS)
    with service(max_replicas=2, max_ongoing=4) as url:
        wait_for(url, 1)
        ended = under_load(url, lambda: wait_for(url, 2))
        wait_for(url, 1)
    assert set(ended) == {"finished"}
