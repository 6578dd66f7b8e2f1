"""The dress rehearsal: made-up models that load and step like real ones, and what their costs promise."""

from __future__ import annotations

import pytest

from specdemo import cli
from specdemo.commands.rehearse import NUMERICS, TOKENS, Rehearsed, prospect, rehearse, table
from specdemo.models import ir
from specdemo.models.pairs import PAIRS, find_pair
from specdemo.models.progress import silent
from specdemo.models.rehearsal import SHAPES, Shape, shape_of, write_ir


@pytest.mark.parametrize("bits", [8, 4])
def test_a_made_up_model_of_a_few_layers_loads_and_steps(tmp_path, bits):
    shape = Shape(hidden=256, layers=2, heads=4, vocabulary=3000)
    figures = rehearse("tiny", shape, bits, tmp_path, silent)
    assert len(figures.step_seconds) == len(TOKENS)
    assert min(figures.step_seconds) > 0
    assert figures.weights_bytes == shape.bytes(bits)


def test_numerics_are_compared_for_the_target(tmp_path):
    figures = rehearse("tiny", Shape(256, 1, 4, 500), 8, tmp_path, silent, compare=True)
    assert [one.numerics for one in figures.settings] == list(NUMERICS)
    assert "bitwise equal" in figures.settings[0].invariance
    lines = table("made-up", "a machine", [figures], [prospect(figures.step_seconds, 0.0001, 0.8)])
    assert sum(line.startswith("| exact, f") for line in lines) == 3


def test_every_layer_is_held_by_itself_though_all_say_the_same(tmp_path):
    shape = Shape(hidden=1024, layers=8, heads=8, vocabulary=1000)
    figures = rehearse("tiny", shape, 8, tmp_path, silent)
    assert (tmp_path / "openvino_model.bin").stat().st_size == pytest.approx(shape.bytes(8), rel=0.05)
    assert 0.9 * shape.bytes(8) < figures.own_bytes < 1.5 * shape.bytes(8) + 100_000_000


def test_a_made_up_model_is_a_decoder_to_the_same_check_as_a_real_one(tmp_path):
    write_ir(Shape(hidden=128, layers=1, heads=4, vocabulary=500), 8, tmp_path)
    ir.check_decoder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["openvino_model.bin", "openvino_model.xml"]


def test_the_shapes_have_the_sizes_of_the_real_files():
    for name in ("dolly-3b", "dolly-7b", "dolly-12b"):
        target = find_pair(name).target
        shape, bits = shape_of(target)
        assert shape.bytes(bits) == pytest.approx(target.download_bytes, rel=0.02)


def test_every_dolly_pair_can_be_rehearsed():
    for pair in PAIRS:
        if pair.name.startswith("dolly"):
            assert shape_of(pair.target)
            assert shape_of(pair.draft)
    assert SHAPES["pythia-1b"].vocabulary == 50304


def test_a_draft_that_is_always_right_and_free_multiplies_the_speed():
    flat = (1.0,) * 8
    one = prospect(flat, 0.0, 0.999999)
    assert one.draft_tokens == 7
    assert one.speedup == pytest.approx(8, rel=1e-3)


def test_a_draft_as_dear_as_its_target_does_not_pay():
    assert prospect((1.0,) * 8, 1.0, 0.5).speedup < 1


def test_the_table_names_what_it_is():
    one = Rehearsed("tiny", 1, 1, 1, 1, 1.0, 1.0, (1.0,) * 8)
    lines = table("made-up", "a machine", [one, one], [prospect(one.step_seconds, 0.1, 0.8)])
    assert "made-up weights" in lines[0]
    assert any(line.startswith("| speed-up") for line in lines)


def test_a_pair_without_written_shapes_is_bad_input(capsys):
    assert cli.main(["rehearse", "embedded"]) == 2
    said = capsys.readouterr().err
    assert "dolly-3b" in said
    assert len(said.splitlines()) == 1
