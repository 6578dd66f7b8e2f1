#!/bin/sh
# OpenVINO 2026.4.1, CPU: Divide of int32 rounds down where it is folded, as its Python rule says, and
# toward zero where it runs. So -7 / 2 depends on whether the operands are constants. Expected: -4 twice.
# Seen on Linux, Python 3.11:
#   run: [-3, -3]  folded: [-4, -4]
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



run, folded = both(op.divide, np.array([-7, 7], np.int32), np.array([2, -2], np.int32))
print("run:", run, " folded:", folded)
raise SystemExit((run, folded) != ([-3, -3], [-4, -4]))
EOF
