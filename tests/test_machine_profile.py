"""What is measured once is remembered: profiles on the disk, and sessions that start with them."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from contextlib import closing

import pytest

from specdemo import cli
from specdemo.engine import instance, numerics
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Invariance, Profile, TargetProfile
from specdemo.models import machine, profiles
from specdemo.session import Session
from specdemo.settings import Settings

MEASURED = Profile(
    {"exact": TargetProfile((("A", "1"),), Invariance(64, 0.0, 2), {1: 0.01}, 0.0, "2026-01-01")},
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


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_profile(tmp_path):
    code = """
import sys
from pathlib import Path
from specdemo.models.profiles import About, ProfileFile
from specdemo.engine.profile import Profile
file = ProfileFile(Path(sys.argv[1]), About("", 0, "", "", "", "", ""), Profile())
for step in range(1_000_000):
    file.write(Profile(draft_step=float(step + 1), acceptance={"x": [(1.0, 1.0)] * 500}))
    print(step, flush=True)
"""
    path = tmp_path / "kept.json"
    for lines in (1, 3, 8):
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(lines):
            writer.stdout.readline()
        writer.kill()
        writer.wait()
        assert json.loads(path.read_text())["profile"]["draft_step"] >= 1


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


def test_a_profile_of_another_number_of_threads_is_measured_again(tiny_llama_pair, monkeypatch):
    with closing(Session(tiny_llama_pair)) as session:
        found = session._engine.target("exact").invariance
        known = session._engine.profile
    wrong = dataclasses.replace(
        known.targets["exact"], invariance=Invariance(5, 0.0, found.threads + 6)
    )
    model, again = numerics.exact_model(
        tiny_llama_pair.target_xml, "CPU", session._engine.core, known=wrong
    )
    assert again == found and model.threads == found.threads


def test_an_old_profile_is_measured_again_invariance_too(tiny_llama_pair):
    with closing(Session(tiny_llama_pair)) as session:
        session.prepare()
        known = session._engine.profile.targets["exact"]
        assert known.measured > "2026"
    [path] = machine.measured_folder().glob("*.json")
    old = path.read_text().replace(known.measured, "2020-01-01")
    path.write_text(old.replace(f'"tokens": {known.invariance.tokens}', '"tokens": 5'))
    with closing(Session(tiny_llama_pair)) as session:
        assert session._engine.target("exact").policy.limit == 4
        session.prepare()
        again = session._engine.profile.targets["exact"]
        assert again.measured > "2026" and again.invariance == known.invariance
        assert session._engine.target("exact").policy.limit > 4


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


def test_with_one_instance_all_forwards_of_an_answer_have_one_size(embedded_pair, monkeypatch):
    sizes = []
    run = instance.Instance.run

    def noting(self, inputs, longest, wanted):
        sizes.append(len(inputs.ids))
        return run(self, inputs, longest, wanted)

    with closing(Session(embedded_pair, background=False)) as session:
        steady = session._engine.target("exact").steady
        assert 2 <= steady <= 4
        monkeypatch.setattr(instance.Instance, "run", noting)
        *_, trace = session.answer("Count from one to twenty.", Settings(max_new_tokens=40))
        assert set(sizes[-10:]) == {steady} and trace.rounds[-1].emitted
        assert any(len(round.drafted) for round in trace.rounds)
        *_, raced = session.race("Count from one to twenty.", Settings(max_new_tokens=40))
        assert raced.identical and raced.token_ids == trace.token_ids


def test_the_machine_command_shows_what_was_measured_and_forgets_it(file, capsys):
    file.write(MEASURED)

    def output(*options: str) -> str:
        assert cli.main(["machine", *options]) == 0
        return capsys.readouterr().out

    assert "forwards of 1 to 64 tokens" in (shown := output()) and "10.0" in shown
    assert json.loads(output("--json", "-"))[0]["profile"]["draft_step"] == 0.002
    assert "1 file dropped" in output("--forget")
    assert json.loads(output("--json", "-")) == []
