"""Small models with made-up weights in real shapes, for tests: Dolly with Pythia (GPT-NeoX), and GPT-2.

A draft is its target with noise added, so that it is right often but not always.
"""

from __future__ import annotations

import json
from pathlib import Path

NOISE = 0.02
TRAINING_TEXT = [
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.",
    "Fission splits a heavy nucleus; fusion joins two light ones. Both release energy.",
    "def add(a, b):\n    return a + b\n",
    "Café, naïve, 日本語, 👍 and more.",
] * 3  # fmt: skip


def special(id: int, content: str) -> dict:
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}  # fmt: skip


def write_neox_tokenizer(folder: Path, *, dolly: bool) -> None:
    """GPT-NeoX's layout: <|endoftext|> 0, <|padding|> 1, words to 50253, runs of spaces to 50276, Dolly's own after."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from tokenizers.decoders import ByteLevel

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    for id in range(len(vocabulary), 50254):
        vocabulary[f"Ġword{id}"] = id
    spaces = [{**special(50254 + i, " " * (24 - i)), "special": False, "normalized": True} for i in range(23)]
    own = [special(50277, "### End"), special(50278, "### Instruction:"), special(50279, "### Response:\n")]
    data["added_tokens"] = [special(0, "<|endoftext|>"), special(1, "<|padding|>"), *spaces, *(own if dolly else [])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    config = {"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
              "unk_token": "<|endoftext|>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_gpt2_tokenizer(folder: Path) -> None:
    """GPT-2's layout: 50257 ids, <|endoftext|> last."""
    write_neox_tokenizer(folder, dolly=False)
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = {string: id for string, id in data["model"]["vocab"].items() if id > 1}
    words = sorted(vocabulary, key=vocabulary.get)
    data["model"]["vocab"] = {string: id for id, string in enumerate(words)}
    for id in range(len(words), 50256):
        data["model"]["vocab"][f"Ġmore{id}"] = id
    data["model"]["vocab"]["<|endoftext|>"] = 50256
    data["normalizer"] = None
    data["added_tokens"] = [special(50256, "<|endoftext|>")]
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"})
    )


def write_dolly_pair(target: Path, draft: Path) -> None:
    """Checkpoints: Dolly with 50280 ids, Pythia with 50304, of the same tiny width so that they agree often."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    def model(vocabulary: int):
        config = GPTNeoXConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=0,
        )
        return GPTNeoXForCausalLM(config)

    _save_pair(model, 50280, 50304, target, draft)
    write_neox_tokenizer(target, dolly=True)
    write_neox_tokenizer(draft, dolly=False)


def write_gpt2_pair(target: Path, draft: Path) -> None:
    """Checkpoints of GPT-2's architecture, 1024 learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def model(vocabulary: int):
        config = GPT2Config(vocab_size=vocabulary, n_embd=64, n_layer=2, n_head=4, n_positions=1024)
        return GPT2LMHeadModel(config)

    _save_pair(model, 50257, 50257, target, draft)
    write_gpt2_tokenizer(target)
    write_gpt2_tokenizer(draft)


def _save_pair(make, target_vocabulary: int, draft_vocabulary: int, target: Path, draft: Path) -> None:
    import torch

    torch.manual_seed(1)
    first, second = make(target_vocabulary), make(draft_vocabulary)
    with torch.no_grad():
        for name, weights in first.named_parameters():
            weights.mul_(4.0 if weights.dim() > 1 else 1.0)  # sharper choices than initial weights give
            noisy = weights + NOISE * weights.std().nan_to_num(0) * torch.randn_like(weights)
            own = dict(second.named_parameters())[name]
            own.mul_(4.0 if weights.dim() > 1 else 1.0)
            own[: len(noisy)] = noisy
    first.save_pretrained(target)
    second.save_pretrained(draft)
