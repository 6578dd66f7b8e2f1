#!/bin/sh
# OpenVINO 2026.4.1, CPU: Range with a step that is no binary fraction adds it up in 32 bits at run time, so that
# errors add up too: of 200,000 values with step 0.1 the last is 39 too low. Folded, it is right. Expected:
# start + i * step.
# Seen on Linux, Python 3.11:
#   last of 200000: run 19960.837890625  folded 19999.900390625
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

stop = op.parameter([], np.float32)
zero, step = (op.constant(np.float32(value)) for value in (0, 0.1))
ends = stop, op.constant(np.float32(20000))
results = [op.result(op.range(zero, end, step, "f32")) for end in ends]
model = ov.Core().compile_model(ov.Model(results, [stop], "ranges"), "CPU")
found = model([np.float32(20000)])
run, folded = found[0], found[1]
print(f"last of {run.size}: run {run[-1]}  folded {folded[-1]}")
raise SystemExit(not (run[-1] < 19961 and abs(folded[-1] - 19999.9) < 0.01))
EOF
