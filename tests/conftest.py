"""What several test files share: the embedded pair (fetched once, the real way, into the usual cache), a browser."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from specdemo.zoo.load import LoadedPair, load_pair
from specdemo.zoo.pairs import EMBEDDED

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
def tiny(tmp_path_factory) -> TinyModels:
    """Made-up models of real shapes, exported once: Dolly with Pythia as int8 IR, GPT-2 as checkpoints."""
    from tiny_models import write_dolly_pair, write_gpt2_pair

    from specdemo.zoo.export import ExportSettings, export

    home = tmp_path_factory.mktemp("tiny")
    write_dolly_pair(home / "dolly", home / "pythia")
    write_gpt2_pair(home / "gpt2-xl", home / "gpt2")
    with ThreadPoolExecutor(2) as both:
        names = ("dolly", "pythia")
        list(both.map(lambda name: export(home / name, home / f"{name}-ov", ExportSettings("int8")), names))
    return TinyModels(home / "dolly-ov", home / "pythia-ov", home / "gpt2-xl", home / "gpt2")


@dataclass(frozen=True)
class TinyModels:
    dolly: Path
    pythia: Path
    gpt2_xl: Path
    gpt2: Path


@pytest.fixture(scope="session")
def tiny_llama_pair(tmp_path_factory) -> LoadedPair:
    """A Llama-shaped target and a draft that is right now and then."""
    from tiny_llama import make_pair

    return make_pair(tmp_path_factory.mktemp("tiny-llama"))
