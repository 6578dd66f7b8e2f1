"""A Llama-shaped pair with made-up weights and a byte vocabulary; the draft is the target with noise added."""

from __future__ import annotations

import json
from pathlib import Path

BYTES = 256
NOISE = 0.3


def write_llama_pair(target: Path, draft: Path) -> None:
    """Checkpoints with their tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=BYTES,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    models = {folder: LlamaForCausalLM(config) for folder in (target, draft)}
    with torch.no_grad():
        for (_, weights), (_, copied) in zip(*(m.named_parameters() for m in models.values()), strict=True):
            if weights.dim() > 1:
                weights.mul_(6.0)  # sharper choices than initial weights give
            copied.copy_(weights)
            if weights.dim() > 1:
                copied.add_(NOISE * weights.std() * torch.randn_like(weights))
    for folder, model in models.items():
        model.save_pretrained(folder)
        _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers
    from tokenizers.decoders import ByteLevel

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE(vocab={character: id for id, character in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
