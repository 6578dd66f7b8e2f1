"""What several test files share: the embedded pair (fetched once, the real way, into the usual cache), a browser."""

from __future__ import annotations

import os
import shutil

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
