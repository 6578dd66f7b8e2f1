"""A bad day: killed, stopped, a full disk, damaged files, a home that cannot be written, an odd
encoding. Each failure is one sentence, and the next start mends what was left."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from specdemo.machine.server_process import ROOT, started
from specdemo.runs.saved_run import from_json
from tools.load_test import ask

SERVE = "-m", "specdemo", "serve", "--no-ray", "--pair", "embedded"
QUESTION = {
    "model": "embedded",
    "messages": [{"role": "user", "content": "Count from one to a hundred."}],
    "max_tokens": 600,
    "temperature": 0,
}
RUN = "run", "Say hello.", "--pair", "embedded", "--max-new-tokens", "4"


def specdemo(*arguments: str, question: bytes = b"", **environment: str):
    command = [sys.executable, "-m", "specdemo", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, input=question, capture_output=True)


def one_sentence(done: subprocess.CompletedProcess) -> str:
    said = done.stderr.decode(errors="replace").strip().splitlines()
    assert said and "Traceback" not in "".join(said), said
    assert said[-1].startswith("specdemo: ") and said[-1].endswith("."), said
    return said[-1]


@pytest.fixture
def copied_home(embedded_pair, tmp_path):
    """A home of its own with the embedded pair."""
    for xml in (embedded_pair.target, embedded_pair.head):
        shutil.copytree(xml.parent, tmp_path / "embedded" / xml.parent.name, symlinks=True)
    return tmp_path


@pytest.fixture(scope="session")
def whole_answer(embedded_pair) -> str:
    return from_json(specdemo(*RUN, "--json", "-").stdout).text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_answer_is_whole_in_any_encoding(embedded_pair, encoding):
    done = specdemo(*RUN, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_a_full_disk_and_a_home_that_cannot_be_written_are_one_sentence(embedded_pair):
    done = specdemo(*RUN, "--json", "/dev/full")
    assert done.returncode == 1 and "No space left" in one_sentence(done)
    done = specdemo("fetch", "embedded", SPECDEMO_HOME="/proc/nowhere")
    assert done.returncode == 1 and "/proc/nowhere" in one_sentence(done)


@pytest.mark.parametrize("damage", ["zeros", "cut", "gone"])
def test_a_damaged_file_is_made_anew(copied_home, whole_answer, damage):
    weights = max(copied_home.rglob("*.bin"), key=lambda path: path.stat().st_size)
    whole = weights.read_bytes()
    if damage == "zeros":
        middle = len(whole) // 3
        weights.write_bytes(whole[:middle] + bytes(middle) + whole[2 * middle :])
    elif damage == "cut":
        weights.write_bytes(whole[: len(whole) // 2])
    else:
        weights.unlink()
    first = specdemo(*RUN, SPECDEMO_HOME=str(copied_home))
    if first.returncode:
        assert weights.stem in one_sentence(first)
    done = specdemo(*RUN, "--json", "-", SPECDEMO_HOME=str(copied_home))
    assert done.returncode == 0, done.stderr
    assert from_json(done.stdout).text == whole_answer


@pytest.mark.parametrize("seconds", [1, 4])
def test_a_fetch_that_is_killed_is_finished_by_the_next(copied_home, seconds):
    shutil.rmtree(*(copied_home / "embedded").glob("draft-*"))
    command = [sys.executable, "-m", "specdemo", "fetch", "embedded"]
    environment = {**os.environ, "SPECDEMO_HOME": str(copied_home)}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        time.sleep(seconds)
        process.kill()
    done = specdemo(*RUN, SPECDEMO_HOME=str(copied_home))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [SERVE, ("app.py", "--pair", "embedded")], ids=["api", "page"])
def test_a_server_that_is_stopped_finishes_its_answers_and_says_so(embedded_pair, command):
    answers = []

    def answer(url: str) -> str:
        if command == SERVE:
            asked = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=60).json()
            return asked["choices"][0]["message"]["content"]
        with httpx.Client(timeout=60) as client:
            return [*ask(client, url, "Count from one to a hundred.", 600)][-1]["text"]

    with started(*command) as server:
        asking = threading.Thread(target=lambda: answers.append(answer(server.url)))
        asking.start()
        while not busy(server.url):
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        refused = None
        while asking.is_alive() and refused is None:
            reply = httpx.post(f"{server.url}/v1/completions", json={})
            refused = reply if reply.status_code == 503 else None
        asking.join()
        assert server.process.wait(60) == 0 and "Traceback" not in server.output()
        assert "Finishing what has begun" in server.output()
    assert refused is not None and refused.headers["retry-after"] and answers[0]


def busy(url: str) -> bool:
    health = httpx.get(f"{url}/health").json()
    return bool(health.get("in_flight") or health.get("active"))
