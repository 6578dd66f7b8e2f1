#!/bin/sh
# OpenVINO 2026.4.1, CPU: Equal of two int32 values beyond 2**24 that differ by one is true: they are
# compared as floats, while Maximum of the same values is exact. Folded, Equal is false. Expected: false.
# Seen on Linux, Python 3.11:
#   equal: [True] [False]  maximum: [16777217] [16777217]
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



values = np.array([2**24 + 1], np.int32), np.array([2**24], np.int32)
equal, maximum = both(op.equal, *values), both(op.maximum, *values)
print("equal:", *equal, " maximum:", *maximum)
raise SystemExit((equal, maximum) != ([[True], [False]], [[2**24 + 1]] * 2))
EOF
