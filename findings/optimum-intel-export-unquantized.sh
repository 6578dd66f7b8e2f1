#!/bin/sh
# optimum-intel 2.1.0: main_export writes weights of full size, without a word, though its ov_config asks for
# 8 or 4 bits; `dtype` of the same object is obeyed for fp16. from_pretrained(export=True) with the same
# quantization writes 8 bits. Expected: quantized weights, or an error.
# (Where pip's index serves torch with CUDA, take torch from https://download.pytorch.org/whl/cpu first.)
# Seen on Linux, Python 3.11:
#   weights: {'main_export, no bits': ['f32'], 'main_export, 8 bits': ['f32'], 'main_export, 4 bits': ['f32'], 'from_pretrained, 8 bits': ['u8']}
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 transformers==5.5.4 optimum-intel==2.1.0 openvino==2026.4.1 \
  openvino-tokenizers==2026.4.1.0 nncf==3.4.0
HF_HUB_OFFLINE=1 venv/bin/python - <<'EOF'
import logging

import openvino as ov
import transformers
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig, OVModelForCausalLM, OVWeightQuantizationConfig
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logging.disable()
transformers.logging.set_verbosity_error()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes)
LlamaForCausalLM(config).save_pretrained("model")
letters = {chr(code): code for code in range(32, 127)}
PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(letters, []))).save_pretrained("model")


def types(folder):
    """Of the constants with at least 4,096 values."""
    nodes = ov.Core().read_model(f"{folder}/openvino_model.xml").get_ops()
    constants = [node for node in nodes if node.get_type_name() == "Constant"]
    large = [node for node in constants if node.data.size >= 4096]
    return sorted({node.get_element_type().get_type_name() for node in large})


found = {}
for bits in (None, 8, 4):
    more = {"sym": False, "group_size": 32 if bits == 4 else -1}
    weights = bits and OVWeightQuantizationConfig(bits=bits, **more)
    asked = {"ov_config": OVConfig(quantization_config=weights)} if bits else {}
    main_export("model", f"ir-{bits}", task="text-generation-with-past", **asked)
    found[f"main_export, {bits or 'no'} bits"] = types(f"ir-{bits}")
weights = OVWeightQuantizationConfig(bits=8, sym=False)
model = OVModelForCausalLM.from_pretrained("model", export=True, quantization_config=weights)
model.save_pretrained("saved")
found["from_pretrained, 8 bits"] = types("saved")
print("weights:", found)
raise SystemExit([*found.values()] != [["f32"]] * 3 + [["u8"]])
EOF
