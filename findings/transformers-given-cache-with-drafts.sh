#!/bin/sh
# transformers 5.5.4: a cache of the prompt's beginning, given as past_key_values, changes greedy answers when
# an assistant model drafts; without one it does not. Expected: the same answers.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   answers equal with the cache: plain True, assisted False
#   answers equal without: plain True, assisted True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.5.4
venv/bin/python - <<'EOF'
import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
CACHED, LONGEST = 8, 24  # tokens


def random_model(noise):
    """The same weights each time, but for this much noise."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    ids = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, **sizes, **ids)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(2 if weights.dim() > 1 else 1)
        for weights in model.parameters():
            weights.add_(noise * weights.std() * torch.randn_like(weights))
    return model


model, assistant = random_model(0), random_model(0.1)
prompt = torch.tensor([[5, 9, 7, 3, 11, 2, 5, 9, 7, 3, 5, 9]])
asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": LONGEST, "do_sample": False}
ways = {"plain": {}, "assisted": {"assistant_model": assistant}}
plain = model.generate(prompt, **asked)[0].tolist()


def equal(cached):
    found = {}
    for name, way in ways.items():
        given = {}
        if cached:
            given["past_key_values"] = DynamicCache(config=model.config)
            with torch.no_grad():
                model(prompt[:, :CACHED], **given)
        answer = model.generate(prompt, **asked, **way, **given)[0].tolist()
        found[name] = answer == plain
    return found


for words, cached in (("with the cache", True), ("without", False)):
    found = equal(cached)
    print(f"answers equal {words}:", ", ".join(f"{name} {same}" for name, same in found.items()))
    if not found["plain"] or found["assisted"] == cached:
        raise SystemExit(1)
EOF
