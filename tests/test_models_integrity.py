"""Damage that keeps a file's size is found by hashes, told in a sentence, and mended."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.errors import DamagedModel
from specdemo.models.integrity import Check, write_manifest
from specdemo.session import Session
from specdemo.settings import Settings

WEIGHTS = "openvino_model.bin"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A cache folder of its own."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("openvino_model.xml", WEIGHTS):
        (folder / name).write_bytes(b"content")
    write_manifest(folder)
    return folder


def damage(path: Path) -> None:
    """Other content of the same size, in place: a file that is mapped must not shrink."""
    with open(path, "r+b") as file:
        content = file.read(100)
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in content))


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
            loaded.check.require()
        with pytest.raises(DamagedModel, match=WEIGHTS):
            session.answer("Hi", Settings(max_new_tokens=2))
