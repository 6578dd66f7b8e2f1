#!/bin/sh
# OpenVINO 2026.4.1, convert_model of PyTorch modules: arguments of round (decimals), var (a correction of 2) and
# softplus (beta, threshold) are dropped without a word, and the module computes with their defaults. Expected: the
# values of PyTorch, or an error, as for functions that have no conversion rule.
# Seen on Linux, Python 3.11:
#   round(1.25, decimals=1): torch 1.2000  converted 1.0000  as without the argument: True
#   var(0 1 3, correction=2): torch 4.6667  converted 2.3333  as without the argument: True
#   softplus(-0.5, beta=4): torch 0.0317  converted 0.4741  as without the argument: True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 openvino==2026.4.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import openvino as ov
import torch
from torch.nn.functional import softplus


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, values):
        return self.function(values)


cases = {
    "round(1.25, decimals=1)": ([1.25], lambda x: torch.round(x, decimals=1), torch.round),
    "var(0 1 3, correction=2)": ([0.0, 1, 3], lambda x: torch.var(x, 0, correction=2), lambda x: torch.var(x, 0)),
    "softplus(-0.5, beta=4)": ([-0.5], lambda x: softplus(x, beta=4.0), softplus),
}
dropped = []
for name, (values, function, plain) in cases.items():
    values = torch.tensor(values)
    model = ov.convert_model(Module(function), example_input=values)
    found = ov.Core().compile_model(model, "CPU")(values.numpy())[0].item()
    right, default = function(values).item(), plain(values).item()
    dropped.append(abs(found - default) < 1e-3 < abs(found - right))
    print(f"{name}: torch {right:.4f}  converted {found:.4f}  as without the argument: {dropped[-1]}")
raise SystemExit(not all(dropped))
EOF
