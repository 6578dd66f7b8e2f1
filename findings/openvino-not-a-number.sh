#!/bin/sh
# OpenVINO 2026.4.1, CPU: Relu and Clamp turn NaN into 0 where they run, so that a fault in a model can
# look like an answer; folded, NaN stays. Expected: NaN, as NumPy, PyTorch and ONNX have it.
# Seen on Linux, Python 3.11:
#   relu: [0.0] [nan]  clamp: [0.0] [nan]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import numpy as np
import openvino as ov
from openvino import opset13 as op


def both(operation, *arrays):
    """The result with the arrays as inputs, and as constants, which are folded."""
    core, results = ov.Core(), []
    for constant in (False, True):
        if constant:
            nodes, inputs = [op.constant(array) for array in arrays], []
        else:
            nodes = inputs = [op.parameter([len(array)], array.dtype) for array in arrays]
        model = ov.Model([op.result(operation(*nodes))], inputs, "model")
        compiled = core.compile_model(model, "CPU")
        given = {} if constant else dict(enumerate(arrays))
        results.append(compiled(given)[0].tolist())
    return results



nan = np.array([np.nan], np.float32)
results = both(op.relu, nan) + both(lambda x: op.clamp(x, 0.0, 1.0), nan)
print("relu:", *results[:2], " clamp:", *results[2:])
raise SystemExit([value == value for [value] in results] != [True, False] * 2)
EOF
