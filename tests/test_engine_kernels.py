"""Products of the engine's own kernels: right, and with the same bits for any number of rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from test_engine_paged import CLOSE, CORE

from specdemo.convert.weights import compressed
from specdemo.engine.backends import graph, kernels, numerics
from specdemo.engine.profile import ModelProfile

pytest.importorskip("llvmlite")

ROWS = (1, 2, 3, 4, 5, 8, 9)


@pytest.fixture(scope="module")
def code():
    return kernels.shared()


def random_weights(rng, bits: int, shape: tuple[int, int], groups: int):
    """Integers [outputs, columns], scales and zeros [outputs, groups]; zero and full range among
    them."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    stored = rng.integers(low, high, shape)
    stored[0], stored[1] = low, high - 1
    scales = rng.random((shape[0], groups)).astype(np.float16)
    return stored, scales, rng.integers(max(low, -20), 16, scales.shape).astype(np.int8)


def reference(x, stored, scales, zeros, group: int) -> np.ndarray:
    """The product in float64, with activations rounded as the kernels do."""
    apart = x.reshape(len(x), -1, group)
    top = np.abs(apart).max(2)
    factor = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    rounded = np.rint(apart * factor[..., None]).astype(np.int64)
    count = apart.shape[1] // scales.shape[1]
    scales, zeros = (np.repeat(values, count, 1).astype(np.float64) for values in (scales, zeros))
    sums = np.einsum("rgk,ogk->rog", rounded, stored.reshape(len(stored), -1, group))
    sums = sums - zeros * rounded.sum(2)[:, None]
    return (sums * scales * (top / 127)[:, None]).sum(2)


def packed(stored, bits: int, scales, zeros) -> kernels.Matrix | None:
    raw = stored.astype(np.int8)
    if bits == 4:
        raw = (stored[:, ::2] | stored[:, 1::2] << 4).astype(np.uint8)
    return kernels.pack(raw, bits, scales, zeros)


@pytest.mark.parametrize(
    ("bits", "outputs", "columns", "groups"),
    [(4, 32, 256, 2), (4, 48, 96, 3), (4, 16, 8960, 70), (8, 64, 576, 1), (8, 32, 256, 4)],
)
def test_products_are_those_of_numpy_and_do_not_depend_on_rows_and_threads(
    code, bits, outputs, columns, groups
):
    rng = np.random.default_rng(columns)
    weights = random_weights(rng, bits, (outputs, columns), groups)
    matrix = packed(weights[0], bits, *weights[1:])
    assert matrix is not None
    x = rng.standard_normal((max(ROWS), columns), np.float32)
    x[2] = 0
    expected = reference(x, *weights, matrix.group)
    first = None
    for threads in (1, 2, 8):
        code.start(threads)
        for rows in ROWS:
            y = np.full((2, rows, outputs), np.nan, np.float32)
            places = [part.ctypes.data for part in y]
            code.multiply([matrix, matrix], x.ctypes.data, places, rows)
            first = y[0] if first is None else first
            assert np.array_equal(y[0], y[1])
            assert np.array_equal(y[0, 0], first[0])
            assert np.abs(y[0] - expected[:rows]).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("outputs", "columns", "groups"), [(24, 64, 1), (16, 48, 1), (16, 64, 4)])
def test_shapes_that_fill_no_tile_or_group_stay_with_the_plugin(outputs, columns, groups):
    weights = random_weights(np.random.default_rng(0), 8, (outputs, columns), groups)
    assert packed(weights[0], 8, *weights[1:]) is None


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_every_form_of_compressed_weights_gives_the_product_of_their_floats(kind):
    rng, groups = np.random.default_rng(1), 2
    low, high = {"i4": (-8, 8), "u4": (0, 16), "i8": (-128, 128), "u8": (0, 256)}[kind]
    stored = rng.integers(low, high, (32, groups, 64))
    scales = (rng.random((32, groups, 1)) + 0.1).astype(np.float16)
    zeros = None
    values = stored.astype(np.float32)
    if kind[0] == "u":
        zeros = rng.integers(0, high, scales.shape).astype(np.uint8)
        values -= zeros
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(list(stored.shape)))
    raw = stored.astype(np.uint8).reshape(-1)
    raw = (raw[::2] & 15 | raw[1::2] << 4) if "4" in kind else raw
    graph.raw_bytes(tensor)[:] = raw
    x = ops.parameter([-1, 1, 128], ov.Type.f32)
    matrix = compressed(tensor, scales, zeros)
    model = ov.Model([ops.result(ops.matmul(x, matrix, False, True))], [x], "product")
    kernels.use_kernels(model)
    assert any(node.get_type_name() == "Product" for node in model.get_ops())
    compiled = CORE.compile_model(model, "CPU", dict(CLOSE.properties))
    given = rng.standard_normal((3, 1, 128), np.float32)
    exact = given[:, 0] @ (values * scales.astype(np.float32)).reshape(32, 128).T
    assert np.abs(compiled([given])[0][:, 0] - exact).max() < 0.01 * np.abs(exact).max()


def test_equal_products_of_one_input_stay_apart():
    """The plugin would keep one of two that it takes for the same."""
    rng = np.random.default_rng(2)
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    given, tensors, results, expected = rng.standard_normal((2, 1, 64), np.float32), [], [], []
    for kind in (ov.Type.i8, ov.Type.i8, ov.Type.u4, ov.Type.u4):
        stored = rng.integers(0, 15, (16, 64)).astype(np.uint8)
        tensors.append(ov.Tensor(kind, ov.Shape([16, 1, 64])))  # the constants do not keep them
        raw = stored if kind == ov.Type.i8 else stored[:, ::2] | stored[:, 1::2] << 4
        graph.raw_bytes(tensors[-1])[:] = raw.reshape(-1)
        matrix = compressed(tensors[-1], np.ones((16, 1, 1), np.float16))
        results.append(ops.result(ops.matmul(x, matrix, False, True)))
        expected.append(given[:, 0] @ stored.T)
    model = ov.Model(results, [x], "products")
    kernels.use_kernels(model)
    compiled = CORE.compile_model(model, "CPU", dict(CLOSE.properties))([given])
    for output, exact in zip(compiled.values(), expected, strict=True):
        assert np.abs(output[:, 0] - exact).max() < 0.02 * np.abs(exact).max()


def test_large_models_use_kernels_where_the_processor_has_no_vnni(tiny_llama_pair, monkeypatch):
    xml = tiny_llama_pair.target
    monkeypatch.setattr(kernels, "available", lambda: True)
    own = ModelProfile((kernels.PROPERTY,))
    for least, used in ((numerics.KERNEL_WEIGHTS, False), (1, True)):
        monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", least)
        tried = numerics.candidates(xml, "CPU", "auto", True, CORE)
        assert (kernels.PROPERTY in tried[0]) == used
        assert not any(kernels.PROPERTY in properties for properties in tried[1:])
        assert (numerics.usable(own, xml) is own) == used
        assert (numerics.usable(ModelProfile(), xml) is None) == used


AVAILABLE = (
    "import sys; from specdemo.engine.backends import kernels; sys.exit(kernels.available())"
)


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_limit_of_onednn_is_a_processor_without_vnni(isa, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    root = Path(kernels.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", AVAILABLE], cwd=root, timeout=60)
    assert done.returncode == 1


def test_without_llvmlite_the_plugin_computes_all(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels.available.__wrapped__()
