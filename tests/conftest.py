"""What several test files share: the embedded pair (fetched once, the real way, into the usual cache), a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_home import EXPORTED, ir_folder

from specdemo.trace import PairInfo
from specdemo.models.load import LoadedPair, load_pair
from specdemo.models.pairs import EMBEDDED
from specdemo.models.templates import PLAIN
from specdemo.models.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


@pytest.fixture(scope="session")
def embedded_pair() -> LoadedPair:
    """The embedded pair as `load_pair` gives it. It is fetched on the first run only: the cache folder is kept."""
    return load_pair(EMBEDDED)


@pytest.fixture(scope="session")
def chromium() -> str | None:
    """The distribution's Chromium, None to use playwright's own."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory) -> Path:
    """Tiny models with made-up weights: checkpoints, and what `tiny_home.EXPORTED` lists as IR."""
    home = tmp_path_factory.mktemp("tiny")
    command = [sys.executable, str(Path(__file__).with_name("tiny_home.py"))]
    with ThreadPoolExecutor(len(EXPORTED)) as pool:
        made = pool.map(
            lambda group: subprocess.run([*command, group, str(home)], capture_output=True, text=True), EXPORTED
        )
        for done in made:
            assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(scope="session")
def tiny(tiny_home) -> TinyModels:
    """Made-up models of real shapes: Dolly with Pythia as int8 IR, GPT-2 XL as a checkpoint and GPT-2 as IR."""
    return TinyModels(
        dolly=ir_folder(tiny_home, "dolly", "int8"),
        pythia=ir_folder(tiny_home, "pythia", "int8"),
        gpt2_xl=tiny_home / "gpt2-xl",
        gpt2=ir_folder(tiny_home, "gpt2", "int8"),
    )


@dataclass(frozen=True)
class TinyModels:
    dolly: Path
    pythia: Path
    gpt2_xl: Path
    gpt2: Path


@pytest.fixture(scope="session")
def tiny_llama_pair(tiny_home) -> LoadedPair:
    """A Llama-shaped target and a draft that is right now and then, int8."""
    return LoadedPair(
        info=PairInfo("tiny-llama", "tiny target", "tiny draft"),
        target_xml=ir_folder(tiny_home, "llama-target", "int8") / "openvino_model.xml",
        draft_xml=ir_folder(tiny_home, "llama-draft", "int8") / "openvino_model.xml",
        tokenizer=Tokenizer(tiny_home / "llama-target" / "tokenizer.json"),
        template=PLAIN,
        stop_ids=frozenset(),
        context_limit=2048,
    )
