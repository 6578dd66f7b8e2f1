#!/bin/sh
# OpenVINO 2026.4.1, CPU: weights of 8 bits with a scale for each input, [64, 1], in a MatMul without transpose_b. With
# one row, as when one token is decoded, the first scale is used for all inputs, silently; with 64 rows, as in a
# prompt, each its own. Scales of outputs, [1, 64], are right with any number. Expected: the same for all.
# Seen on Linux, Python 3.11, AVX2:
#   a scale for each output, rows wrong by number of rows: {1: 0, 2: 0, 64: 0}
#   a scale for each input, rows wrong by number of rows: {1: 1, 2: 2, 64: 0}
#   one row with the first scale for all inputs: True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import numpy as np
import openvino as ov
from openvino import opset15 as op

generator = np.random.default_rng(0)
weights = generator.integers(-3, 4, (64, 64)).astype(np.int8)
scales = (1 + np.arange(64) / 64).astype(np.float16)  # exact in each of the types
rows = generator.integers(-3, 4, (64, 64)).astype(np.float32)


def product(scales, count):
    data = op.parameter([-1, 64], np.float32)
    stored = op.convert(op.constant(weights), "f16")
    scaled = op.convert(op.multiply(stored, op.constant(scales)), "f32")
    model = ov.Model([op.result(op.matmul(data, scaled, False, False))], [data], "product")
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return ov.Core().compile_model(model, "CPU", exact)([rows[:count]])[0]


def wrong(scales):
    """How many rows are, by how many there are."""
    dequantized = weights.astype(np.float32) * scales.astype(np.float32)
    near = {n: np.isclose(product(scales, n), rows[:n] @ dequantized, atol=1e-3) for n in (1, 2, 64)}
    return {n: int((~each.all(1)).sum()) for n, each in near.items()}


outputs, inputs = wrong(scales[None, :]), wrong(scales[:, None])
print("a scale for each output, rows wrong by number of rows:", outputs)
print("a scale for each input, rows wrong by number of rows:", inputs)
first = rows[:1] @ weights.astype(np.float32) * float(scales[0])
alone = bool(np.isclose(product(scales[:, None], 1), first, atol=1e-3).all())
print("one row with the first scale for all inputs:", alone)
raise SystemExit(any(outputs.values()) or inputs != {1: 1, 2: 2, 64: 0} or not alone)
EOF
