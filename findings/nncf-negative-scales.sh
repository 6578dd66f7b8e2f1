#!/bin/sh
# NNCF 3.4.0: the scales of symmetric INT4 and INT8 weights are negative where the largest weight of a group
# is positive, so that it becomes -8 or -128. Kernels that take scales for positive (a maximum, a square
# root, a sign bit) are wrong. Expected: positive scales and a range of -7 to 7.
# Seen on Linux, Python 3.11:
#   INT4_SYM [-0.625 -0.125]
#   INT8_SYM [-0.03906 -0.00781]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet nncf==3.4.0 openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import logging

import nncf
import numpy as np
import openvino as ov
from openvino import opset13 as op

nncf.set_log_level(logging.ERROR)
weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
weights[0, 0] = 5.0
signs = []
for mode, more in (("INT4_SYM", {"group_size": 32, "all_layers": True}), ("INT8_SYM", {})):
    x = op.parameter([-1, 32], np.float32)
    model = ov.Model([op.matmul(x, op.constant(weights), False, True)], [x], "model")
    model = nncf.compress_weights(model, mode=getattr(nncf.CompressWeightsMode, mode), **more)
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    [scales] = [node.data for node in constants if node.get_element_type() == ov.Type.f16]
    print(mode, scales.ravel())
    signs.append(bool(scales.ravel()[0] < 0))
raise SystemExit(signs != [True, True])
EOF
