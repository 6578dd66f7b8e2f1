#!/bin/sh
# OpenVINO 2026.4.1, CPU: a square constant that two MatMuls read, one with transpose_b and one without. Both give
# the product of the first, silently; with a copy of the constant each gives its own. So it is with compressed
# weights too, as NNCF makes them of one constant. Expected: x W' and x W.
# Seen on Linux, Python 3.11, AVX2:
#   a copy each: right, right
#   one constant, transposed first: right, wrong (the first's product: True)
#   one constant, transposed last: right, wrong (the first's product: True)
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
rows = generator.integers(-3, 4, (2, 64)).astype(np.float32)  # small integers: products are exact
weights = generator.integers(-3, 4, (64, 64)).astype(np.float32)


def products(transposed, copied):
    """x W' where transposed, else x W; of one constant, or of a copy each."""
    constant = op.constant(weights)
    data = op.parameter([-1, 64], np.float32)
    results = []
    for each in transposed:
        source = op.constant(weights.copy()) if copied else constant
        results.append(op.result(op.matmul(data, source, False, each)))
    made = ov.Core().compile_model(ov.Model(results, [data], "products"), "CPU")([rows])
    return made[0].copy(), made[1].copy()


def right(transposed, found):
    wanted = (rows @ (weights.T if each else weights) for each in transposed)
    return [bool((one == other).all()) for one, other in zip(found, wanted)]


both = (True, False)
copies = right(both, products(both, True))
print("a copy each:", ", ".join("right" if one else "wrong" for one in copies))
seen = [copies == [True, True]]
for name, transposed in (("transposed first", both), ("transposed last", both[::-1])):
    found = products(transposed, False)
    words = ["right" if one else "wrong" for one in right(transposed, found)]
    same = bool((found[0] == found[1]).all())
    print(f"one constant, {name}:", ", ".join(words), f"(the first's product: {same})")
    seen.append(words == ["right", "wrong"] and same)
raise SystemExit(not all(seen))
EOF
