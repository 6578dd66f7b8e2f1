"""Matrix products whose sums depend on how many tokens run together are split until they do not."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from specdemo.convert.weights import compressed
from specdemo.engine import products

CORE, RNG = ov.Core(), np.random.default_rng(0)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
ALIVE: list[ov.Tensor] = []  # graphs share the memory of these
WIDE = 4864  # of Qwen2.5-0.5B; without VNNI OpenVINO sums five tokens in another order than four


def weights(form: str, columns: int) -> ov.Output:
    """A matrix of 64 rows."""
    if form == "float16":
        half = ops.constant((RNG.random((64, columns)) - 0.5).astype(np.float16))
        return ops.convert(half, "f32").output(0)
    kind = {"int8 rows": ov.Type.i8, "int4 rows": ov.Type.i4}.get(form, ov.Type.u4)
    group = columns if form.endswith("rows") else 64
    integers = ov.Tensor(kind, ov.Shape([64, columns // group, group]))
    ALIVE.append(integers)
    flat = products.raw_bytes(integers)
    flat[:] = RNG.integers(0, 256, flat.size, np.uint8)
    scales = RNG.random((64, columns // group, 1)).astype(np.float16)
    if kind != ov.Type.u4:
        return compressed(integers, scales)
    return compressed(integers, scales, RNG.integers(0, 16, scales.shape, np.uint8))


def network(matrix: ov.Output) -> ov.Model:
    x = ops.parameter([-1, 1, matrix.get_shape()[1]], ov.Type.f32)
    return ov.Model([ops.result(ops.matmul(x, matrix, False, True))], [x])


def product_count(model: ov.Model) -> int:
    return sum(node.get_type_name() == "MatMul" for node in model.get_ops())


@pytest.mark.parametrize("form", ["float16", "int8 rows", "int4 rows", "groups of four bits"])
def test_a_split_product_is_the_sum_of_its_parts(form, monkeypatch):
    answers = iter([False, False, True])
    monkeypatch.setattr(products, "_equal", lambda *_: next(answers))
    model = network(weights(form, 384))
    x = RNG.standard_normal((5, 1, 384)).astype(np.float32)
    whole = CORE.compile_model(model, "CPU", EXACT)([x])[0]
    products.split_products(CORE, model, EXACT)
    assert product_count(model) == 3
    split = CORE.compile_model(model, "CPU", EXACT)([x])[0]
    assert split == pytest.approx(whole, rel=1e-4, abs=1e-3)
    assert "Slice" not in {node.get_type_name() for node in model.get_ops()}


def test_a_product_that_no_parts_make_equal_or_that_cannot_be_divided_stays(monkeypatch):
    monkeypatch.setattr(products, "_equal", lambda *_: False)
    for columns in (384, 7):  # no number of parts divides 7
        products.split_products(CORE, model := network(weights("int8 rows", columns)), EXACT)
        assert product_count(model) == 1


@pytest.mark.parametrize("form", ["int8 rows", "groups of four bits"])
def test_a_row_of_a_wide_product_has_the_same_bits_beside_any_others(form):
    model = network(weights(form, WIDE))
    products.split_products(CORE, model, EXACT)
    compiled = CORE.compile_model(model, "CPU", EXACT)
    x = RNG.standard_normal((64, 1, WIDE)).astype(np.float32)
    expected = compiled([x])[0].copy()
    for rows in (2, 3, 4, 5, 7, 8, 12, 16, 32):
        assert np.array_equal(compiled([x[:rows]])[0], expected[:rows]), rows
