"""The rehearsal: made-up models that load and step like real ones, and what their costs promise."""

from __future__ import annotations

import json

import pytest

from specdemo import cli
from specdemo.commands.models import prospect
from specdemo.models import ir, machine, rehearsal
from specdemo.models.registry import PAIRS
from specdemo.models.rehearsal import NUMERICS, TOKENS, Shape, rehearse, shape_of


@pytest.mark.parametrize("bits", [8, 4])
def test_a_made_up_model_of_a_few_layers_loads_and_steps(tmp_path, bits):
    shape = Shape(hidden=256, layers=2, heads=4, vocabulary=3000)
    figures = rehearse("tiny", shape, bits, tmp_path)
    [setting] = figures.settings
    assert len(setting.step_seconds) == len(TOKENS)
    assert min(setting.step_seconds) > 0
    assert figures.weights_bytes == shape.bytes(bits)
    ir.check_decoder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ir.MODEL, ir.WEIGHTS}


def test_the_command_compares_numerics_of_the_target_and_predicts_speed_ups(capsys, monkeypatch):
    shape = Shape(hidden=256, layers=1, heads=4, vocabulary=500)
    monkeypatch.setattr(rehearsal, "shape_of", lambda source: (shape, 8))
    assert cli.main(["rehearse", "dolly-3b", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    target, draft = figures["models"]
    assert (figures["pair"], figures["weights"]) == ("dolly-3b", "made up")
    assert (target["model"], draft["model"]) == ("dolly-v2-3b-int8-ov", "pythia-1b-int4-ov")
    assert [one["numerics"] for one in target["settings"]] == list(NUMERICS)
    assert "bitwise equal" in target["settings"][0]["invariance"]
    assert [one["invariance"] for one in draft["settings"]] == [""]
    assert [one["acceptance_rate"] for one in figures["prospects"]] == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert list(machine.cache_home().glob("rehearsal/scratch-*")) == []
    assert cli.main(["rehearse", "dolly-3b", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "made-up weights" in shown
    assert "memory of its own, GB" in shown
    assert "speedup" in shown


def test_no_two_matrices_share_their_bytes_or_their_memory(tmp_path):
    shape = Shape(hidden=1024, layers=8, heads=8, vocabulary=1000)
    figures = rehearse("tiny", shape, 8, tmp_path)
    size = (tmp_path / "openvino_model.bin").stat().st_size
    assert size == pytest.approx(shape.bytes(8), rel=0.05)
    assert 0.9 * shape.bytes(8) < figures.own_bytes < 1.5 * shape.bytes(8) + 100_000_000


def test_every_dolly_pair_can_be_rehearsed_with_the_sizes_of_the_real_files():
    for pair in PAIRS:
        if pair.name.startswith("dolly"):
            shape, bits = shape_of(pair.target)
            assert shape.bytes(bits) == pytest.approx(pair.target.download_bytes, rel=0.02)
            assert shape_of(pair.draft)


@pytest.mark.parametrize(
    ("draft_step", "rate", "length", "speedup"),
    [(0.0, 0.999999, 7, 8), (1.0, 0.5, 1, 0.75), (0.1, 0.8, 6, 2.47)],
)
def test_the_draft_length_that_pays_best_and_its_speed_up(draft_step, rate, length, speedup):
    found = prospect((1.0,) * 8, draft_step, rate)
    assert found["draft_tokens"] == length
    assert found["speedup"] == pytest.approx(speedup, abs=0.01)
