#!/bin/sh
# NNCF 3.4.0: of weights that are -s, 0 or s, as of models trained with ternary weights, symmetric modes keep
# -s and make s smaller by an eighth (INT4_SYM) or a 128th (INT8_SYM): where both ends are equally large the
# scale is s / 8 and 8 is cut to 7. Asymmetric modes make both smaller alike. Expected: both exactly, as -7
# and 7, or both alike.
# Seen on Linux, Python 3.11:
#   INT4_SYM -1.000 0.000 0.875
#   INT4_ASYM -0.933 0.000 0.933
#   INT8_SYM -1.000 0.000 0.992
#   INT8_ASYM -0.996 0.000 0.996
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
weights = np.array([-1, 0, 1, 0] * 8, np.float32).reshape(1, 32)
smaller = {}
for mode in ("INT4_SYM", "INT4_ASYM", "INT8_SYM", "INT8_ASYM"):
    more = {"group_size": 32, "all_layers": True} if mode.startswith("INT4") else {}
    x = op.parameter([-1, 32], np.float32)
    model = ov.Model([op.matmul(x, op.constant(weights), False, True)], [x], "model")
    model = nncf.compress_weights(model, mode=getattr(nncf.CompressWeightsMode, mode), **more)
    kept = ov.compile_model(model, "CPU")(np.eye(32, dtype=np.float32))[0].ravel()
    print(mode, *(f"{value:.3f}" for value in abs(kept[:3]) * np.sign(kept[:3])))
    smaller[mode] = float(-kept[0] - kept[2])
symmetric, others = (smaller["INT4_SYM"], smaller["INT8_SYM"]), ("INT4_ASYM", "INT8_ASYM")
raise SystemExit(min(symmetric) < 0.005 or any(abs(smaller[mode]) > 0.001 for mode in others))
EOF
