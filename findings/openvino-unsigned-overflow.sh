#!/bin/sh
# OpenVINO 2026.4.1, CPU: arithmetic of uint8 saturates where it runs and wraps around where it is
# folded. Expected: one of both.
# Seen on Linux, Python 3.11:
#   250 + 10, 1 + 2: [255, 3] [4, 3]
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



add = both(op.add, np.array([250, 1], np.uint8), np.array([10, 2], np.uint8))
print("250 + 10, 1 + 2:", *add)
raise SystemExit(add != [[255, 3], [4, 3]])
EOF
