"""The rehearsal: made-up models that load and step like real ones, and what their costs promise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from specdemo import cli
from specdemo.convert import model_files
from specdemo.convert.decoder import FAMILIES, Shape
from specdemo.convert.eagle3 import EagleShape
from specdemo.machine import disk
from specdemo.pairs import embedded
from specdemo.pairs.registry import PAIRS, find_pair
from specdemo.pairs.sources import EMBEDDED_TARGET
from tools import rehearse as tool
from tools.rehearse import (
    MadeUp,
    expected_speedup,
    rehearse,
    rehearse_pair,
    round_cost,
    shape_of,
    write_made_up,
)


@pytest.fixture(autouse=True)
def few_forwards(monkeypatch) -> None:
    monkeypatch.setattr(tool, "REPEATS", 1)
    monkeypatch.setattr(tool, "TOKENS", (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "bits", "tied"), [("gptneox", 8, False), ("llama", 4, True)])
def test_a_made_up_model_of_a_few_layers_loads_and_steps(tmp_path, family, bits, tied):
    shape = Shape(256, 2, 4, 3000, 1024, 4, 64, tied=tied, family=FAMILIES[family])
    write_made_up(shape, bits, tmp_path)
    figures = rehearse("tiny", tmp_path)
    assert len(figures.step_seconds) == 2
    assert min(figures.step_seconds) > 0
    assert figures.weights_bytes == pytest.approx(shape.bytes(bits, MadeUp.output_bits), rel=0.05)
    assert figures.cache_bytes == 2 * 2 * 256 * 2048 * 2  # two layers, 16 bits a number
    assert {path.name for path in tmp_path.iterdir()} == {model_files.MODEL, model_files.WEIGHTS}


@pytest.fixture
def tiny_shapes(monkeypatch) -> None:
    shapes = {
        name: Shape(4 * width, 1, 4, 500, 16 * width, 4, width, shape.rotary, family=shape.family)
        for width, (name, shape) in zip(range(32, 128, 8), tool.SHAPES.items(), strict=False)
    }
    monkeypatch.setattr(tool, "SHAPES", shapes)


@pytest.mark.slow
def test_the_command_measures_a_pair_with_all_its_drafts_and_predicts_speeds(capsys, tiny_shapes):
    assert cli.main(["dolly-3b", "--json", "-"], tool.command) == 0
    figures = json.loads(capsys.readouterr().out)
    target, *drafts, rounded = figures["models"]
    assert (figures["pair"], figures["weights"]) == ("dolly-3b", "made up")
    assert target["model"] == "dolly-v2-3b-int8-ov"
    names = ["pythia-70m", "pythia-160m", "pythia-1b-int4-ov"]
    assert [draft["model"] for draft in drafts] == names
    assert "bitwise equal" in target["invariance"]
    assert rounded["model"] == "dolly-v2-3b-int4-ov"
    assert set(names) == {row["draft"] for row in figures["prospects"] if row["0.3"] > 0}
    milliseconds = 1000 * target["step_seconds"][0]
    assert find_pair("dolly-3b").read_facts() == f"{milliseconds:.0f} ms a token"
    assert list(disk.cache_home().glob("rehearsal/scratch-*")) == []


@pytest.mark.slow
def test_smollm2_is_rehearsed_with_the_embedded_target_drafting(tiny_shapes, monkeypatch, tmp_path):
    shape = Shape(64, 1, 4, 500, 256, 4, 16)
    write_made_up(shape, 8, tmp_path)
    monkeypatch.setattr(embedded, "fetch", lambda report: [SimpleNamespace(folder=tmp_path)])
    target, draft, rounded = rehearse_pair(find_pair("smollm2-1.7b"))
    assert draft.model == "SmolLM2-135M-Instruct"
    assert draft.weights_bytes == disk.file_size(tmp_path / model_files.WEIGHTS)
    assert target.model == "SmolLM2-1.7B-Instruct-int4"
    assert rounded.weights_bytes > target.weights_bytes


def test_every_dolly_smollm2_and_qwen3_pair_is_rehearsed_with_the_sizes_of_the_real_files():
    for pair in PAIRS:
        if pair.name.startswith(("dolly", "smollm2", "qwen3-1.7b", "qwen3-4b")):
            for source in (pair.target, *pair.drafts):
                shape, bits = shape_of(source) or (None, 0)
                mixed = 0.2 if bits == 4 else 0.03  # some matrices of the real files have 8 bits
                size = source.ir_bytes or source.download_bytes
                made = shape and shape.bytes(bits, MadeUp.output_bits)
                assert source == EMBEDDED_TARGET or made == pytest.approx(size, rel=mixed)


def test_an_eagle_head_is_rehearsed_with_the_embedding_of_its_target(tmp_path):
    """Its rows read the target's states, so it can be timed only beside one."""
    sizes = 64, 1, 4, 500, 128, 2, 16
    head = EagleShape(*sizes, embedding=False, tokens=np.arange(100))
    write_made_up(Shape(*sizes), 8, tmp_path / "target")
    write_made_up(head, 8, tmp_path / "head")
    figures = rehearse("head", tmp_path / "head", head, tmp_path / "target")
    assert len(figures.step_seconds) == 2 and figures.prefill_seconds > 0
    assert figures.weights_bytes == pytest.approx(head.bytes(8), rel=0.1)


def test_expected_speed_ups_are_leviathans_and_costs_never_fall_with_the_size():
    # Theorem 3.8 with cost coefficient c: (1 - a^(g+1)) / ((1 - a)(g c + 1))
    theorem = (1 - 0.7**6) / (0.3 * (5 * 0.1 + 1))
    assert expected_speedup(0.7, 5, 0.1, [1.0] * 6) == pytest.approx(theorem)
    assert expected_speedup(1.0, 4, 0.0, [1.0, 1.5, 2.0, 2.5, 2.2]) == 5 / 2.5
    tokens = sum(0.7**position for position in range(6))
    assert theorem * round_cost(5, 0.1, [1.0] * 6) == pytest.approx(tokens)
