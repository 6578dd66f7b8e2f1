#!/bin/sh
# OpenVINO 2026.4.1, convert_model: avg_pool2d with ceil_mode and padding divides the sums of windows that reach beyond
# the padding by the whole window. PyTorch divides by what lies within. Expected: its values. An input of ones shows
# the shares.
# Seen on Linux, Python 3.11:
#   torch:     0.667 1.000 0.500
#   converted: 0.667 1.000 0.333
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import openvino as ov
import torch

module = torch.nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True)
values = torch.ones(1, 1, 4)
model = ov.convert_model(module, example_input=values)
found = torch.from_numpy(ov.Core().compile_model(model, "CPU")(values.numpy())[0]).flatten()
expected = module(values).flatten()
print("torch:    ", *(f"{value:.3f}" for value in expected))
print("converted:", *(f"{value:.3f}" for value in found))
raise SystemExit(not (torch.equal(found[:-1], expected[:-1]) and (found[-1] - expected[-1]).abs() > 0.1))
EOF
