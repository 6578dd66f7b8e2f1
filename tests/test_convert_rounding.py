"""Four-bit weights that are rounded along a model's own text: closer than simple rounding, and an
interrupted run continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType as Type
from test_convert_decoder import EXACT

from specdemo import cli
from specdemo.convert import ir, rounding
from specdemo.convert.exporting import export
from specdemo.engine.messages import ModelSettings, Run
from specdemo.engine.model import PagedModel
from specdemo.errors import BadInput
from tools import weight_formats

*TEXTS, HELD_BACK = np.random.default_rng(3).integers(0, 20, (25, 32)).tolist()  # of few words


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def file(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rounding") / f"{request.param}.gguf"
    tied = {"tie_word_embeddings": request.param == "llama"}
    model = tiny_gguf.torch_model(request.param, **tied)
    tiny_gguf.write(path, model, request.param, Type.F16)
    return path


def logits(folder: Path) -> np.ndarray:
    paged = PagedModel(folder / ir.MODEL, ModelSettings("CPU", tuple(EXACT.items())))
    with paged.new_sequence() as sequence:
        return paged.forward([Run(sequence, HELD_BACK, len(HELD_BACK))])[0].rows.copy()


def test_rounding_along_text_is_closer_than_simple_rounding_in_the_same_form(file, tmp_path):
    export(file, tmp_path / "whole", "fp16")
    export(file, tmp_path / "simple", "int4")
    export(file, tmp_path / "rounded", "int4", own_text=lambda: TEXTS)
    whole, simple, rounded = (logits(tmp_path / name) for name in ("whole", "simple", "rounded"))
    simple, rounded = (np.square(rows - whole).mean() for rows in (simple, rounded))
    assert 0 < rounded < 0.8 * simple
    sizes = [(tmp_path / name / ir.WEIGHTS).stat().st_size for name in ("simple", "rounded")]
    assert sizes[0] == sizes[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounded", "simple", "whole"]


def test_a_killed_run_leaves_nothing_damaged_and_the_next_continues(file, tmp_path, monkeypatch):
    script = (
        "import itertools, os, sys\n"
        "from pathlib import Path\n"
        "from specdemo.convert import exporting, rounding\n"
        "save, count = rounding._save, itertools.count()\n"
        "def dying(*given):\n"
        "    if next(count) == 13: os.kill(os.getpid(), 9)\n"
        "    save(*given)\n"
        "rounding._save = dying\n"
        "from test_convert_rounding import TEXTS\n"
        "paths = map(Path, sys.argv[1:])\n"
        "exporting.export(*paths, 'int4', own_text=lambda: TEXTS)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", script, str(file), str(tmp_path / "out")]
    assert subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode == -9
    assert not (tmp_path / "out").exists()
    rounded, layers = [], rounding.LayerGraph.build
    monkeypatch.setattr(
        rounding.LayerGraph, "build", lambda graph: rounded.append(graph) or layers(graph)
    )
    export(file, tmp_path / "out", "int4", own_text=lambda: pytest.fail("the text is there"))
    assert len(rounded) == 2, "the second layer and the output matrix"
    export(file, tmp_path / "again", "int4", own_text=lambda: TEXTS)
    weights = [(tmp_path / name / ir.WEIGHTS).read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1]


def test_only_int4_is_calibrated(file, tmp_path):
    with pytest.raises(BadInput, match="--calibrate is for int4"):
        export(file, tmp_path / "out", "int8", own_text=lambda: TEXTS)


@pytest.mark.slow
def test_the_command_lets_the_target_write_the_text(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("specdemo.training.data.CALIBRATION_TOKENS", 200)
    command = ["export", str(file), str(tmp_path / "out"), "--weight-format", "int4"]
    assert cli.main([*command, "--calibrate"]) == 0
    assert "holds the IR" in capsys.readouterr().out
    assert logits(tmp_path / "out").shape[-1] > 256


def test_the_tool_compares_formats(file, tmp_path, capsys, monkeypatch):
    for kind in ("fp16", "int4"):
        export(file, tmp_path / kind, kind)
    monkeypatch.chdir(Path(__file__).parents[1])
    folders = [str(tmp_path / kind) for kind in ("fp16", "int4")]
    assert cli.main([*folders, "--tokens", "130"], weight_formats.command) == 0
    lines = map(str.split, capsys.readouterr().out.splitlines())
    whole, four_bits = [line for line in lines if line][-2:]
    assert (whole[0], whole[2:4], four_bits[0]) == ("fp16", ["0", "1"], "int4")
    assert float(four_bits[2]) > 0.01
