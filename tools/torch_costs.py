"""Measures the milliseconds of a forward of 1 to 32 tokens on a torch device, here and in
transformers: python tools/torch_costs.py CHECKPOINT torch:DEVICE [exact|fast]

Without a checkpoint at hand: python tools/torch_costs.py --make CONFIG FOLDER writes one with
made-up weights. CONFIG is JSON, say {"model_type": "llama", "hidden_size": 4096,
"intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}.
"""

import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import openvino as ov
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from specdemo.engine import numerics, torch_model
from specdemo.engine.checkpoint import Checkpoint
from specdemo.engine.messages import ModelSettings, Run
from specdemo.engine.torch_model import TorchModel

SIZES, CONTEXT, REPEATS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32), 64, 9


def make(config: str, folder: Path) -> None:
    values = json.loads(config)
    torch.set_default_dtype(torch.bfloat16)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def synchronized(device: str) -> float:
    kind = getattr(torch, torch.device(device).type, None)
    if device != "cpu" and hasattr(kind, "synchronize"):
        kind.synchronize()
    return perf_counter()


@torch.inference_mode()
def measure(checkpoint: Checkpoint, device: str, way: str) -> None:
    properties = torch_model.properties(device, exact=way == "exact")
    model = TorchModel(checkpoint, ModelSettings(device, properties), ov.Core())
    found = numerics.measure_invariance(model)
    print(f"{checkpoint.path.name} on {device}, {dict(properties)}\n{found}")
    place = device.removeprefix("torch:")
    module = torch_model.load_module(checkpoint, device, dict(properties)["dtype"])
    cache = DynamicCache(config=module.config)
    module(torch.ones((1, CONTEXT), dtype=torch.long, device=place), past_key_values=cache)
    print("tokens    here, ms    transformers, ms")
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * CONTEXT, 0)])
        for size in SIZES:
            ours, theirs = [], []
            tokens = torch.ones((1, size), dtype=torch.long, device=place)
            for _ in range(REPEATS):
                since = synchronized(place)
                model.forward([Run(sequence, [1] * size, size, True, size == 1)])
                ours.append(synchronized(place) - since)
                sequence.truncate(CONTEXT)
                since = synchronized(place)
                module(tokens, past_key_values=cache).logits.float().argmax(-1).cpu()
                theirs.append(synchronized(place) - since)
                cache.crop(CONTEXT)
            print(f"{size:6d}{median(ours) * 1e3:12.2f}{median(theirs) * 1e3:20.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        measure(Checkpoint(Path(sys.argv[1])), sys.argv[2], (sys.argv[3:] or ["exact"])[0])
