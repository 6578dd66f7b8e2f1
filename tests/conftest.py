"""What several test files share: the embedded pair, tiny exported models, a browser."""

import errno
import gc
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import openvino as ov
import pytest
from filelock import FileLock
from hub_server import Hub
from tiny_models import ir_folder
from toy_session import ToySession, toy_clock

from specdemo.engine import cost_measurement, engine
from specdemo.machine import disk
from specdemo.pairs import hub
from specdemo.pairs.loading import LoadedPair, load_pair
from specdemo.pairs.registry import EMBEDDED, ModelChoice, PairInfo, chosen_pair
from specdemo.text.templates import RAW
from specdemo.text.tokenizer import Tokenizer

# A shell without job control starts its background processes with SIGINT ignored, and a process
# that ignores a signal hands that on to its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent

# Modules are never garbage: a fifth of the time of importing them went into looking for some.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    # OpenVINO binds its threads to cores, in every worker to the same ones, where they would wait
    # for each other. It looks for cores once, and finds this worker's share.
    cores = os.sched_getaffinity(0)
    share = sorted(cores)[int(worker[2:]) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]
    os.sched_setaffinity(0, share or cores)
    ov.Core().get_property("CPU", "INFERENCE_NUM_THREADS")
    os.sched_setaffinity(0, cores)

SLOW_FIXTURES = {"application", "browser", "embedded_pair", "one_thread"}
SLOW_FIXTURES |= {"served", "server", "serving", "tiny_file", "tiny_home"}
"""Fixtures that build a page, start a browser or a server, load, make or export models, or train"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test that uses one of SLOW_FIXTURES as slow."""
    for item in items:
        if SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run this Python with `arguments` and more of an `environment`, to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=180,
    )


specdemo = partial(python, "-m", "specdemo")


def load_own(target: Path, draft: Path | str = "", **choice: Any) -> LoadedPair:
    """The pair of a target and a draft of one's own."""
    models = {"model": str(target), "assistant_model": str(draft)}
    return load_pair(chosen_pair(ModelChoice(**models, **choice)))


@pytest.fixture(scope="session", autouse=True)
def short_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs are measured once, however busy the machine is: other tests run beside each. What
    sessions that outlive a test measured is not written into the user's folder."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "measured_folder", lambda: folder)
        patch.setattr(cost_measurement, "MAX_SECONDS", 0.0)
        patch.setattr(engine, "REMEASURE_SECONDS", 3600.0)
        yield


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing measured is remembered from one test to the next."""
    monkeypatch.setattr(disk, "measured_folder", lambda: tmp_path / "profiles")


@pytest.fixture(scope="session")
def embedded_pair() -> LoadedPair:
    """The embedded pair as `load_pair` gives it; fetched on the first run only, into the cache."""
    return load_pair(EMBEDDED)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: the distribution's, or playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as run:
        yield run.chromium.launch(executable_path=path, args=arguments)


@pytest.fixture(scope="session")
def embedded_session(embedded_pair) -> Iterator[Any]:
    """A session of the embedded pair, for tests that leave it as it was."""
    from specdemo.runs.session import Session

    with Session(embedded_pair, background=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny_home() -> Path:
    """Tiny models with made-up weights: checkpoints, and IR of some of them.

    Made once for each version of what makes them; test processes that run at once share them.
    """
    recipe = [ROOT / "tests" / "tiny_models.py", ROOT / "requirements-export.txt"]
    version = hashlib.sha256(b"".join(path.read_bytes() for path in recipe)).hexdigest()[:12]
    home = ROOT / ".cache" / f"tiny-models-{version}"
    home.parent.mkdir(exist_ok=True)
    with FileLock(f"{home}.lock"):
        if not home.exists():
            making = home.with_suffix(".part")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            python(str(ROOT / "tests" / "tiny_models.py"), str(making)).check_returncode()
            making.rename(home)
    return home


@pytest.fixture(scope="session")
def tiny(tiny_home) -> SimpleNamespace:
    """Made-up models: int8 IR of Dolly, Pythia and GPT-2, a checkpoint of GPT-2 XL."""
    folders = {name: ir_folder(tiny_home, name, "int8") for name in ("dolly", "pythia", "gpt2")}
    return SimpleNamespace(**folders, gpt2_xl=tiny_home / "gpt2-xl")


@pytest.fixture(scope="session")
def tiny_llama_pair(tiny_home) -> LoadedPair:
    """A Llama-shaped target and a draft that is right now and then, int8."""
    return LoadedPair(
        info=PairInfo("tiny-llama", "tiny target", "tiny draft"),
        target=ir_folder(tiny_home, "llama-target", "int8") / "openvino_model.xml",
        draft=ir_folder(tiny_home, "llama-draft", "int8") / "openvino_model.xml",
        tokenizer=Tokenizer(tiny_home / "llama-target" / "tokenizer.json"),
        template=RAW,
        stop_ids=frozenset(),
        context_limit=2048,
    )


@pytest.fixture(scope="session")
def tiny_chat(tiny_home) -> LoadedPair:
    """A Llama-shaped target with a chat template, without a draft."""
    return load_own(tiny_home / "embedded" / "ir")


@pytest.fixture(scope="session")
def session(tiny_llama_pair):
    """A session of the Llama-shaped pair, for tests that leave it as it was."""
    from specdemo.runs.session import Session

    with Session(tiny_llama_pair) as opened:
        yield opened


@pytest.fixture
def toy() -> Iterator[ToySession]:
    """A session of toy models that repeats the question, on the toys' clock."""
    with toy_clock(), ToySession() as opened:
        yield opened


MARKERS = "<|end|> <tool_call> </tool_call> [TOOL_CALLS] <|python_tag|>".split()


@pytest.fixture(scope="session")
def marked_session(tiny_llama_pair, tmp_path_factory):
    """A session of the Llama-shaped pair, whose tokenizer has MARKERS in place of control
    characters; the first of them ends an answer."""
    from specdemo.runs.session import Session

    content = json.loads(tiny_llama_pair.tokenizer._parsing.to_str())
    vocabulary = content["model"]["vocab"]
    ids = [vocabulary.pop(chr(0x101 + number)) for number in range(len(MARKERS))]
    vocabulary |= zip(MARKERS, ids, strict=True)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [
        {"id": id, "content": text, "special": "tool_call>" not in text, **flags}
        for text, id in sorted(vocabulary.items(), key=itemgetter(1))
        if text in MARKERS
    ]
    path = tmp_path_factory.mktemp("marked") / "tokenizer.json"
    path.write_text(json.dumps(content))
    own = {"tokenizer": Tokenizer(path), "stop_ids": frozenset(ids[:1]), "context_limit": 4096}
    with Session(replace(tiny_llama_pair, **own), background=False) as opened:
        yield opened


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The only Hub that this process and `specdemo` know, and empty caches."""
    with Hub() as running:
        # The client reads its environment when imported, so its constants are set as well.
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        for module in ("constants", "file_download"):
            place = f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE"
            monkeypatch.setattr(place, template, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("huggingface_hub.file_download.time", Mock())
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "SPECDEMO_PAIR"):
            monkeypatch.delenv(name, raising=False)
        yield running


@pytest.fixture
def small_disk(monkeypatch) -> Callable[[int], None]:
    """Sets how many bytes a file of the Hub's cache has room for."""
    room = 10**9

    class File(io.FileIO):
        def write(self, data) -> int:
            if self.tell() + len(data) > room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def set_room(size: int) -> None:
        nonlocal room
        room = size

    monkeypatch.setattr(hub, "open", File, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    return set_room
