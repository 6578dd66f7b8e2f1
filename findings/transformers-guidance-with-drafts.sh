#!/bin/sh
# transformers 5.5.4: greedy answers with guidance_scale change when an assistant model or prompt lookup
# drafts; with every other logits processor that was tried (penalties, biases, n-gram bans, minimum length)
# they do not. Its processor runs the model with a cache of its own, in which rejected tokens stay.
# Expected: the same answers.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   penalty, drafted answers equal: [True, True]
#   guidance, drafted answers equal: [False, False]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.5.4
venv/bin/python - <<'EOF'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()


def random_model(seed, layers):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 16}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, **ids, initializer_range=0.3)).eval()


def answer(model, **options):
    prompt = torch.tensor([[2, 3, 4, 5, 2, 3, 4, 5, 2, 3]])
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": [-1]} | options
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    return output[0, prompt.shape[1] :].tolist()



target, assistant = random_model(1, 2), random_model(2, 1)
plain, guided = [
    [answer(target, **options, **drafts) for drafts in ({}, {"assistant_model": assistant}, {"prompt_lookup_num_tokens": 4})]
    for options in ({"repetition_penalty": 1.5}, {"guidance_scale": 1.5})
]
print("penalty, drafted answers equal:", [each == plain[0] for each in plain[1:]])
print("guidance, drafted answers equal:", [each == guided[0] for each in guided[1:]])
raise SystemExit(not (plain[0] == plain[1] == plain[2] and guided[0] not in guided[1:]))
EOF
