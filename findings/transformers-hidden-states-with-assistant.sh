#!/bin/sh
# transformers 5.5.4: output_hidden_states with an assistant model raises an IndexError; output_scores works.
# Expected: hidden states of the accepted tokens, or an error that names the option.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   scores: works  hidden states: IndexError: tuple index out of range
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
prompt = torch.tensor([[2, 3, 4, 5, 2, 3, 4, 5, 2, 3]])
said = []
for extra in ("output_scores", "output_hidden_states"):
    options = {extra: True, "return_dict_in_generate": True, "assistant_model": assistant}
    try:
        target.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, eos_token_id=[-1], **options)
        said.append("works")
    except IndexError as error:
        said.append(f"IndexError: {error}")
print("scores:", said[0], " hidden states:", said[1])
raise SystemExit(said[0] != "works" or "IndexError" not in said[1])
EOF
