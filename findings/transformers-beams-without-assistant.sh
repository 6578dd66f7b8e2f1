#!/bin/sh
# transformers 5.5.4: `generate` with num_beams=2 and an assistant model never runs the assistant, without a
# word; with num_return_sequences=2 it raises. Expected: an error in both cases.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   forwards of the assistant with two beams: 0  with one: 13
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
calls, forward = [0], assistant.forward


def counted(*arguments, **options):
    calls[0] += 1
    return forward(*arguments, **options)


assistant.forward = counted
counts = []
for beams in (2, 1):
    calls[0] = 0
    answer(target, num_beams=beams, assistant_model=assistant)
    counts.append(calls[0])
print("forwards of the assistant with two beams:", counts[0], " with one:", counts[1])
raise SystemExit(counts[0] != 0 or counts[1] == 0)
EOF
