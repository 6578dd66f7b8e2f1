"""Tiny GGUF files of each architecture, written by the `gguf` package with torch's weights."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType
from tiny_models import trained_words

ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
KINDS |= {"gptneox": "GPTNeoX", "gpt2": "GPT2", "smollm3": "SmolLM3", "granite": "Granite"}
KINDS |= {"olmo2": "Olmo2", "phi3": "Phi3", "gemma3": "Gemma3Text"}
GEMMA = {"num_hidden_layers": 6, "head_dim": 32, "sliding_window": 4, "query_pre_attn_scalar": 32}
GEMMA |= {"tie_word_embeddings": True, "hidden_size": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0 + index / 8 for index in range(12)]}
LONG |= {"long_factor": [4.0] * 12, "partial_rotary_factor": 0.75, "rope_theta": 10_000.0}
LONG = {"rope_parameters": LONG, "original_max_position_embeddings": 64}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 0.25}
GRANITE |= {"attention_multiplier": 0.05}
OWN = {"granite": GRANITE, "gemma3": GEMMA, "smollm3": {"num_hidden_layers": 4}}
"""Further values of configurations, which differ from the defaults."""
INTERLEAVED = "llama", "smollm3", "granite"  # halves of each query and key
FIELD_TYPES = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = "<think>"


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens, SPECIAL and ADDED last, and merges as text."""
    words, merges = trained_words()
    return [*words, *SPECIAL, ADDED], [" ".join(pair) for pair in merges]


def sentence_pieces(*control: str) -> dict:
    """The metadata of a vocabulary of pieces, with further `control` tokens at its end."""
    known, _ = vocabulary()
    words = [word.replace("Ġ", "▁") for word in known if word.isascii() or "Ġ" in word]
    words = [word for word in words if word not in (*SPECIAL, ADDED)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * len(words)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))]
    fields = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores}
    tokens += control
    kinds += [TokenType.CONTROL] * len(control)
    scores += [0.0] * len(control)
    return fields | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


def vocabulary_file(folder: Path, fields: dict):
    from specdemo.convert import gguf_file

    metadata = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    return gguf_file.Gguf(folder / "tiny.gguf", metadata, {})


def torch_model(architecture: str, **own):
    """A made-up float32 model of `architecture`, biases and norms included."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(vocabulary()[0]), "initializer_range": 0.1}
    sizes |= {"max_position_embeddings": 256, "tie_word_embeddings": architecture == "gpt2"}
    sizes["n_inner" if architecture == "gpt2" else "intermediate_size"] = 256
    if architecture not in ("gptneox", "gpt2"):
        sizes |= {"num_key_value_heads": 2, "pad_token_id": None}
    if architecture not in ("gptneox", "gpt2", "gemma3"):
        sizes |= {"rope_parameters": dict(ROPE)}  # a configuration changes its own
    if architecture in ("llama", "qwen2", "qwen3"):
        sizes |= {"head_dim": 32}
    sizes |= OWN.get(architecture, {})
    config = getattr(transformers, f"{KINDS[architecture]}Config")(**sizes | own)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.05 * torch.randn_like(weights))
            weights.copy_(weights.to(torch.float16))
    return model


def saved(folder: Path, model, dtype: str, shard: str = "300KB"):
    """Save a checkpoint of numbers of this type, in files of at most `shard`. Gives the model with
    the weights that it then has."""
    import torch
    import transformers

    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded.eval()


def write(
    path: Path,
    model,
    architecture: str,
    kind: GGMLQuantizationType = GGMLQuantizationType.F16,
    pre: str = "qwen2",
    parts: int = 1,
    **fields: object,
) -> None:
    """Write `model` as a GGUF file with matrices of `kind`, or as `parts` files. `model` gets the
    weights that they then have. `fields` are further metadata, with __ for dots."""
    import torch

    config = model.config
    each = -(-len(list(model.parameters())) // parts) if parts > 1 else 0
    writer = GGUFWriter(path, architecture, split_max_tensors=each)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or 32)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if "factor" in rope and rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.rope_parameters.get("rope_type") == "longrope":
        writer.add_rope_dimension_count(24)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    tokens, merges = vocabulary()
    kinds = [TokenType.NORMAL] * len(tokens)
    kinds[-4:] = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{% if not enable_thinking %}<think>{% endif %}"
    )
    for name, value in fields.items():
        writer.add_key_value(name.replace("__", "."), value, FIELD_TYPES[type(value)])
    arch = gguf.MODEL_ARCH[architecture.upper()]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, weights in model.named_parameters():
        own = names.get_name(name, (".weight", ".bias"))
        stored = weights.detach().numpy().astype(np.float32)
        if architecture == "gemma3" and "norm" in name:
            stored = stored + 1
        if weights.ndim > 1:
            with torch.no_grad():
                stored = gguf.quantize(stored, kind)
                weights.copy_(torch.from_numpy(gguf.dequantize(stored, kind).copy()))
        if architecture in INTERLEAVED and own.rpartition(".")[0].endswith(("attn_q", "attn_k")):
            halves = stored.reshape(-1, 2, 16, *stored.shape[1:]).swapaxes(1, 2)
            stored = np.ascontiguousarray(halves).reshape(stored.shape)
        writer.add_tensor(own, stored, raw_dtype=kind if weights.ndim > 1 else None)
    if config.rope_parameters.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    if config.rope_parameters.get("rope_type") == "llama3":
        default = 1 / 500_000.0 ** (np.arange(0, 32, 2) / 32)
        factors = default / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
