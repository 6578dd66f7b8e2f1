"""What is measured once is remembered: profiles on the disk, and sessions that start with them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from specdemo import cli
from specdemo.engine import numerics
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Invariance, Profile, TargetProfile
from specdemo.models import machine, measured
from specdemo.session import Session
from specdemo.settings import Settings

MEASURED = Profile(
    {"exact": TargetProfile((("A", "1"),), Invariance(64, 0.0, 2), {1: 0.01}, "2026-01-01")},
    draft_step=0.002,
    acceptance={"lookup": [(1.0, 2.0)] * 9},
)
FILES = PairFiles(Path("target.xml"))
ABOUT = measured.about_files(FILES, None)


def test_a_profile_is_read_as_it_was_written_where_it_can_be_written():
    measured.keep("profile", ABOUT, MEASURED)
    assert measured.read("profile", ABOUT) == MEASURED
    folder = machine.measured_folder()
    assert measured.forget() == 1 and list(folder.iterdir()) == []
    folder.rmdir()
    folder.write_text("a folder that cannot be written is no error")
    measured.keep("profile", ABOUT, MEASURED)
    assert measured.read("profile", ABOUT) is None


@pytest.mark.parametrize("broken", ["", "[]", '{"about": {}, "profile": {"targets": 3}}'])
def test_a_broken_file_counts_as_none(broken):
    measured.keep("profile", ABOUT, MEASURED)
    [file] = machine.measured_folder().iterdir()
    file.write_text(broken)
    assert measured.read("profile", ABOUT) is None and not list(measured.profiles())


def test_other_machines_threads_models_and_precisions_have_profiles_of_their_own(monkeypatch):
    measured.keep("profile", ABOUT, MEASURED)
    for about in (
        measured.about_files(FILES, 99),
        measured.about_files(replace(FILES, kv_cache="u8"), None),
        measured.about_files(replace(FILES, draft=Path("draft.xml")), None),
    ):
        assert measured.read("profile", about) is None
    monkeypatch.setattr(machine, "describe", lambda: "another")
    assert measured.read("profile", ABOUT) is None


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


def test_the_machine_command_shows_what_was_measured_and_forgets_it(capsys):
    measured.keep("profile", ABOUT, MEASURED)

    def output(*options: str) -> str:
        assert cli.main(["machine", *options]) == 0
        return capsys.readouterr().out

    assert "forwards of 1 to 64 tokens" in (shown := output()) and "10.0" in shown
    assert json.loads(output("--json", "-"))[0]["profile"]["draft_step"] == 0.002
    assert "files dropped: 1" in output("--forget")
    assert json.loads(output("--json", "-")) == []
