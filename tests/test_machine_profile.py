"""What is measured once is remembered: profiles on the disk, and sessions that start with them."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import closing

import pytest

from specdemo import cli
from specdemo.engine import numerics
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Invariance, Profile, TargetProfile
from specdemo.models import profiles
from specdemo.session import Session
from specdemo.settings import Settings

MEASURED = Profile(
    {"exact": TargetProfile((("A", "1"),), Invariance(64, 0.0, 2), {1: 0.01}, "2026-01-01")},
    draft_step=0.002,
    acceptance={"lookup": [(1.0, 2.0)] * 9},
)


@pytest.fixture
def file(tiny_llama_pair) -> profiles.ProfileFile:
    return profiles.find(PairFiles(tiny_llama_pair.target_xml), None)


def test_a_profile_is_read_as_it_was_written_and_forgotten_on_request(file):
    assert file.read() == Profile()
    file.write(MEASURED)
    assert file.read() == MEASURED
    assert [one.profile for one in profiles.stored()] == [MEASURED]
    assert profiles.forget() == 1 and file.read() == Profile()
    file.path.parent.rmdir()
    file.path.parent.write_text("a folder that cannot be written is no error")
    file.write(MEASURED)
    assert file.read() == Profile()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: "\x00" * 100,
        lambda text: text.replace('"targets": {', '"targets": [{'),
        lambda text: re.sub('"threads": .*', '"threads": 99,', text, count=1),
        lambda text: re.sub('"openvino": .*', '"openvino": "0",', text, count=1),
    ],
)
def test_a_broken_or_foreign_file_counts_as_none(file, change):
    file.write(MEASURED)
    file.path.write_text(change(file.path.read_text()))
    assert file.read() == Profile()
    file.write(MEASURED)
    assert file.read() == MEASURED


def test_other_models_devices_and_precisions_have_profiles_of_their_own(tiny_llama_pair, file):
    files = PairFiles(tiny_llama_pair.target_xml)
    others = [
        profiles.find(files, 1),
        profiles.find(dataclasses.replace(files, kv_cache="u8"), None),
        profiles.find(dataclasses.replace(files, draft=tiny_llama_pair.draft_xml), None),
    ]
    assert len({one.path for one in [file, *others]}) == 4


def test_a_second_start_measures_nothing_and_answers_the_same(tiny_llama_pair, monkeypatch):
    settings = Settings(max_new_tokens=30)
    with closing(Session(tiny_llama_pair)) as session:
        *_, first = session.race("hello", settings)
        found = session.info.numerics_found

    def refuse(*_, **__):
        raise AssertionError("measured again")

    for name in ("measure_invariance", "learn_costs", "step_seconds"):
        monkeypatch.setattr(numerics, name, refuse)
    with closing(Session(tiny_llama_pair)) as session:
        *_, second = session.race("hello", settings)
        assert session.info.numerics_found == found
    assert second.token_ids == first.token_ids and second.identical


def test_acceptance_rates_go_on_from_one_process_to_the_next(embedded_pair):
    with closing(Session(embedded_pair)) as session:
        list(session.answer("Count from one to twenty.", Settings(max_new_tokens=60)))
        before = session._engine.profile.acceptance
    assert before["lookup"] != embedded_pair.typical_profile.acceptance.get("lookup")
    with closing(Session(embedded_pair, background=False)) as session:
        assert session._engine.profile.acceptance == before


def test_the_first_token_needs_one_instance_and_a_race_all_of_them(embedded_pair):
    with closing(Session(embedded_pair, background=False)) as session:
        target = session._engine.target("exact").model
        list(session.answer("hello", Settings(max_new_tokens=5)))
        assert not target._fixed and session._engine._draft is None
        *_, trace = session.race("hello", Settings(max_new_tokens=5))
        assert trace.identical
        assert sorted(size for size, _ in target._fixed) == sorted(numerics.FIXED_SHAPES)
        assert session._engine._draft is not None


def test_the_machine_command_shows_what_was_measured_and_forgets_it(file, capsys):
    file.write(MEASURED)

    def output(*options: str) -> str:
        assert cli.main(["machine", *options]) == 0
        return capsys.readouterr().out

    assert "forwards of 1 to 64 tokens" in (shown := output()) and "10.0" in shown
    assert json.loads(output("--json", "-"))[0]["profile"]["draft_step"] == 0.002
    assert "1 file dropped" in output("--forget")
    assert json.loads(output("--json", "-")) == []
