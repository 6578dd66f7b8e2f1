#!/bin/sh
# OpenVINO 2026.4.1, CPU: Mod and FloorMod of floats round the quotient to 32 bits at run time: of 1e9 and 7, both
# exact in f32, the rest is 64, more than the divisor. Folded, FloorMod is right. Expected: fmod, whose result is
# exact, and always less than the divisor.
# Seen on Linux, Python 3.11:
#   1e9 and 7, 1e10 and 3: run [64.0, 0.0] [64.0, 0.0]  folded FloorMod [6.0, 1.0]  fmod [6.0, 1.0]
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

values, divisors = np.array([[1e9, 1e10], [7, 3]], np.float32)
left, right = (op.parameter([-1], np.float32) for _ in range(2))
rests = op.mod(left, right), op.floor_mod(left, right)
folded = op.floor_mod(op.constant(values), op.constant(divisors))
results = [op.result(node) for node in (*rests, folded)]
model = ov.Core().compile_model(ov.Model(results, [left, right], "rests"), "CPU")
found = model([values, divisors])
mod, floor_mod, folded = (found[i].tolist() for i in range(3))
wanted = np.fmod(values, divisors).tolist()
print("1e9 and 7, 1e10 and 3: run", mod, floor_mod, " folded FloorMod", folded, " fmod", wanted)
raise SystemExit(not (mod[0] > divisors[0] and floor_mod[0] > divisors[0] and folded == wanted))
EOF
