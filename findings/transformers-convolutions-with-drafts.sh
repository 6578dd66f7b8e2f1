#!/bin/sh
# transformers 5.5.4: greedy answers of LFM2, whose layers are partly short convolutions, change when an assistant
# model or prompt lookup drafts. The cache crops the keys of attention, and leaves the inputs of convolutions
# as they were after the rejected tokens. Mamba, Jamba and Qwen3.5 are refused ("not supported with stateful
# models"), LFM2 is not. Expected: refused too, or the same answers.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   attention alone, drafted answers equal: [True, True]
#   with convolutions, drafted answers equal: [False, False]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.5.4
venv/bin/python - <<'EOF'
import torch
import transformers
from transformers import Lfm2Config, Lfm2ForCausalLM

transformers.logging.set_verbosity_error()


def random_model(seed, kinds):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": len(kinds)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": kinds}
    ids = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = Lfm2ForCausalLM(Lfm2Config(**sizes, **heads, **ids)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                scale = weights[0].numel() ** -0.5
                weights.copy_(scale * torch.randn(weights.shape, generator=generator))
    return model


def equal(kinds):
    """Whether greedy answers with an assistant model, and with prompt lookup, are those without."""
    model, assistant = random_model(0, kinds), random_model(1, kinds)
    prompt = torch.tensor([[5, 9, 7, 3, 5, 9, 7, 3, 5, 9]])
    asked = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 24, "do_sample": False}
    plain = model.generate(prompt, **asked)
    assisted = model.generate(prompt, assistant_model=assistant, **asked)
    looked_up = model.generate(prompt, prompt_lookup_num_tokens=4, eos_token_id=[-1], **asked)
    return [answer[0].tolist()[:34] == plain[0].tolist() for answer in (assisted, looked_up)]


attention = equal(["full_attention"] * 3)
convolutions = equal(["conv", "full_attention", "conv"])
print("attention alone, drafted answers equal:", attention)
print("with convolutions, drafted answers equal:", convolutions)
raise SystemExit(not all(attention) or any(convolutions))
EOF
