"""The rehearsal: made-up models that load and step like real ones, and what their costs promise."""

from __future__ import annotations

import json

import pytest

from specdemo import cli
from specdemo.models import ir, machine, measured, rehearsal
from specdemo.models.drafts import prospect
from specdemo.models.neox import Shape
from specdemo.models.registry import PAIRS, find_pair, survey
from specdemo.models.rehearsal import NUMERICS, rehearse, rehearse_pair, shape_of


@pytest.fixture(autouse=True)
def few_forwards(monkeypatch) -> None:
    monkeypatch.setattr(rehearsal, "REPEATS", 1)
    monkeypatch.setattr(rehearsal, "TOKENS", (1, 2))


@pytest.mark.parametrize("bits", [8, 4])
def test_a_made_up_model_of_a_few_layers_loads_and_steps(tmp_path, bits):
    shape = Shape(hidden=256, layers=2, heads=4, vocabulary=3000)
    figures = rehearse("tiny", shape, bits, tmp_path)
    [setting] = figures.settings
    assert len(setting.step_seconds) == 2
    assert min(setting.step_seconds) > 0
    assert figures.weights_bytes == shape.bytes(bits)
    ir.check_decoder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ir.MODEL, ir.WEIGHTS}


@pytest.fixture
def tiny_shapes(monkeypatch) -> None:
    shapes = {
        name: Shape(hidden=128 + 32 * at, layers=1, heads=4, vocabulary=500)
        for at, name in enumerate(rehearsal.SHAPES)
    }
    monkeypatch.setattr(rehearsal, "SHAPES", shapes)


def test_the_command_compares_numerics_of_the_target_and_predicts_speed_ups(capsys, tiny_shapes):
    assert cli.main(["rehearse", "dolly-3b", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    target, *drafts, rounded = figures["models"]
    assert (figures["pair"], figures["weights"]) == ("dolly-3b", "made up")
    assert target["model"] == "dolly-v2-3b-int8-ov"
    names = ["pythia-70m", "pythia-160m", "pythia-1b-int4-ov"]
    assert [one["model"] for one in drafts] == names
    assert [one["numerics"] for one in target["settings"]] == list(NUMERICS)
    assert "bitwise equal" in target["settings"][0]["invariance"]
    assert [one["invariance"] for one in drafts[0]["settings"]] == [""]
    assert figures["default"] in names
    assert rounded["model"] == "dolly-v2-3b-int4-ov"
    found = [(one["draft"], one["acceptance_rate"]) for one in figures["prospects"]]
    assert set(names) == {draft for draft, _ in found} and (names[0], 0.3) in found
    [listed] = [one for one in survey() if one.pair.name == "dolly-3b"]
    assert listed.token_seconds == measured.read().steps["dolly-v2-3b-int8-ov"][0] > 0
    assert list(machine.cache_home().glob("rehearsal/scratch-*")) == []
    assert cli.main(["rehearse", "dolly-3b", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "made-up weights" in shown
    assert "memory of its own, GB" in shown
    assert "the draft to begin with" in shown


def test_the_target_is_rehearsed_with_4_and_with_8_bits_a_weight(tiny_shapes):
    found = [one.model for one in rehearse_pair(find_pair("dolly-3b"), compare=False)]
    assert found[0] == "dolly-v2-3b-int8-ov"
    assert found[-1] == "dolly-v2-3b-int4-ov"


def test_no_two_matrices_share_their_bytes_or_their_memory(tmp_path):
    shape = Shape(hidden=1024, layers=4, heads=8, vocabulary=1000)
    figures = rehearse("tiny", shape, 8, tmp_path)
    size = (tmp_path / "openvino_model.bin").stat().st_size
    assert size == pytest.approx(shape.bytes(8), rel=0.05)
    assert 0.9 * shape.bytes(8) < figures.own_bytes < 1.5 * shape.bytes(8) + 100_000_000


def test_every_dolly_pair_can_be_rehearsed_with_the_sizes_of_the_real_files():
    for pair in PAIRS:
        if pair.name.startswith("dolly"):
            shape, bits = shape_of(pair.target)
            mixed = 0.2 if bits == 4 else 0.02  # some matrices of the real files have 8 bits
            assert shape.bytes(bits) == pytest.approx(pair.target.download_bytes, rel=mixed)
            assert all(map(shape_of, pair.drafts))


@pytest.mark.parametrize(
    ("draft_step", "rate", "length", "speedup"),
    [(0.0, 0.999999, 7, 8), (1.0, 0.5, 1, 0.75), (0.1, 0.8, 6, 2.47)],
)
def test_the_draft_length_that_pays_best_and_its_speed_up(draft_step, rate, length, speedup):
    found = prospect({1: 1.0, 8: 1.0}, draft_step, rate)
    assert found.draft_tokens == length
    assert found.speedup == pytest.approx(speedup, abs=0.01)
