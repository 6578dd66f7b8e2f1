#!/bin/sh
# transformers 5.5.4: prompt lookup with eos_token_id=None (go on to the limit) raises a TypeError of torch
# about the arguments of isin; plain decoding and an assistant model take it. Expected: as they do.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   plain and assisted: [12, 12]  prompt lookup: isin() received an invalid combination of arguments - got (Tensor, NoneType), but expected one of:
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
lengths = [len(answer(target, eos_token_id=None, **drafts)) for drafts in ({}, {"assistant_model": assistant})]
try:
    answer(target, eos_token_id=None, prompt_lookup_num_tokens=4)
    said = "nothing"
except TypeError as error:
    said = str(error).splitlines()[0]
print("plain and assisted:", lengths, " prompt lookup:", said)
raise SystemExit(lengths != [12, 12] or "isin" not in said)
EOF
