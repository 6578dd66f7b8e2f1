"""The rehearsal: made-up models that load and step like real ones, and what their costs promise."""

from __future__ import annotations

import json

import pytest

from specdemo import cli
from specdemo.commands.models import prospect, report
from specdemo.models import ir, machine, rehearsal_costs
from specdemo.models.registry import PAIRS, find_pair
from specdemo.models.rehearsal import Shape, shape_of, write_ir
from specdemo.models.rehearsal_costs import NUMERICS, TOKENS, Rehearsed, Stepped, rehearse


@pytest.mark.parametrize("bits", [8, 4])
def test_a_made_up_model_of_a_few_layers_loads_and_steps(tmp_path, bits):
    shape = Shape(hidden=256, layers=2, heads=4, vocabulary=3000)
    figures = rehearse("tiny", shape, bits, tmp_path)
    assert len(figures.step_seconds) == len(TOKENS)
    assert min(figures.step_seconds) > 0
    assert figures.weights_bytes == shape.bytes(bits)


def test_the_command_compares_numerics_of_the_target_and_predicts_speed_ups(capsys, monkeypatch):
    shape = Shape(hidden=256, layers=1, heads=4, vocabulary=500)
    monkeypatch.setattr(rehearsal_costs, "shape_of", lambda source: (shape, 8))
    assert cli.main(["rehearse", "dolly-3b", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    target, draft = figures["models"]
    assert (figures["pair"], figures["weights"]) == ("dolly-3b", "made up")
    assert (target["model"], draft["model"]) == ("dolly-v2-3b-int8-ov", "pythia-1b-int4-ov")
    assert [one["numerics"] for one in target["settings"]] == list(NUMERICS)
    assert "bitwise equal" in target["settings"][0]["invariance"]
    assert draft["settings"] == []
    assert [one["acceptance_rate"] for one in figures["prospects"]] == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert list(machine.cache_home().glob("rehearsal/scratch-*")) == []


def test_no_two_matrices_share_their_bytes_or_their_memory(tmp_path):
    shape = Shape(hidden=1024, layers=8, heads=8, vocabulary=1000)
    figures = rehearse("tiny", shape, 8, tmp_path)
    size = (tmp_path / "openvino_model.bin").stat().st_size
    assert size == pytest.approx(shape.bytes(8), rel=0.05)
    assert 0.9 * shape.bytes(8) < figures.own_bytes < 1.5 * shape.bytes(8) + 100_000_000


def test_a_made_up_model_passes_the_check_of_a_real_one(tmp_path):
    write_ir(Shape(hidden=128, layers=1, heads=4, vocabulary=500), 8, tmp_path)
    ir.check_decoder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ir.MODEL, ir.WEIGHTS}


@pytest.mark.parametrize("name", ["dolly-3b", "dolly-7b", "dolly-12b"])
def test_the_shapes_have_the_sizes_of_the_real_files(name):
    target = find_pair(name).target
    shape, bits = shape_of(target)
    assert shape.bytes(bits) == pytest.approx(target.download_bytes, rel=0.02)


def test_every_dolly_pair_can_be_rehearsed():
    dollies = [pair for pair in PAIRS if pair.name.startswith("dolly")]
    assert all(shape_of(pair.target) and shape_of(pair.draft) for pair in dollies)


def rehearsed(*settings: Stepped) -> Rehearsed:
    """A model whose forwards take a second, whatever their size."""
    return Rehearsed("tiny", 1, 1, 1, 1, 1.0, 1.0, (1.0,) * 8, settings)


def test_a_draft_that_is_always_right_and_free_multiplies_the_speed():
    one = prospect(rehearsed(), 0.0, 0.999999)
    assert one.draft_tokens == 7
    assert one.speedup == pytest.approx(8, rel=1e-3)


def test_a_draft_as_slow_as_its_target_does_not_pay():
    assert prospect(rehearsed(), 1.0, 0.5).speedup < 1


def test_the_tables_name_what_they_are():
    target = rehearsed(Stepped("exact, f16 cache", (1.0,) * 8, "bitwise equal"))
    text = report("dolly-3b", "a machine", [target, rehearsed()], [prospect(target, 0.1, 0.8)])
    lines = text.splitlines()
    assert "made-up weights" in lines[0]
    assert "| exact, f16 cache |" + " 1000.0 |" * 8 + " bitwise equal |" in lines
    assert lines[-1] == "| speed-up | 2.47 |"


def test_a_pair_without_known_shapes_is_bad_input(capsys):
    assert cli.main(["rehearse", "embedded"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "dolly-3b" in line
