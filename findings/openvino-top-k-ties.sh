#!/bin/sh
# OpenVINO 2026.4.1, CPU: among equal values TopK with sort "value" puts another one first for each K: the
# first of them for K = 1 and 2, the last for K = 5. A greedy token that is read from the five likeliest is
# not the one of the likeliest alone where logits tie, as rounded ones do. `stable=True`, which is not the
# default, gives the first for every K. Expected: one order, whichever it is.
# Seen on Linux, Python 3.11:
#   equal values at 12, 32 and 63; first index by K: {1: 12, 2: 12, 3: 32, 5: 63}
#   stable: {1: 12, 2: 12, 3: 12, 5: 12}
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

TIES = 12, 32, 63
values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
values[list(TIES)] = 10


def first(k, stable):
    data = op.parameter([-1], np.float32)
    top = op.topk(data, op.constant(np.int64(k)), 0, "max", "value", stable=stable)
    model = ov.Core().compile_model(ov.Model([op.result(top.output(1))], [data], "top"), "CPU")
    return int(model(values)[0][0])


found = {k: first(k, False) for k in (1, 2, 3, 5)}
stable = {k: first(k, True) for k in (1, 2, 3, 5)}
print("equal values at 12, 32 and 63; first index by K:", found)
print("stable:", stable)
raise SystemExit(len(set(found.values())) == 1 or set(stable.values()) != {TIES[0]})
EOF
