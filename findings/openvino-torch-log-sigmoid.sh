#!/bin/sh
# OpenVINO 2026.4.1: a PyTorch module with logsigmoid (gates of linear attention, losses) is converted to the logarithm
# of a sigmoid, which is -inf below -86. Expected: PyTorch's values, about the input itself there.
# Seen on Linux, Python 3.11:
#   torch:     -20.0 -85.0 -90.0 -110.0
#   converted: -20.0 -85.0 -inf -inf
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import openvino as ov
import torch

values = torch.tensor([-20.0, -85, -90, -110])
module = torch.nn.LogSigmoid()
model = ov.convert_model(module, example_input=values)
found = ov.Core().compile_model(model, "CPU")(values.numpy())[0].tolist()
expected = module(values).tolist()
print("torch:    ", *(f"{value:.1f}" for value in expected))
print("converted:", *(f"{value:.1f}" for value in found))
raise SystemExit(not (found[-1] == float("-inf") and abs(expected[-1] + 110) < 1e-3))
EOF
