#!/bin/sh
# transformers 5.5.4: after generate_batch (continuous batching) greedy answers of generate change, silently:
# the model keeps the attention of batches. With its old attention set again they are as before. Expected: the
# attention is put back, or an error.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   equal to generate before: generate_batch True, generate after it False, with sdpa set again True
#   attention: sdpa, after generate_batch paged|sdpa
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.5.4 psutil==7.2.2
venv/bin/python - <<'EOF'
import logging

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
logging.disable()
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)).eval()
with torch.no_grad():
    for weights in model.parameters():
        weights.mul_(1.5 if weights.dim() > 1 else 1)
prompt = torch.arange(1, 13)
asked = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 63, "pad_token_id": 0}


def generated():
    return model.generate(prompt[None], **asked)[0, len(prompt) :].tolist()


before, attention = generated(), model.config._attn_implementation
small = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
options = {"continuous_batching_config": small, "progress_bar": False, "warmup": False}
answers = model.generate_batch([prompt.tolist()], GenerationConfig(**asked), **options)
batched = [answer.generated_tokens for answer in answers.values()]
after, kept = generated(), model.config._attn_implementation
model.set_attn_implementation(attention)
again = generated()
seen = batched == [before], after == before, again == before
print(f"equal to generate before: generate_batch {seen[0]},", end=" ")
print(f"generate after it {seen[1]}, with {attention} set again {seen[2]}")
print(f"attention: {attention}, after generate_batch {kept}")
raise SystemExit(seen != (True, False, True))
EOF
