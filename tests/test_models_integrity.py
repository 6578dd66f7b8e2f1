"""Damage that keeps a file's size is found by hashes, told in a sentence, and mended."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.errors import DamagedModel, FetchError
from specdemo.models import embedded, export, integrity
from specdemo.models.integrity import Check, damaged, write_manifest
from specdemo.session import Session
from specdemo.settings import Settings

WEIGHTS = "openvino_model.bin"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A cache folder of its own."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def filled(folder: Path, **files: bytes) -> None:
    folder.mkdir(parents=True)
    for name, content in {"openvino_model.xml": b"<net/>", WEIGHTS: b"weights", **files}.items():
        (folder / name).write_bytes(content)


def made(folder: Path, **files: bytes) -> Path:
    filled(folder, **files)
    write_manifest(folder)
    return folder


def damage(path: Path) -> None:
    """Other content of the same size, in place: a file that is mapped must not shrink."""
    with open(path, "r+b") as file:
        content = file.read(100)
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in content))


def test_files_that_changed_or_went_are_named(home):
    folder = made(home / "exported" / "model")
    assert damaged(folder) == []
    damage(folder / WEIGHTS)
    assert damaged(folder) == [WEIGHTS]
    (folder / "openvino_model.xml").unlink()
    assert damaged(folder) == [WEIGHTS, "openvino_model.xml"]
    (folder / integrity.MANIFEST).write_text("{")
    assert damaged(folder) == [integrity.MANIFEST]


def test_a_damaged_model_is_taken_out_of_the_cache_and_said(home):
    whole, broken = made(home / "exported" / "whole"), made(home / "exported" / "broken")
    damage(broken / WEIGHTS)
    with pytest.raises(DamagedModel, match=f"^{WEIGHTS} in broken changed"):
        Check([whole, broken]).require()
    assert whole.is_dir() and not broken.exists()


def test_a_folder_of_the_users_own_stays_where_it_is(home, tmp_path):
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / WEIGHTS).write_bytes(b"weights")
    Check([unknown]).require()
    copied = made(tmp_path / "copied")
    damage(copied / WEIGHTS)
    with pytest.raises(DamagedModel):
        Check([copied]).require()
    assert (copied / WEIGHTS).is_file()


def test_a_damaged_embedded_target_is_made_again_without_the_network(home, monkeypatch):
    gguf = b"GGUF of the target"
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(gguf).hexdigest())
    monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("downloads"))
    monkeypatch.setattr(embedded, "convert_gguf", lambda source, out: filled(out))
    monkeypatch.setattr(embedded.gguf_files, "read", lambda path: None)
    monkeypatch.setattr(embedded.gguf_files, "write_tokenizer", lambda file, out: out.touch())
    target, draft = (one.folder for one in embedded._places())
    made(target, **{embedded.SOURCE: gguf})
    made(draft)
    damage(target / WEIGHTS)
    with pytest.raises(DamagedModel, match=f"{WEIGHTS} in {target.name}"):
        Check([target, draft]).require()
    assert not embedded.is_ready()
    embedded.fetch()
    assert (target / WEIGHTS).read_bytes() == b"weights" and damaged(target) == []
    assert sorted(path.name for path in target.parent.iterdir() if path.is_dir()) == sorted(
        [target.name, draft.name]
    ), "nothing of the damaged one is left"


def test_a_session_refuses_to_answer_once_damage_is_found(home, tiny_llama_pair):
    folder = home / "exported" / "target"
    shutil.copytree(tiny_llama_pair.target_xml.parent, folder)
    write_manifest(folder)
    loaded = dataclasses.replace(tiny_llama_pair, target_xml=folder / "openvino_model.xml")
    with closing(Session(loaded)) as session:
        *_, trace = session.answer("Hi", Settings(max_new_tokens=2))
        assert trace.rounds
        damage(folder / WEIGHTS)
        loaded.check = Check([folder])
        with pytest.raises(DamagedModel, match=WEIGHTS):
            session.require_intact()
        with pytest.raises(DamagedModel, match=WEIGHTS):
            session.answer("Hi", Settings(max_new_tokens=2))


def test_a_disk_that_fills_up_during_a_conversion_is_said_with_folder_and_size(
    tmp_path, monkeypatch
):
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(bytes(1_000_000))
    free = iter([10**9, 1_000_000])
    usage = lambda _: shutil._ntuple_diskusage(10**9, 0, next(free))  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(export, "run_module", lambda *_, **__: (1, ""))
    said = f"Converting x.gguf needs 3 MB of disk in {tmp_path} and 1 MB are free"
    with pytest.raises(FetchError, match=said):
        export.convert_gguf(gguf, tmp_path / "out")
