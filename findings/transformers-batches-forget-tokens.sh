#!/bin/sh
# transformers 5.5.4: generate_batch (continuous batching) gives its logits processors no earlier tokens.
# repetition_penalty changes nothing; with no_repeat_ngram_size the loop ends with an error that is logged, and
# the result is empty. Biases and suppressed tokens are obeyed. Expected: the answers of generate.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   suppress_tokens: equal to generate True, to no setting False
#   repetition_penalty: equal to generate False, to no setting True
#   no_repeat_ngram_size: answers 0 of 1
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
asked = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": 63, "pad_token_id": 0}
small = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
options = {"continuous_batching_config": small, "progress_bar": False, "warmup": False}


def batched(**settings):
    answers = model.generate_batch([prompt.tolist()], GenerationConfig(**asked, **settings), **options)
    model.set_attn_implementation("sdpa")
    return [answer.generated_tokens for answer in answers.values()]


def generated(**settings):
    return [model.generate(prompt[None], **asked, **settings)[0, len(prompt) :].tolist()]


[plain] = generated()
seen = []
for name, value in (("suppress_tokens", plain[:1]), ("repetition_penalty", 1.5)):
    answer = batched(**{name: value})
    seen.append((answer == generated(**{name: value}), answer == [plain]))
    print(f"{name}: equal to generate {seen[-1][0]}, to no setting {seen[-1][1]}")
answers = len(batched(no_repeat_ngram_size=2))
print(f"no_repeat_ngram_size: answers {answers} of 1")
raise SystemExit(seen != [(True, False), (False, True)] or answers != 0)
EOF
