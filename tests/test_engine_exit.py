"""Scripts and servers that end while models still run end with their own exit code: a thread inside
OpenVINO at the interpreter's end aborts the process ("terminate called", 134)."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import httpx
import pytest
from conftest import ROOT
from helpers import until
from tiny_models import ir_folder

from specdemo.commands import serve as serve_command
from specdemo.server.backend import LocalBackend
from specdemo.server.server_options import ServeOptions

pytestmark = pytest.mark.slow

SCRIPTS = {
    "an answer in the middle": ("next(pair.stream('a', max_new_tokens=900)); sys.exit(3)", 3),
    "a failure": ("stream = pair.stream('a', max_new_tokens=900); next(stream); 1 / 0", 1),
    "two models": ("other = specdemo.load(model=sys.argv[2]); print(other.generate('a'))", 0),
    "a thread that answers": (
        "ask = lambda: list(pair.stream('a', max_new_tokens=900))\n"
        "threading.Thread(target=ask, daemon=True).start(); time.sleep(0.2)",
        0,
    ),
}


@pytest.fixture(scope="module")
def scripts(tiny_home, tmp_path_factory):
    """SCRIPTS that run at once, for they sleep."""
    begin = (
        "import sys, threading, time, specdemo\n"
        "pair = specdemo.load(model=sys.argv[1])\n"
        "print(pair.generate('a', max_new_tokens=8))\n"
        "time.sleep(1.1)\n"  # then costs are measured in the background
    )
    models = [str(ir_folder(tiny_home, name, "int8")) for name in ("dolly", "gpt2")]
    with ExitStack() as stack:

        def started(rest: str) -> subprocess.Popen:
            home = str(tmp_path_factory.mktemp("home"))  # where nothing was measured before
            script = subprocess.Popen(
                [sys.executable, "-c", begin + rest, *models],
                cwd=ROOT,
                env={**os.environ, "SPECDEMO_HOME": home},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(script.kill)
            return script

        yield {name: started(rest) for name, (rest, _) in SCRIPTS.items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_with_its_own_exit_code(name, scripts):
    _, said = scripts[name].communicate(timeout=120)
    assert scripts[name].returncode == SCRIPTS[name][1], said
    assert said.count("Traceback") == (name == "a failure"), said


@pytest.fixture
def serve(tiny_home, tmp_path):
    """Starts `specdemo serve` with a tiny model on a free port; gives the process and its URL."""
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    model = str(ir_folder(tiny_home, "dolly", "int8"))
    command = [sys.executable, "-m", "specdemo", "serve", "--no-ray", "--model", model]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--drain-seconds", "0"],
        cwd=ROOT,
        env={**os.environ, "SPECDEMO_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "Listening" in process.stdout.readline()
    url = f"http://127.0.0.1:{port}"
    until(lambda: httpx.get(f"{url}/health").status_code)
    yield process, url
    process.kill()
    process.communicate()


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_server_that_is_stopped_while_it_loads_ends_with_0(serve, seconds):
    process, _ = serve
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM if seconds % 1 else signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1]) == (0, "Stopped."), said


def test_a_server_that_cuts_running_streams_ends_with_0(serve):
    process, url = serve
    assert "Ready" in process.stdout.readline()
    asked = {"model": "dolly-int8", "prompt": "a", "max_tokens": 900, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=asked) as answer:
        lines = answer.iter_lines()
        assert "choices" in next(lines)
        process.send_signal(signal.SIGTERM)
        assert "being stopped" in "".join(lines)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_a_stop_while_the_model_loads_is_not_forgotten_once_it_is_ready(
    tiny_home, monkeypatch, capsys
):
    class Stopped(serve_command.Server):
        def run(self, sockets):
            self.handle_exit(signal.SIGTERM, None)
            loading.set()
            until(lambda: "Ready" in capsys.readouterr().out)
            assert self.should_exit
            sockets[0].close()

    loading = threading.Event()
    monkeypatch.setattr(serve_command, "Server", Stopped)
    monkeypatch.setattr(LocalBackend, "states", lambda *_: [loading.wait(30)])
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    model = str(ir_folder(tiny_home, "gpt2", "int8"))
    serve_command.serve_locally(ServeOptions(model=model, port=port))
